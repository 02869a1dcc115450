import pytest

from ottla.broker.share.acquisition import GroupLimits
from ottla.broker.share.persister import RecordState, StateBatch, merged
from ottla.broker.share.share_partition import Acknowledgement, AcknowledgeType
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.unit.broker.share.helpers import (
    acknowledge,
    acquire,
    log_batches,
    share_partition,
    states,
)

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, RENEW, GAP = AcknowledgeType.REJECT, AcknowledgeType.RENEW, AcknowledgeType.GAP
ACQUIRED, AVAILABLE = RecordState.ACQUIRED, RecordState.AVAILABLE
LOG = log_batches(10)


def test_accepted_records_move_the_start_offset() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    acknowledge(partition, 0, 9, ACCEPT)
    assert (partition.window.start_offset, states(partition)) == (10, [])


def test_a_type_for_each_record() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    acknowledge(partition, 0, 4, ACCEPT, RELEASE, REJECT, GAP, RELEASE)
    assert [state[:3] for state in states(partition)] == [
        (1, 1, AVAILABLE),
        (2, 2, RecordState.ARCHIVED),
        (3, 3, RecordState.ARCHIVED),
        (4, 4, AVAILABLE),
        (5, 9, ACQUIRED),
    ]
    assert partition.next_fetch_offset() == 1


def test_what_is_being_stored_can_be_neither_acquired_nor_acknowledged() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    transition = partition.acknowledge("m", [Acknowledgement(0, 9, [RELEASE])], 0)
    assert acquire(partition, LOG) == []
    with pytest.raises(KafkaError) as refused:
        acknowledge(partition, 0, 9, ACCEPT)
    assert refused.value.code == ErrorCode.INVALID_RECORD_STATE
    partition.commit(transition)
    assert acquire(partition, LOG, member="other") == [(0, 9, 2)]


def test_a_failed_write_leaves_the_records_with_their_member() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    transition = partition.acknowledge("m", [Acknowledgement(0, 9, [ACCEPT])], 0)
    partition.rollback(transition, 1)
    acknowledge(partition, 0, 9, ACCEPT)
    assert partition.window.start_offset == 10


def test_a_failed_write_of_records_that_are_deleted_meanwhile() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    transition = partition.acknowledge("m", [Acknowledgement(0, 9, [ACCEPT])], 0)
    assert partition.window.delivery_complete_count == 10
    partition.window.advance_to(10)
    partition.rollback(transition, 1)
    assert partition.window.delivery_complete_count == 0


def test_a_failed_write_after_the_end_of_the_lock() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    transition = partition.acknowledge("m", [Acknowledgement(0, 9, [ACCEPT])], 0)
    assert partition.end_locks(30_000) == []
    partition.rollback(transition, 30_000)
    assert acquire(partition, LOG, member="other") == [(0, 9, 2)]


@pytest.mark.parametrize(
    ("member", "first", "last", "code"),
    [
        ("other", 0, 9, ErrorCode.INVALID_RECORD_STATE),
        ("m", 0, 10, ErrorCode.INVALID_REQUEST),
        ("m", 20, 30, ErrorCode.INVALID_REQUEST),
    ],
)
def test_refused(member: str, first: int, last: int, code: int) -> None:
    partition = share_partition()
    acquire(partition, LOG)
    with pytest.raises(KafkaError) as refused:
        acknowledge(partition, first, last, ACCEPT, member=member)
    assert refused.value.code == code
    assert states(partition) == [(0, 9, ACQUIRED, 1)]


def test_an_error_leaves_all_of_the_request_undone() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    with pytest.raises(KafkaError):
        partition.acknowledge(
            "m", [Acknowledgement(0, 4, [ACCEPT]), Acknowledgement(3, 9, [ACCEPT])], 0
        )
    assert {state[2] for state in states(partition)} == {ACQUIRED}
    acknowledge(partition, 0, 9, ACCEPT)
    assert partition.window.start_offset == 10


def test_records_that_are_delivered_for_good_are_acknowledged_without_effect() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    acknowledge(partition, 0, 9, ACCEPT)
    acknowledge(partition, 0, 9, REJECT)
    assert partition.window.start_offset == 10


def test_a_lock_ends() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    assert partition.next_deadline_ms() == 30_000
    assert partition.end_locks(29_999) == []
    assert partition.end_locks(30_000) == [StateBatch(0, 9, AVAILABLE, 1)]
    assert partition.next_deadline_ms() is None
    assert acquire(partition, LOG, member="other", now_ms=30_000) == [(0, 9, 2)]


def test_a_lock_is_renewed() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    transition = partition.acknowledge("m", [Acknowledgement(0, 4, [RENEW])], 20_000)
    assert not transition.batches
    assert partition.end_locks(30_000) == [StateBatch(5, 9, AVAILABLE, 1)]
    assert partition.next_deadline_ms() == 50_000


def test_renewal_may_be_disabled() -> None:
    partition = share_partition(limits=GroupLimits(is_renew_enabled=False))
    acquire(partition, LOG)
    with pytest.raises(KafkaError):
        acknowledge(partition, 0, 9, RENEW)


def test_the_last_delivery() -> None:
    partition = share_partition(0, [StateBatch(0, 0, AVAILABLE, 4)])
    assert acquire(partition, log_batches(1)) == [(0, 0, 5)]
    acknowledge(partition, 0, 0, RELEASE)
    assert partition.window.start_offset == 1


def test_a_closed_session_releases_its_records() -> None:
    partition = share_partition()
    acquire(partition, log_batches(5))
    acquire(partition, log_batches(5, 5), member="other")
    transition = partition.release("m")
    assert transition.batches == [StateBatch(0, 4, AVAILABLE, 1)]
    partition.commit(transition)
    assert partition.next_fetch_offset() == 0


def test_what_is_stored() -> None:
    partition = share_partition()
    acquire(partition, LOG)
    transition = partition.acknowledge("m", [Acknowledgement(2, 5, [1, 1, 2, 1])], 0)
    update = partition.update(transition.batches)
    assert (update.state_epoch, update.leader_epoch, update.start_offset) == (0, 1, 0)
    assert update.delivery_complete_count == 3
    assert update.batches == ((2, 3, 2, 1), (4, 4, 0, 1), (5, 5, 2, 1))


def test_adjacent_batches_are_stored_as_one() -> None:
    rows = [StateBatch(0, 1, 2, 1), StateBatch(2, 2, 2, 1), StateBatch(4, 4, 2, 1)]
    assert list(merged(rows)) == [(0, 2, 2, 1), (4, 4, 2, 1)]
    assert list(merged([])) == []


def test_a_rollback_after_the_last_lock_makes_room() -> None:
    """Nothing else would move the start offset: all records are in flight."""
    limits = GroupLimits(max_in_flight_records=1, max_delivery_count=1, lock_duration_ms=100)
    partition = share_partition(limits=limits)
    acquire(partition, log_batches(1))
    transition = partition.acknowledge("m", [Acknowledgement(0, 0, [RELEASE])], 0)
    partition.rollback(transition, 100)
    assert partition.can_acquire()
    assert partition.next_fetch_offset() == 1
