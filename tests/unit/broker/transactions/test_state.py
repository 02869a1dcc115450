"""The state machine of one transactional id."""

import pytest

from ottla.broker.transactions.state import (
    LAST_USABLE_EPOCH,
    MAX_EPOCH,
    VALID_PREDECESSORS,
    NeedsProducerId,
    Producer,
    RejectedRequest,
    Transaction,
    TransactionState,
    TransactionValue,
)
from ottla.protocol.errors import ErrorCode
from tests.unit.broker.transactions.helpers import T0, T1

S = TransactionState
NEW = TransactionValue(S.EMPTY, 5, -1, 1_000)
EMPTY = TransactionValue(S.EMPTY, 5, 3, 1_000, update_timestamp_ms=10)
ONGOING = EMPTY._replace(state=S.ONGOING, partitions=frozenset((T0,)), start_timestamp_ms=20)


def refusal(call: object, *arguments: object) -> int:
    assert callable(call)
    with pytest.raises(RejectedRequest) as rejection:
        call(*arguments)
    return rejection.value.code


# InitProducerId.


def test_a_new_producer_starts_at_epoch_0() -> None:
    value = Transaction("x", NEW).init_producer(2_000, None, None, 50)
    assert (value.state, value.producer_id, value.epoch, value.timeout_ms) == (S.EMPTY, 5, 0, 2_000)
    assert (value.update_timestamp_ms, value.start_timestamp_ms) == (50, -1)


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_every_start_counts_the_epoch_up(state: TransactionState) -> None:
    value = Transaction("x", EMPTY._replace(state=state)).init_producer(1_000, None, None, 50)
    assert (value.state, value.epoch, value.last_epoch) == (S.EMPTY, 4, -1)
    assert value.partitions == frozenset()


def test_a_producer_that_continues_is_remembered_with_its_old_epoch() -> None:
    transaction = Transaction("x", EMPTY)
    value = transaction.init_producer(1_000, Producer(5, 3), None, 50)
    assert (value.epoch, value.last_epoch) == (4, 3)
    transaction.replay(value)
    again = transaction.init_producer(1_000, Producer(5, 3), None, 60)
    assert (again.epoch, again.last_epoch) == (4, 3)
    assert transaction.init_producer(1_000, Producer(5, 4), None, 60).epoch == 5


def test_a_new_start_makes_the_old_epoch_worthless() -> None:
    transaction = Transaction("x", EMPTY)
    transaction.replay(transaction.init_producer(1_000, None, None, 50))
    assert refusal(transaction.init_producer, 1_000, Producer(5, 3), None, 60) == (
        ErrorCode.PRODUCER_FENCED
    )


@pytest.mark.parametrize("expected", [Producer(5, 2), Producer(6, 3), Producer(5, MAX_EPOCH)])
def test_an_unknown_producer_is_fenced(expected: Producer) -> None:
    code = refusal(Transaction("x", EMPTY).init_producer, 1_000, expected, None, 50)
    assert code == ErrorCode.PRODUCER_FENCED


def test_a_producer_that_lost_its_id_gets_the_new_one() -> None:
    value = Transaction("x", NEW).init_producer(1_000, Producer(99, 7), None, 50)
    assert (value.producer_id, value.epoch) == (5, 0)


def test_used_up_epochs_need_a_fresh_id() -> None:
    transaction = Transaction("x", EMPTY._replace(epoch=LAST_USABLE_EPOCH))
    with pytest.raises(NeedsProducerId):
        transaction.init_producer(1_000, None, None, 50)
    value = transaction.init_producer(1_000, None, 77, 50)
    assert (value.producer_id, value.epoch, value.last_producer_id) == (77, 0, 5)
    assert value.last_epoch == -1


def test_a_repeated_request_after_a_fresh_id_gets_it_again() -> None:
    transaction = Transaction("x", EMPTY._replace(epoch=LAST_USABLE_EPOCH))
    expected = Producer(5, LAST_USABLE_EPOCH)
    transaction.replay(transaction.init_producer(1_000, expected, 77, 50))
    value = transaction.init_producer(1_000, expected, None, 60)
    assert (value.producer_id, value.epoch) == (77, 0)


def test_an_old_epoch_of_a_used_up_id_is_fenced() -> None:
    transaction = Transaction("x", EMPTY._replace(epoch=LAST_USABLE_EPOCH))
    code = refusal(transaction.init_producer, 1_000, Producer(5, 4), None, 50)
    assert code == ErrorCode.PRODUCER_FENCED


def test_an_open_transaction_is_aborted_and_its_producer_fenced() -> None:
    value = Transaction("x", ONGOING).init_producer(1_000, None, None, 50)
    assert (value.state, value.epoch, value.partitions) == (S.PREPARE_ABORT, 4, frozenset((T0,)))
    assert value.start_timestamp_ms == 20


def test_the_last_epoch_is_good_enough_to_fence() -> None:
    transaction = Transaction("x", ONGOING._replace(epoch=LAST_USABLE_EPOCH))
    assert transaction.fence(50).epoch == MAX_EPOCH
    # No client was given it, but one that uses it must not hold the last stable offset for good.
    aborted = Transaction("x", ONGOING._replace(epoch=MAX_EPOCH)).fence(50)
    assert (aborted.state, aborted.epoch) == (S.PREPARE_ABORT, MAX_EPOCH)


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_init_producer_id_fails_while_markers_are_written(state: TransactionState) -> None:
    transaction = Transaction("x", ONGOING._replace(state=state))
    for expected in (None, Producer(99, 0)):
        code = refusal(transaction.init_producer, 1_000, expected, None, 50)
        assert code == ErrorCode.CONCURRENT_TRANSACTIONS


# Partitions.


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_the_first_partitions_open_the_transaction(state: TransactionState) -> None:
    transaction = Transaction("x", EMPTY._replace(state=state, start_timestamp_ms=1))
    value = transaction.add_partitions(Producer(5, 3), frozenset((T0, T1)), 50)
    assert value is not None
    assert (value.state, value.start_timestamp_ms, value.update_timestamp_ms) == (S.ONGOING, 50, 50)
    assert value.partitions == {T0, T1}


def test_more_partitions_keep_the_start() -> None:
    transaction = Transaction("x", ONGOING)
    value = transaction.add_partitions(Producer(5, 3), frozenset((T1,)), 50)
    assert value is not None
    assert (value.start_timestamp_ms, value.partitions) == (20, {T0, T1})
    assert transaction.add_partitions(Producer(5, 3), frozenset((T0,)), 50) is None


@pytest.mark.parametrize(
    ("producer", "code"),
    [
        (Producer(6, 3), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (Producer(5, 2), ErrorCode.PRODUCER_FENCED),
        (Producer(5, 4), ErrorCode.PRODUCER_FENCED),
    ],
)
def test_only_the_present_producer_counts(producer: Producer, code: int) -> None:
    transaction = Transaction("x", ONGOING)
    partitions = frozenset((T0,))
    assert refusal(transaction.add_partitions, producer, partitions, 50) == code
    assert refusal(transaction.verify_partitions, producer, partitions) == code
    assert refusal(transaction.end, producer, True, 50) == code


def test_partitions_are_verified() -> None:
    transaction = Transaction("x", ONGOING)
    assert transaction.verify_partitions(Producer(5, 3), frozenset((T0, T1))) == {
        T0: ErrorCode.NONE,
        T1: ErrorCode.TRANSACTION_ABORTABLE,
    }


# The end.


@pytest.mark.parametrize(
    ("committed", "state"), [(True, S.PREPARE_COMMIT), (False, S.PREPARE_ABORT)]
)
def test_the_decision_and_its_completion(committed: bool, state: TransactionState) -> None:
    transaction = Transaction("x", ONGOING)
    value = transaction.end(Producer(5, 3), committed, 50)
    assert value is not None
    assert (value.state, value.partitions, value.start_timestamp_ms) == (state, {T0}, 20)
    transaction.replay(value)
    done = transaction.complete(60)
    assert done.state is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
    assert (done.partitions, done.start_timestamp_ms, done.update_timestamp_ms) == (set(), 20, 60)


@pytest.mark.parametrize(
    ("state", "committed", "outcome"),
    [
        (S.COMPLETE_COMMIT, True, None),
        (S.COMPLETE_COMMIT, False, ErrorCode.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, False, None),
        (S.COMPLETE_ABORT, True, ErrorCode.INVALID_TXN_STATE),
        (S.EMPTY, True, ErrorCode.INVALID_TXN_STATE),
        (S.EMPTY, False, ErrorCode.INVALID_TXN_STATE),
        (S.PREPARE_COMMIT, True, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_COMMIT, False, ErrorCode.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_ABORT, True, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_ending_what_is_not_open(
    state: TransactionState, committed: bool, outcome: int | None
) -> None:
    transaction = Transaction("x", EMPTY._replace(state=state))
    if outcome is None:
        assert transaction.end(Producer(5, 3), committed, 50) is None
    else:
        assert refusal(transaction.end, Producer(5, 3), committed, 50) == outcome


# Pending changes, time.


def test_while_a_record_is_written_everything_else_waits() -> None:
    transaction = Transaction("x", ONGOING)
    transaction.prepare_transition(ONGOING._replace(partitions=frozenset((T0, T1))))
    again = ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(transaction.add_partitions, Producer(5, 3), frozenset((T1,)), 50) == again
    assert refusal(transaction.end, Producer(5, 3), True, 50) == again
    assert refusal(transaction.init_producer, 1_000, None, None, 50) == again
    transaction.clear_pending_state()
    assert transaction.value == ONGOING
    assert transaction.end(Producer(5, 3), True, 50) is not None


@pytest.mark.parametrize("before", list(S))
@pytest.mark.parametrize("after", list(S))
def test_only_valid_changes_begin(before: TransactionState, after: TransactionState) -> None:
    transaction = Transaction("x", EMPTY._replace(state=before))
    if before in VALID_PREDECESSORS[after]:
        transaction.prepare_transition(EMPTY._replace(state=after))
        assert transaction.pending_state is after
    else:
        with pytest.raises(AssertionError):
            transaction.prepare_transition(EMPTY._replace(state=after))


def test_time_runs_out_for_open_transactions_only() -> None:
    transaction = Transaction("x", ONGOING)
    assert not transaction.has_timed_out(1_020)
    assert transaction.has_timed_out(1_021)
    transaction.pending_state = S.PREPARE_COMMIT
    assert not transaction.has_timed_out(9_999)
    assert not Transaction("x", EMPTY).has_timed_out(9_999)


def test_unused_ids_expire_unless_something_is_open() -> None:
    assert not Transaction("x", EMPTY).has_expired(109, 100)
    assert Transaction("x", EMPTY).has_expired(110, 100)
    assert not Transaction("x", ONGOING).has_expired(10**9, 100)


def test_states_have_the_names_that_clients_know() -> None:
    assert [state.label for state in S] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
    ]
