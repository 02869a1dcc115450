"""Time-outs and expiration of many transactional ids, in turns."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from ottla.broker.transactions.state import MAX_EPOCH, Producer, TransactionState
from ottla.broker.transactions.upkeep import TOMBSTONES_PER_BATCH
from ottla.protocol.errors import ErrorCode
from tests.doubles.pace import steps_per_turn
from tests.unit.broker.transactions.helpers import T0, T1, TIMEOUT_MS, Setup

STEPS = 5  # of a turn
MANY = 10 * STEPS
EXPIRATION_MS = 1_000_000


@pytest.fixture(autouse=True)
def short_turns() -> Iterator[None]:
    with steps_per_turn(STEPS):
        yield


def aborted(setup: Setup) -> int:
    return _count(setup, TransactionState.COMPLETE_ABORT)


def _count(setup: Setup, state: TransactionState) -> int:
    (partition,) = setup.coordinator.partitions.active
    return sum(each.state is state for each in partition.transactions.values())


def end_many(setup: Setup) -> None:
    """Their markers are not sent yet."""
    setup.leaders.hold = True
    for number in range(MANY):
        producer = setup.ongoing(T0, transactional_id=f"txn-{number}")
        setup.end(producer, transactional_id=f"txn-{number}")


def time_out(setup: Setup) -> None:
    """Let all transactions time out, and begin to abort them."""
    setup.timer.advance(TIMEOUT_MS)
    run_deferred(setup)  # of earlier checks
    assert aborted(setup) == 0
    setup.timer.advance(10_000)


def run_deferred(setup: Setup) -> int:
    turns = 0
    while setup.deferred:
        setup.deferred.pop(0)()
        turns += 1
    return turns


def test_many_transactions_time_out_in_turns() -> None:
    setup = Setup()
    for number in range(MANY):
        setup.ongoing(T0, transactional_id=f"txn-{number}")
    time_out(setup)
    assert aborted(setup) == STEPS
    # Another run of the job in the meantime begins nothing.
    setup.timer.advance(10_000)
    assert aborted(setup) == STEPS
    assert run_deferred(setup) == MANY // STEPS
    assert aborted(setup) == MANY


def test_many_ids_expire_in_turns() -> None:
    setup = Setup(transactional_id_expiration_ms=EXPIRATION_MS)
    for number in range(20 * TOMBSTONES_PER_BATCH):
        setup.init(f"txn-{number}")
    (partition,) = setup.coordinator.partitions.active
    before = len(partition.transactions)
    setup.timer.advance(EXPIRATION_MS)
    run_deferred(setup)  # of the other job
    with steps_per_turn(TOMBSTONES_PER_BATCH):
        setup.coordinator.upkeep.remove_expired()
    removed = before - len(partition.transactions)
    assert removed == TOMBSTONES_PER_BATCH
    left = next(reversed(partition.transactions))
    assert setup.init(left)[0] == ErrorCode.NONE  # used since
    assert run_deferred(setup) > 1
    assert list(partition.transactions) == [left]
    assert list(Setup(setup.log).coordinator.partitions.active[0].transactions) == [left]


def test_the_jobs_end_with_the_coordinator() -> None:
    setup = Setup(transactional_id_expiration_ms=EXPIRATION_MS)
    for number in range(MANY):
        setup.ongoing(T0, transactional_id=f"txn-{number}")
    time_out(setup)
    appends = setup.log.appends
    setup.coordinator.on_resigned(0, 1)
    run_deferred(setup)
    assert setup.log.appends == appends
    setup.elect(2)
    assert aborted(setup) == STEPS
    setup.timer.advance(10_000)
    run_deferred(setup)
    assert aborted(setup) == MANY


def test_a_transaction_of_the_last_epoch_does_not_hold_the_others() -> None:
    """A client may send an epoch that it was not given."""
    setup = Setup()
    setup.ongoing(T0)
    transaction = setup.transaction()
    transaction.value = transaction.value._replace(epoch=MAX_EPOCH)
    setup.ongoing(T1, transactional_id="other")
    setup.timer.advance(TIMEOUT_MS + 10_000)
    assert aborted(setup) == 2
    assert setup.init()[1] == Producer(102, 0)


def test_the_markers_of_many_transactions_are_sent_in_turns_after_a_load() -> None:
    setup = Setup()
    end_many(setup)
    setup.coordinator.on_resigned(0, 1)
    assert setup.coordinator.markers.pending == 0
    setup.coordinator.on_elected(0, 2)
    pending = [0]
    while setup.deferred:
        setup.deferred.pop(0)()
        pending.append(setup.coordinator.markers.pending)
    steps = [after - before for before, after in pairwise(pending)]
    assert max(steps) == STEPS
    assert sum(steps) == MANY
    setup.leaders.release()
    assert _count(setup, TransactionState.COMPLETE_COMMIT) == MANY


def test_markers_of_a_load_are_not_sent_by_the_coordinator_of_before() -> None:
    setup = Setup()
    end_many(setup)
    setup.coordinator.on_elected(0, 2)
    while not setup.coordinator.markers.pending:
        setup.deferred.pop(0)()
    setup.coordinator.on_resigned(0, 3)
    run_deferred(setup)
    assert setup.coordinator.markers.pending == 0
