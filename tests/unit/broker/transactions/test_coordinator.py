"""The transaction coordinator: fencing, time-outs, and what a change of coordinator leaves."""

from unittest.mock import Mock

import pytest

from ottla.broker.transactions.records import read_key, read_value
from ottla.broker.transactions.state import LAST_USABLE_EPOCH, Producer, TransactionState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.builder import build_batch
from ottla.storage.errors import LogClosed
from tests.unit.broker.transactions.helpers import ID, T0, T1, TIMEOUT_MS, U0, Setup

S = TransactionState
NO_PRODUCER = Producer(-1, -1)


def states_in_log(setup: Setup, transactional_id: str = ID) -> list[str]:
    return [
        "tombstone" if record.value is None else read_value("", record.value).state.label
        for record in setup.log.records(0)
        if record.key is not None and read_key(record.key) == transactional_id
    ]


# InitProducerId.


def test_a_merely_idempotent_producer_only_gets_an_id() -> None:
    setup = Setup()
    assert setup.init(None) == (0, Producer(100, 0))
    assert setup.init(None, Producer(7, 7), timeout_ms=-1) == (0, Producer(101, 0))
    assert setup.log.appends == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_have_a_limit(timeout_ms: int) -> None:
    response = Setup().init(timeout_ms=timeout_ms)
    assert response == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, NO_PRODUCER)


def test_an_empty_transactional_id_is_no_id() -> None:
    assert Setup().init("") == (ErrorCode.INVALID_REQUEST, NO_PRODUCER)


def test_each_start_fences_the_one_before() -> None:
    setup = Setup()
    first = setup.producer()
    second = setup.producer()
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    assert setup.add(first, T0) == ErrorCode.PRODUCER_FENCED
    assert setup.add(second, T0) == ErrorCode.NONE


def test_the_init_response_waits_for_the_commit_of_the_epoch() -> None:
    setup = Setup()
    setup.log.hold = True
    responses = setup.init_later()
    assert not responses
    assert setup.init() == (ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER)
    setup.log.commit_all()
    assert responses == [(0, Producer(100, 0))]


def test_without_a_producer_id_the_client_retries() -> None:
    setup = Setup()
    setup.ids.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert setup.init() == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER)
    assert setup.init()[0] == ErrorCode.NONE


def test_two_producers_that_wait_for_their_first_id_get_the_same() -> None:
    setup = Setup()
    setup.ids.hold = True
    responses = [setup.init_later(), setup.init_later()]
    setup.ids.release()
    assert [response[0] for response in responses] == [(0, Producer(100, 0)), (0, Producer(100, 1))]


def test_resigning_while_an_id_is_fetched() -> None:
    setup = Setup()
    setup.ids.hold = True
    responses = setup.init_later()
    setup.coordinator.on_resigned(0, 1)
    setup.ids.release()
    assert responses == [(ErrorCode.NOT_COORDINATOR, NO_PRODUCER)]


def test_used_up_epochs_bring_a_new_id() -> None:
    setup = Setup()
    producer = setup.producer()
    transaction = setup.transaction()
    transaction.value = transaction.value._replace(epoch=LAST_USABLE_EPOCH)
    error, fresh = setup.init(expected=Producer(producer.producer_id, LAST_USABLE_EPOCH))
    assert (error, fresh.epoch) == (0, 0)
    assert fresh.producer_id != producer.producer_id
    assert setup.add(producer, T0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("error", "responded"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_a_failed_append_changes_nothing(error: int, responded: int) -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    setup.log.next_error = error
    assert setup.end(producer) == responded
    assert setup.state() is S.ONGOING
    setup.log.next_error = error
    assert setup.add(producer, T1) == responded
    assert setup.transaction().value.partitions == {T0}
    assert setup.end(producer) == ErrorCode.NONE


@pytest.mark.parametrize("error", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_a_completion_that_cannot_be_appended_is_retried(error: int) -> None:
    """With a full disk the broker remains the leader: no other one completes the transaction."""
    setup = Setup()
    producer = setup.ongoing(T0)
    setup.leaders.hold = True
    assert setup.end(producer) == ErrorCode.NONE
    setup.log.next_error = error
    setup.leaders.release()
    assert setup.state() is S.PREPARE_COMMIT
    setup.timer.advance(1_000)
    assert setup.state() is S.COMPLETE_COMMIT


# A transaction's life.


def test_a_transaction_from_start_to_end() -> None:
    setup = Setup()
    producer = setup.ongoing(T0, T1)
    assert setup.add(producer, U0) == ErrorCode.NONE
    assert setup.end(producer) == ErrorCode.NONE
    assert setup.state() is S.COMPLETE_COMMIT
    assert sorted(setup.leaders.written) == [
        (T0, *producer, True),
        (T1, *producer, True),
        (U0, *producer, True),
    ]
    assert states_in_log(setup) == [
        "Empty",
        "Ongoing",
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
    ]
    assert setup.end(producer) == ErrorCode.NONE
    assert setup.end(producer, committed=False) == ErrorCode.INVALID_TXN_STATE


def test_the_end_txn_response_is_sent_when_the_prepare_state_is_committed() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    setup.log.hold = True
    responses = setup.end_later(producer)
    assert not responses
    assert not setup.leaders.written
    setup.leaders.hold = True
    setup.log.commit_all()
    assert responses == [ErrorCode.NONE]
    assert setup.state() is S.PREPARE_COMMIT
    assert setup.end(producer) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert setup.add(producer, T0) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert setup.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    setup.log.hold = False
    setup.leaders.release()
    assert setup.state() is S.COMPLETE_COMMIT


def test_a_new_producer_aborts_what_the_old_one_left_open() -> None:
    setup = Setup()
    old = setup.ongoing(T0)
    assert setup.init() == (ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER)
    assert setup.leaders.written == [(T0, old.producer_id, old.epoch + 1, False)]
    assert setup.state() is S.COMPLETE_ABORT
    assert setup.end(old) == ErrorCode.PRODUCER_FENCED
    assert setup.init() == (0, Producer(old.producer_id, old.epoch + 2))


def test_the_abort_of_what_was_open_may_fail() -> None:
    setup = Setup()
    old = setup.ongoing(T0)
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert setup.init() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_PRODUCER)
    assert setup.end(old) == ErrorCode.NONE


def test_another_process_may_end_a_transaction_with_the_same_producer() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    restarted = Setup(setup.log)
    assert restarted.end(producer) == ErrorCode.NONE
    assert restarted.leaders.written == [(T0, *producer, True)]


@pytest.mark.parametrize("transactional_id", [None, ""])
def test_no_transactional_id(transactional_id: str | None) -> None:
    setup = Setup()
    producer = Producer(1, 1)
    bad = ErrorCode.INVALID_REQUEST
    assert setup.add(producer, T0, transactional_id=transactional_id) == bad
    assert setup.end(producer, transactional_id=transactional_id) == bad
    verified = setup.coordinator.verify_partitions(transactional_id, producer, frozenset((T0,)))
    assert verified == {T0: bad}


def test_an_unknown_transactional_id() -> None:
    setup = Setup()
    unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert setup.add(Producer(1, 1), T0, transactional_id="x") == unknown
    assert setup.end(Producer(1, 1), transactional_id="x") == unknown


def test_partitions_known_already_need_no_record() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    appends = setup.log.appends
    assert setup.add(producer, T0) == ErrorCode.NONE
    assert setup.log.appends == appends


def test_verification_changes_nothing() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    appends = setup.log.appends
    verified = setup.coordinator.verify_partitions(ID, producer, frozenset((T0, T1)))
    assert verified == {T0: ErrorCode.NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}
    assert setup.log.appends == appends


# Time.


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    setup.timer.advance(60_000)
    assert setup.state() is S.ONGOING
    setup.timer.advance(10_000)
    assert setup.state() is S.COMPLETE_ABORT
    assert setup.leaders.written == [(T0, producer.producer_id, producer.epoch + 1, False)]
    assert setup.end(producer) == ErrorCode.PRODUCER_FENCED
    error, bumped = setup.init(expected=producer)
    assert (error, bumped) == (ErrorCode.PRODUCER_FENCED, NO_PRODUCER)
    assert setup.init()[0] == ErrorCode.NONE


def test_an_abort_that_cannot_be_written_is_retried() -> None:
    setup = Setup()
    setup.ongoing(T0)
    setup.timer.advance(60_001)
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.timer.advance(10_000)
    assert setup.state() is S.ONGOING
    setup.timer.advance(10_000)
    assert setup.state() is S.COMPLETE_ABORT


def test_unused_transactional_ids_are_forgotten() -> None:
    setup = Setup(transactional_id_expiration_ms=1_000_000)
    setup.producer("old")
    setup.ongoing(T0, transactional_id="open")
    setup.timer.advance(1_060_000)  # times the open one out, which counts as a use
    setup.producer("young")
    setup.coordinator.upkeep.remove_expired()
    assert states_in_log(setup, "old") == ["Empty", "tombstone"]
    assert set(setup.coordinator.partitions.active[0].transactions) == {"open", "young"}
    assert set(Setup(setup.log).coordinator.partitions.active[0].transactions) == {"open", "young"}


def test_forgetting_that_fails_changes_nothing() -> None:
    setup = Setup(transactional_id_expiration_ms=1_000)
    producer = setup.producer()
    setup.timer.advance(1_000)
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.coordinator.upkeep.remove_expired()
    assert setup.add(producer, T0) == ErrorCode.NONE


def test_while_an_id_is_being_forgotten_its_producer_waits() -> None:
    setup = Setup(transactional_id_expiration_ms=1_000)
    producer = setup.producer()
    setup.timer.advance(1_000)
    setup.log.hold = True
    setup.coordinator.upkeep.remove_expired()
    assert setup.add(producer, T0) == ErrorCode.CONCURRENT_TRANSACTIONS
    setup.log.commit_all()
    assert setup.add(producer, T0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# Coordinators start and stop, in every state.


def test_while_loading_and_elsewhere() -> None:
    setup = Setup()
    producer = setup.producer()
    setup.coordinator.on_elected(0, 1)
    assert setup.add(producer, T0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert setup.init() == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER)
    setup.coordinator.on_resigned(0, 2)
    assert setup.end(producer) == ErrorCode.NOT_COORDINATOR
    assert setup.init() == (ErrorCode.NOT_COORDINATOR, NO_PRODUCER)
    setup.coordinator.shutdown()
    assert setup.end(producer) == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("committed", [True, False])
def test_a_decision_is_carried_out_by_the_next_coordinator(committed: bool) -> None:
    first = Setup()
    producer = first.ongoing(T0, T1)
    first.leaders.hold = True
    assert first.end(producer, committed=committed) == ErrorCode.NONE
    second = Setup(first.log)
    assert sorted(second.leaders.written) == [
        (T0, *producer, committed),
        (T1, *producer, committed),
    ]
    assert second.state() is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)


def test_the_markers_carry_the_epoch_of_the_coordinator() -> None:
    setup = Setup()
    setup.elect(7)
    producer = setup.ongoing(T0)
    setup.end(producer)
    (_, request) = setup.leaders.requests[-1]
    assert request.markers[0].coordinator_epoch == 7


def test_an_open_transaction_continues_with_the_next_coordinator() -> None:
    first = Setup()
    producer = first.ongoing(T0)
    second = Setup(first.log)
    assert second.add(producer, T1) == ErrorCode.NONE
    assert second.end(producer, committed=False) == ErrorCode.NONE
    assert second.state() is S.COMPLETE_ABORT


def test_a_record_that_is_committed_after_the_resignation_is_not_ours_to_confirm() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    setup.log.hold = True
    responses = setup.end_later(producer)
    setup.coordinator.on_resigned(0, 1)
    setup.log.commit_all()
    assert responses == [ErrorCode.NOT_COORDINATOR]
    assert not setup.leaders.written
    setup.log.hold = False
    setup.elect(2)
    assert setup.state() is S.COMPLETE_COMMIT


def test_markers_are_called_off_with_the_leadership() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    setup.leaders.leaders[T0] = -1
    setup.end(producer)
    assert setup.coordinator.markers.pending == 1
    setup.coordinator.on_resigned(0, 1)
    setup.leaders.leaders[T0] = 1
    setup.timer.advance(10_000)
    assert not setup.leaders.requests
    setup.elect(2)
    assert setup.leaders.written == [(T0, *producer, True)]


def test_the_end_is_written_as_often_as_it_takes() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    setup.leaders.hold = True
    setup.end(producer)
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.leaders.release()
    assert setup.state() is S.PREPARE_COMMIT
    setup.timer.advance(99)
    assert setup.state() is S.PREPARE_COMMIT
    setup.timer.advance(1)
    assert setup.state() is S.COMPLETE_COMMIT


def test_the_end_of_another_term_is_not_written() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    setup.leaders.hold = True
    setup.end(producer)
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.leaders.release()
    setup.coordinator.on_resigned(0, 1)
    appends = setup.log.appends
    setup.timer.advance(1_000)
    assert setup.log.appends == appends


def test_time_outs_go_on_after_one_run_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup()
    setup.ongoing(T0)
    setup.timer.advance(60_001)
    with monkeypatch.context() as patch:
        patch.setattr(
            setup.coordinator, "_prepare_completion", Mock(side_effect=LogClosed("deleted"))
        )
        with pytest.raises(LogClosed):
            setup.timer.advance(10_000)
    setup.timer.advance(10_000)
    assert setup.state() is S.COMPLETE_ABORT


def test_shutting_down_stops_every_timer() -> None:
    setup = Setup()
    setup.ongoing(T0)
    setup.coordinator.shutdown()
    assert setup.timer.advance(10_000_000) == 0
    setup = Setup()
    setup.leaders.errors[T0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    setup.end(setup.ongoing(T0))
    setup.coordinator.shutdown()
    assert setup.timer.advance(10_000_000) == 0, "no markers are sent again"


def test_foreign_records_are_skipped_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    foreign = [
        (1, None, b"x", None),
        (1, b"\x00\x05later", b"x", None),
        (1, b"\x00", b"x", None),
        (1, b"\x00\x00\x00\x01y", b"\x00\x00\x01", None),
    ]
    setup.log.append(0, build_batch(foreign), lambda *_: None)
    setup.elect(1)
    assert caplog.text.count("skipping a record") == 4
    assert setup.end(producer) == ErrorCode.NONE


def test_the_timers_abort_and_forget() -> None:
    setup = Setup()
    settings = setup.settings
    setup.ongoing(T0)
    setup.timer.advance(
        TIMEOUT_MS + settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
    )
    assert setup.state() is S.COMPLETE_ABORT
    setup.timer.advance(
        settings.transactional_id_expiration_ms
        + settings.transaction_remove_expired_transaction_cleanup_interval_ms
    )
    with pytest.raises(KeyError):
        setup.transaction()


def test_an_existing_topic_says_how_many_partitions_there_are() -> None:
    setup = Setup()
    setup.coordinator.startup(7)
    assert setup.coordinator.partitions.partition_count == 7


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_timeouts_at_the_bounds_are_valid(timeout_ms: int) -> None:
    assert Setup().init(timeout_ms=timeout_ms)[0] == ErrorCode.NONE


def test_verification_while_the_transaction_completes() -> None:
    setup = Setup()
    setup.leaders.hold = True
    producer = setup.ongoing(T0)
    setup.end(producer)
    found = setup.coordinator.verify_partitions(ID, producer, frozenset((T0,)))
    assert found == {T0: ErrorCode.CONCURRENT_TRANSACTIONS}


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        (Producer(55, LAST_USABLE_EPOCH - 1), ErrorCode.PRODUCER_FENCED),
        (Producer(99, LAST_USABLE_EPOCH), ErrorCode.PRODUCER_FENCED),
        (Producer(55, LAST_USABLE_EPOCH), ErrorCode.NONE),  # a retry, see KIP-360
    ],
)
def test_a_retry_after_a_new_producer_id(expected: Producer, code: int) -> None:
    setup = Setup()
    setup.producer()
    transaction = setup.transaction()
    transaction.value = transaction.value._replace(
        epoch=0, last_producer_id=55, last_epoch=LAST_USABLE_EPOCH
    )
    assert setup.init(expected=expected)[0] == code
