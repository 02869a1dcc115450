from ottla.broker.share.acquisition import FetchedBatch, GroupLimits, aborted_batches
from ottla.broker.share.persister import RecordState, StateBatch
from tests.unit.broker.share.helpers import acquire, log_batches, share_partition, states

AVAILABLE = RecordState.AVAILABLE


def test_whole_record_batches_beyond_the_limit() -> None:
    partition = share_partition()
    assert acquire(partition, log_batches(10, 10, 10), max_records=12) == [(0, 19, 1)]
    assert acquire(partition, log_batches(10, 10, 10), member="other") == [(20, 29, 1)]


def test_the_record_limit_is_exact() -> None:
    partition = share_partition()
    log = log_batches(10, 10)
    assert acquire(partition, log, max_records=4, is_record_limit=True) == [(0, 3, 1)]
    assert acquire(partition, log, max_records=8, is_record_limit=True) == [(4, 11, 1)]


def test_acquired_batches_of_the_preferred_size() -> None:
    partition = share_partition()
    assert acquire(partition, log_batches(4, 4, 4, 4), batch_size=6) == [(0, 7, 1), (8, 15, 1)]


def test_no_more_than_the_records_in_flight_allow() -> None:
    partition = share_partition(limits=GroupLimits(max_in_flight_records=15))
    log = log_batches(10, 10, 10)
    assert acquire(partition, log) == [(0, 19, 1)]
    assert not partition.can_acquire()
    assert acquire(partition, log) == []


def test_records_released_between_others_need_no_room() -> None:
    stored = [StateBatch(5, 9, RecordState.ACKNOWLEDGED, 1)]
    limits = GroupLimits(max_in_flight_records=10)
    partition = share_partition(0, stored, limits)
    assert acquire(partition, log_batches(20)) == [(0, 4, 1)]


def test_offsets_that_the_stored_state_does_not_mention() -> None:
    partition = share_partition(0, [StateBatch(5, 9, RecordState.ACKNOWLEDGED, 1)])
    assert acquire(partition, log_batches(20)) == [(0, 4, 1), (10, 19, 1)]


def test_a_start_offset_within_a_record_batch() -> None:
    assert acquire(share_partition(5), log_batches(10)) == [(5, 9, 1)]


def test_offsets_that_compaction_removed_at_the_start() -> None:
    partition = share_partition()
    assert acquire(partition, [FetchedBatch(7, 9)]) == [(7, 9, 1)]
    assert partition.window.start_offset == 7


def test_records_that_were_delivered_often_come_in_smaller_batches() -> None:
    partition = share_partition(0, [StateBatch(0, 15, AVAILABLE, 3), StateBatch(16, 19, 0, 1)])
    log = log_batches(20)
    assert acquire(partition, log) == [(0, 7, 4)]
    again = share_partition(0, [StateBatch(0, 15, AVAILABLE, 4)])
    assert acquire(again, log) == [(0, 0, 5)]  # the last attempt: alone
    behind = share_partition(0, [StateBatch(0, 3, AVAILABLE, 1), StateBatch(4, 9, AVAILABLE, 4)])
    assert acquire(behind, log) == [(0, 3, 2)]


def test_records_of_aborted_transactions_are_archived() -> None:
    log = [FetchedBatch(0, 4, 7), FetchedBatch(5, 9, 8), FetchedBatch(10, 10, 7, True)]
    partition = share_partition()
    assert acquire(partition, log, aborted=[(7, 0)]) == [(5, 10, 1)]
    assert partition.window.start_offset == 5
    assert states(partition) == [(5, 10, RecordState.ACQUIRED, 1)]


def test_a_transaction_that_follows_an_aborted_one_is_delivered() -> None:
    log = [FetchedBatch(0, 4, 7), FetchedBatch(5, 5, 7, True), FetchedBatch(6, 9, 7)]
    assert aborted_batches(log, [(7, 0)]) == log[:1]
