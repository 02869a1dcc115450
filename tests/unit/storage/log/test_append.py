"""Appends off the fast path: batches, producers, markers, leader epochs and `flush.messages`."""

import errno

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.errors import (
    DiskFull,
    InvalidTransactionState,
    LogClosed,
    LogDirectoryOffline,
    OutOfOrderSequence,
)
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.records.validation import validate_records
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    append,
    batch_of,
    fetched,
    marker,
    new_log,
    plain,
)


def part(producer_id: int, sequence: int, count: int = 1) -> bytearray:
    return batch_of(count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def test_several_batches_are_one_append() -> None:
    log = new_log(index_interval_bytes=0)
    info = log.append(
        batch_of(plain(2, NOW_MS + 50)) + batch_of(plain(3, NOW_MS)), leader_epoch=1, now_ms=NOW_MS
    )
    assert (info.first_offset, info.last_offset, info.max_timestamp) == (0, 4, NOW_MS + 51)
    assert [r.offset for r in fetched(log)] == [0, 1, 2, 3, 4]
    assert [log.local.active.offset_index.entry(n)[0] for n in range(1)] == [4]


def test_batches_of_one_append_are_checked_against_each_other() -> None:
    log = new_log()
    log.append(part(7, 0), leader_epoch=0, now_ms=NOW_MS)
    with pytest.raises(OutOfOrderSequence):
        log.append(part(7, 1, 2) + part(7, 4), leader_epoch=0, now_ms=NOW_MS)
    assert log.log_end_offset == 1
    assert log.producer_state.producers[7].last_sequence == 0
    log.append(part(7, 1, 2) + part(8, 5) + part(7, 3), leader_epoch=0, now_ms=NOW_MS)
    assert log.producer_state.producers[7].last_sequence == 3
    assert log.producer_state.producers[8].last_sequence == 5


def test_sequence_numbers_wrap_around_in_a_log() -> None:
    log = new_log()
    top = 0x7FFFFFFF
    log.append(part(7, top - 2, 2), leader_epoch=0, now_ms=NOW_MS)
    log.append(part(7, top, 3), leader_epoch=0, now_ms=NOW_MS)
    assert log.producer_state.producers[7].last_sequence == 1
    log.append(part(7, 2), leader_epoch=0, now_ms=NOW_MS)
    assert log.append(part(7, top, 3), leader_epoch=0, now_ms=NOW_MS).duplicate


def test_a_marker_for_a_producer_that_is_not_known() -> None:
    log = new_log()
    info = log.append(
        marker(9, committed=False, epoch=3),
        leader_epoch=0,
        now_ms=NOW_MS,
        origin=AppendOrigin.COORDINATOR,
    )
    assert info.first_offset == 0
    assert log.producer_state.producers[9].epoch == 3
    assert log.local.active.txn_index.entries() == []


def test_epochs_of_the_leader_are_noted_at_their_first_offset() -> None:
    log = new_log()
    for epoch, count in ((2, 3), (2, 1), (5, 2)):
        log.append(batch_of(count), leader_epoch=epoch, now_ms=NOW_MS)
    assert log.leader_epochs.entries == [(2, 0), (5, 4)]
    assert log.end_offset_for_epoch(2) == (2, 4)
    assert log.end_offset_for_epoch(5) == (5, 6)
    log.assign_epoch(7, log.log_end_offset)
    assert log.end_offset_for_epoch(6) == (5, 6)
    log.append(batch_of(1), leader_epoch=7, now_ms=NOW_MS)
    assert log.leader_epochs.entries[-1] == (7, 6)


def test_no_epoch_is_no_epoch() -> None:
    log = new_log()
    log.append(batch_of(1), leader_epoch=-1, now_ms=NOW_MS)
    assert len(log.leader_epochs) == 0


def test_recompressed_batches_are_counted_as_written() -> None:
    log = new_log(compression_type="gzip")
    info = append(log, plain(50))
    assert info.bytes == log.local.size_in_bytes < len(batch_of(plain(50)))


def test_a_batch_without_producer_does_not_hide_those_behind_it() -> None:
    log = new_log()
    log.append(batch_of(1) + part(7, 0, 2), leader_epoch=0, now_ms=NOW_MS)
    assert log.producer_state.producers[7].last_sequence == 1
    with pytest.raises(OutOfOrderSequence):
        log.append(batch_of(1) + part(7, 5), leader_epoch=0, now_ms=NOW_MS)


def test_several_batches_are_refused_on_a_full_disk() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log)
    fs.fail("pwrite", errno.ENOSPC)
    with pytest.raises(DiskFull):
        append(log)
    # It stays full until the next check, though there may be room again.
    for data in (batch_of(1), batch_of(1) + batch_of(1)):
        with pytest.raises(DiskFull):
            log.append(data, leader_epoch=0, now_ms=NOW_MS)
    assert log.log_end_offset == 1


def test_batches_that_were_validated_before() -> None:
    log = new_log()
    validated = validate_records(batch_of(3), LogConfig(), AppendOrigin.CLIENT, NOW_MS)
    info = log.append_validated(validated, leader_epoch=2, now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset) == (0, 2)
    log.local.release()
    with pytest.raises(LogClosed):
        log.append_validated(validated, leader_epoch=2, now_ms=NOW_MS)


def test_a_duplicate_flushes_only_what_should_have_been_flushed() -> None:
    log = new_log(flush_messages=3)
    for sequence in range(4):
        log.append(part(7, sequence), leader_epoch=0, now_ms=NOW_MS)
    assert log.recovery_point == 3
    assert log.append(part(7, 3), leader_epoch=0, now_ms=NOW_MS).duplicate
    assert log.recovery_point == 3


def test_an_aborted_transaction_is_in_the_index_of_the_segment_of_its_marker() -> None:
    data = batch_of(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log = new_log(segment_bytes=len(data))
    log.append(data, leader_epoch=0, now_ms=NOW_MS)
    abort = marker(7, committed=False)
    log.append(abort, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert [len(segment.txn_index.entries()) for segment in log.segments] == [0, 1]


def test_an_index_entry_that_cannot_be_removed_takes_the_directory_offline() -> None:
    """A marker that was not written must not have one."""
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    fs.fail("pwrite", errno.ENOSPC, path_part=".log")
    fs.fail("remove", errno.EIO, path_part=".txnindex")
    abort = marker(7, committed=False)
    with pytest.raises((DiskFull, LogDirectoryOffline)):
        log.append(abort, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert log.log_directory.is_offline


def test_a_marker_needs_no_verification() -> None:
    """It may come when the transaction has no records here."""
    log = new_log()
    log.verifications.enabled = True
    data = batch_of(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    with pytest.raises(InvalidTransactionState):
        log.append(data, leader_epoch=0, now_ms=NOW_MS)
    abort = marker(7, committed=False)
    log.append(abort, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert log.log_end_offset == 1


def test_a_new_leader_epoch_begins_where_its_first_batch_is() -> None:
    log = new_log()
    for epoch in (0, 0, 4):
        log.append(batch_of(2), leader_epoch=epoch, now_ms=NOW_MS)
    assert log.leader_epochs.entries == [(0, 0), (4, 4)]


def test_an_unknown_leader_epoch_is_not_assigned() -> None:
    log = new_log()
    log.assign_epoch(-1, 0)
    assert log.leader_epochs.entries == []


def test_an_epoch_that_cannot_be_written_takes_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    fs.fail("open", errno.EIO, path_part="leader-epoch-checkpoint")
    with pytest.raises(LogDirectoryOffline):
        log.append(batch_of(), leader_epoch=1, now_ms=NOW_MS)
    assert log.log_end_offset == 0


def test_flush_messages_limits_what_is_not_on_disk() -> None:
    log = new_log(flush_messages=4)
    points = []
    for _ in range(4):
        append(log, 2)
        points.append(log.recovery_point)
    assert points == [0, 4, 4, 8]
    both = batch_of(3) + batch_of(3)
    log.append(both, leader_epoch=0, now_ms=NOW_MS)
    assert log.recovery_point == 14
