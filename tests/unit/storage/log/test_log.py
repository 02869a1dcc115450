"""The log as the broker uses it: appends, duplicates, bounds, rolling, closing."""

import errno

import pytest

from ottla.protocol.records.batch import read_header
from ottla.protocol.records.errors import InvalidRecordError, RecordsError, RecordTooLargeError
from ottla.storage.config import LogConfig
from ottla.storage.errors import (
    BatchTooLargeForSegment,
    DiskFull,
    InvalidProducerEpoch,
    InvalidTransactionState,
    LogClosed,
    LogDirectoryOffline,
    OffsetOutOfRange,
    OutOfOrderSequence,
    UnexpectedAppendOffset,
)
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_entry import AppendOrigin
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    append,
    batch_of,
    end_transaction,
    fetched,
    manager_on,
    marker,
    new_log,
    plain,
    records_in,
)


def idempotent(log: Log, sequence: int, count: int = 1, epoch: int = 0, producer_id: int = 7):  # type: ignore[no-untyped-def]  # AppendInfo
    return append(log, count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_appends_get_consecutive_offsets_and_the_leader_epoch() -> None:
    log = new_log()
    content = batch_of(3)
    info = log.append(content, leader_epoch=4, now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset, info.max_timestamp) == (0, 2, NOW_MS + 2)
    assert (info.bytes, info.log_append_time, info.log_start_offset) == (len(content), -1, 0)
    assert not info.duplicate
    assert read_header(content).partition_leader_epoch == 4
    assert append(log, 2).first_offset == 3
    assert log.log_end_offset == 5
    assert [r.offset for r in fetched(log)] == [0, 1, 2, 3, 4]
    assert "first_offset=3" in repr(append(log)).replace("5", "3")


def test_one_write_for_one_append() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log)
    fs.calls.clear()
    append(log, 10)
    log.append(batch_of(1) + batch_of(2), leader_epoch=0, now_ms=NOW_MS)
    assert [operation for operation, _ in fs.calls] == ["pwrite", "pwrite"]


def test_memoryviews_are_taken_too() -> None:
    log = new_log()
    whole = bytearray(b"head") + batch_of(2) + b"tail"
    info = log.append(memoryview(whole)[4:-4], leader_epoch=0, now_ms=NOW_MS)
    assert info.last_offset == 1
    assert len(records_in(log)) == 2


def test_a_duplicate_is_acknowledged_with_the_first_offsets() -> None:
    log = new_log()
    for number in range(6):
        assert idempotent(log, number * 2, 2).first_offset == number * 2
    again = idempotent(log, 4, 2)
    assert (again.first_offset, again.last_offset, again.duplicate) == (4, 5, True)
    assert (again.bytes, again.log_append_time) == (0, -1)
    assert log.log_end_offset == 12
    with pytest.raises(OutOfOrderSequence):
        idempotent(log, 0, 2)  # six batches ago: forgotten
    with pytest.raises(OutOfOrderSequence):
        idempotent(log, 13)


def test_a_duplicate_returns_when_it_was_stamped() -> None:
    log = new_log(message_timestamp_type="LogAppendTime")
    idempotent(log, 0)
    log.append(
        batch_of(1, producer_id=7, producer_epoch=0, base_sequence=1),
        leader_epoch=0,
        now_ms=NOW_MS + 9,
    )
    again = idempotent(log, 1)
    assert (again.duplicate, again.log_append_time) == (True, NOW_MS + 9)


def test_sequences_stay_in_order_through_the_plain_path() -> None:
    log = new_log()
    for number in range(20):
        idempotent(log, number)
    assert log.producer_state.producers[7].last_sequence == 19
    with pytest.raises(OutOfOrderSequence):
        idempotent(log, 21)
    assert idempotent(log, 0, epoch=1).last_offset == 20


def test_refused_bytes_change_nothing() -> None:
    log = new_log(max_message_bytes=200)
    append(log)
    with pytest.raises(RecordTooLargeError):
        append(log, plain(1, size=500))
    with pytest.raises(InvalidRecordError):
        log.append(marker(7, committed=True), leader_epoch=0, now_ms=NOW_MS)
    assert log.log_end_offset == 1
    assert append(log).first_offset == 1


def test_an_append_has_to_fit_into_a_segment() -> None:
    log = new_log(segment_bytes=300)
    with pytest.raises(BatchTooLargeForSegment) as caught:
        append(log, plain(1, size=400))
    assert caught.value.segment_bytes == 300


def test_rolling_by_size_writes_a_snapshot_and_all_files() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=300)
    for number in range(9):
        idempotent(log, number)
    bases = log.segments.base_offsets
    assert len(bases) > 2
    assert log.producer_state.snapshots == bases[1:]
    for base in bases:
        for suffix in (".log", ".index", ".timeindex"):
            assert fs.exists(f"{log.path}/{base:020d}{suffix}")


def test_rolling_by_time_and_by_a_full_index() -> None:
    log = new_log(segment_ms=100)
    append(log, [(NOW_MS, None, b"", [])])
    append(log, [(NOW_MS + 100, None, b"", [])])
    append(log, [(NOW_MS + 101, None, b"", [])])
    assert log.segments.base_offsets == [0, 2]
    log = new_log(segment_index_bytes=48, index_interval_bytes=0)
    for number in range(8):
        append(log, [(NOW_MS + number, None, b"", [])])
    assert log.segments.base_offsets == [0, 4]


def test_jitter_makes_segments_roll_early_but_the_same_each_time() -> None:
    first = new_log(segment_ms=1000, segment_jitter_ms=900)
    second = new_log(segment_ms=1000, segment_jitter_ms=900)
    assert 0 <= first.local.roll_jitter_ms <= 900
    assert first.local.roll_jitter_ms == second.local.roll_jitter_ms
    assert new_log(segment_ms=1000).local.roll_jitter_ms == 0


def test_rolling_an_empty_segment_keeps_it() -> None:
    log = new_log()
    active = log.local.active
    assert log.roll(NOW_MS + 5) is active
    append(log)
    assert log.roll(NOW_MS).base_offset == 1
    assert log.roll(NOW_MS).base_offset == 1


def test_preallocation_gives_the_room_back_when_rolled() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=1000, preallocate=True)
    append(log)
    assert fs.list_files(log.path)["00000000000000000000.log"] == 1000
    log.roll(NOW_MS)
    assert fs.list_files(log.path)["00000000000000000000.log"] == log.segments.first.size < 1000


def test_the_high_watermark_stays_inside_the_log() -> None:
    log = new_log()
    append(log, 5)
    assert log.update_high_watermark(3) == 3
    assert log.update_high_watermark(99) == 5
    assert log.update_high_watermark(-1) == 0
    log.update_high_watermark(5)
    log.truncator.delete_records_before(2)
    assert log.update_high_watermark(0) == 2


def test_delete_records_moves_the_log_start() -> None:
    log = new_log()
    for epoch in range(3):
        log.append(batch_of(2), leader_epoch=epoch, now_ms=NOW_MS)
    log.update_high_watermark(5)
    with pytest.raises(OffsetOutOfRange):
        log.truncator.delete_records_before(6)
    assert log.truncator.delete_records_before(3)
    assert not log.truncator.delete_records_before(3)
    assert (log.log_start_offset, log.recovery_point) == (3, 3)
    assert log.leader_epochs.entries == [(1, 3), (2, 4)]
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(2, 100, up_to=6)
    assert (caught.value.offset, caught.value.log_start_offset) == (2, 3)


def test_a_transaction_below_the_log_start_holds_nothing_up() -> None:
    log = new_log()
    append(log, 2, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    append(log, 4)
    assert log.last_stable_offset == 0
    log.truncator.delete_records_before(3)
    assert log.last_stable_offset == 3
    end_transaction(log, 1, committed=True)
    assert log.last_stable_offset == log.log_end_offset


# --- followers -----------------------------------------------------------------------------------


def test_a_follower_takes_offsets_and_epochs_as_they_are() -> None:
    log = new_log()
    content = batch_of(2, base_offset=0, leader_epoch=3) + batch_of(
        1, base_offset=9, leader_epoch=5
    )
    info = log.append_as_follower(bytes(content), now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset) == (0, 9)
    assert log.log_end_offset == 10
    assert log.leader_epochs.entries == [(3, 0), (5, 9)]
    with pytest.raises(UnexpectedAppendOffset) as caught:
        log.append_as_follower(batch_of(1, base_offset=9), now_ms=NOW_MS)
    assert (caught.value.first_offset, caught.value.log_end_offset) == (9, 10)
    assert log.append_as_follower(b"", now_ms=NOW_MS).first_offset == -1


def test_a_follower_splits_what_its_segments_cannot_hold() -> None:
    log = new_log(segment_bytes=300)
    content = b"".join(batch_of(1, base_offset=n) for n in range(10))
    info = log.append_as_follower(bytearray(content), now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset, info.bytes) == (0, 9, len(content))
    assert len(log.segments) > 2
    assert [r.offset for r in fetched(log)] == list(range(10))


def test_a_follower_has_the_same_producers_as_its_leader() -> None:
    leader, follower = new_log(), new_log()
    for number in range(3):
        append(leader, producer_id=7, producer_epoch=0, base_sequence=number, transactional=True)
    end_transaction(leader, 7, committed=False)
    for batch in leader.batches(0):
        follower.append_as_follower(bytearray(batch), now_ms=NOW_MS)
    assert repr(follower.producer_state.producers) == repr(leader.producer_state.producers)
    assert follower.local.active.txn_index.entries() == leader.local.active.txn_index.entries()


# --- verification of transactions ----------------------------------------------------------------


def test_a_transaction_has_to_be_verified_when_that_is_on() -> None:
    log = new_log()
    log.verifications.enabled = True
    content = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    with pytest.raises(InvalidTransactionState, match="verified"):
        append(log, **content, base_sequence=0)
    guard = log.verifications.begin(7, 0, 0, NOW_MS)
    log.append(
        batch_of(1, **content, base_sequence=0), leader_epoch=0, now_ms=NOW_MS, verification=guard
    )
    append(log, **content, base_sequence=1)  # the transaction is open: no guard needed
    end_transaction(log, 7, committed=True)
    with pytest.raises(InvalidTransactionState):
        log.append(
            batch_of(1, **content, base_sequence=2),
            leader_epoch=0,
            now_ms=NOW_MS,
            verification=guard,
        )


def test_the_next_transaction_waits_for_the_marker_of_the_last_one() -> None:
    """With transaction version 2 its epoch is higher, and its guard survives that marker."""
    log = new_log()
    log.verifications.enabled = True
    first = log.verifications.begin(7, 0, 0, NOW_MS)
    producer = {"producer_id": 7, "transactional": True, "base_sequence": 0}
    log.append(
        batch_of(1, **producer, producer_epoch=0),
        leader_epoch=0,
        now_ms=NOW_MS,
        verification=first,
    )
    with pytest.raises(InvalidTransactionState, match="verified"):
        append(log, **producer, producer_epoch=1)
    guard = log.verifications.begin(7, 1, 0, NOW_MS)
    end_transaction(log, 7, committed=True, epoch=1, origin=AppendOrigin.RAISED_MARKER)
    log.append(
        batch_of(1, **producer, producer_epoch=1),
        leader_epoch=0,
        now_ms=NOW_MS,
        verification=guard,
    )
    assert log.producer_state.open_transactions() == {2: 7}


def test_a_late_marker_does_not_end_the_next_transaction() -> None:
    """KIP-1228: it has the epoch of the open transaction; one that is only sent again does no
    harm."""
    log = new_log()
    raised = {"committed": True, "epoch": 1, "origin": AppendOrigin.RAISED_MARKER}
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, **raised)
    end_transaction(log, 7, **raised)
    append(log, producer_id=7, producer_epoch=1, base_sequence=0, transactional=True)
    with pytest.raises(InvalidProducerEpoch, match="belongs to an earlier one"):
        end_transaction(log, 7, **raised)
    assert log.producer_state.open_transactions() == {3: 7}
    end_transaction(log, 7, committed=False, epoch=2, origin=AppendOrigin.RAISED_MARKER)
    assert log.producer_state.open_transactions() == {}


# --- flushing, closing, failing disks ------------------------------------------------------------


def test_flushing_moves_the_recovery_point() -> None:
    log = new_log()
    append(log, 3)
    assert log.recovery_point == 0
    flush = log.flusher.begin_flush()
    assert flush is not None
    append(log, 2)  # while the worker syncs
    flush.run()
    log.flusher.finish_flush(flush, NOW_MS + 1)
    assert (log.recovery_point, log.flusher.last_flushed_ms) == (3, NOW_MS + 1)
    log.flusher.flush()
    assert log.recovery_point == 5
    assert log.flusher.begin_flush() is None


def test_flush_messages_makes_an_append_durable() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, flush_messages=3)
    append(log, 2)
    assert log.recovery_point == 0
    append(log, 1)
    assert log.recovery_point == 3
    assert (
        len(fs.after_power_failure().content(log.local.active.log.path)) == log.local.size_in_bytes
    )


def test_a_failed_sync_takes_the_directory_offline(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log)
    fs.fail("sync", errno.EIO)
    with pytest.raises(LogDirectoryOffline, match="Input/output"):
        log.flusher.flush()
    assert log.recovery_point == 0
    for attempt in (lambda: append(log), lambda: log.truncator.truncate_to(0), log.close):
        if attempt == log.close:
            attempt()
            continue
        with pytest.raises(LogDirectoryOffline):
            attempt()
    assert caplog.text.count("is offline") == 1, "one line for one event"


def test_a_failed_write_takes_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    fs.fail("pwrite", errno.EIO, path_part=".log")
    with pytest.raises(LogDirectoryOffline):
        append(log)
    assert log.log_end_offset == 0


def test_no_space_is_refused_and_over_when_there_is_some() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log)
    size = log.local.size_in_bytes
    used = sum(len(fs.content(path)) for path in fs.paths())
    fs.room = used + 30
    with pytest.raises(DiskFull, match="No space"):
        append(log)
    assert len(fs.content(log.local.active.log.path)) == size, "the torn write was cut off"
    with pytest.raises(DiskFull):
        append(log)
    assert len(fetched(log)) == 1, "reads go on"
    assert log.truncator.delete_records_before(1)
    fs.room = None
    log.log_directory.check_free_bytes(0)
    assert append(log).first_offset == 1


@pytest.mark.parametrize("many", [False, True])
def test_an_append_that_cannot_be_indexed_has_not_happened(many: bool) -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, index_interval_bytes=0)
    for _ in range(511):
        append(log)
    size, end = log.local.size_in_bytes, log.log_end_offset
    fs.fail("pwrite", errno.ENOSPC, path_part=".index")
    content = batch_of(1) + batch_of(2) if many else batch_of(1)
    while True:  # sooner or later a block of the index is full and has to be written
        try:
            log.append(bytearray(content), leader_epoch=0, now_ms=NOW_MS)
        except DiskFull:
            break
        size, end = log.local.size_in_bytes, log.log_end_offset
    assert (log.local.size_in_bytes, log.log_end_offset) == (size, end)
    assert len(fs.content(log.local.active.log.path)) == size
    log.log_directory.check_free_bytes(0)
    assert append(log).first_offset == end
    log.update_high_watermark(log.log_end_offset)
    assert [r.offset for r in fetched(log)] == list(range(end + 1))
    for offset in range(end + 1):
        place = log.local.active.find_batch(offset)
        assert place is not None
        assert place.base_offset <= offset <= place.last_offset


def test_coordinators_may_use_the_last_of_a_disk() -> None:
    log = new_log()
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.log_directory.mark_full("the watermark was reached")
    with pytest.raises(DiskFull):
        append(log)
    with pytest.raises(DiskFull):
        log.append_as_follower(batch_of(1, base_offset=1), now_ms=NOW_MS)
    end_transaction(log, 7, committed=True)
    log.append(batch_of(1), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)


def test_a_closed_log_takes_nothing() -> None:
    log = new_log()
    append(log)
    log.close()
    log.close()
    assert log.local.closed
    with pytest.raises(LogClosed):
        append(log)
    assert log.recovery_point == 1


def test_new_settings_count_from_the_next_append() -> None:
    log = new_log()
    append(log)
    log.update_config(LogConfig(max_message_bytes=50))
    with pytest.raises(RecordTooLargeError):
        append(log)
    log.update_config(LogConfig(compression_type="gzip"))
    append(log, 5)
    assert read_header(bytes(next(log.batches(1)))).codec == 1


def test_the_log_knows_where_it_is() -> None:
    manager = manager_on(MemoryFileSystem())
    log = manager.get_or_create("a.b", 3, now_ms=NOW_MS)
    assert log.path == "/disk/a.b-3"
    assert (log.topic, log.partition, log.name) == ("a.b", 3, "a.b-3")
    assert repr(log) == "Log(/disk/a.b-3, 0 to 0)"


@pytest.mark.parametrize("settings", [{}, {"cleanup_policy": ("compact",)}])
def test_a_plain_batch_of_a_coordinator_is_stored_as_any_other(
    settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = []
    for is_plain in (True, False):
        if not is_plain:
            monkeypatch.setattr(Log, "_append_plain_of_coordinator", lambda *_: None)
        log = new_log(**settings)
        infos = [
            repr(log.append(batch, leader_epoch=3, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR))
            for batch in (
                batch_of(1),
                batch_of(3),
                batch_of(2, codec=1),
                batch_of(1, producer_id=5, producer_epoch=0, base_sequence=0),
                marker(5, committed=True),
                batch_of(1) + batch_of(2),
            )
        ]
        segment = log.local.active
        content = segment.log.read(0, segment.size)
        offsets = log.log_end_offset, log.leader_epochs.latest_epoch, segment.newest()
        stored.append((infos, content, offsets, log.producer_state.end_offset))
    assert stored[0] == stored[1]


@pytest.mark.parametrize("position", [8, 17, 30, 61])
def test_a_damaged_batch_of_a_coordinator_is_not_stored(position: int) -> None:
    log = new_log()
    batch = batch_of(1)
    batch[position] ^= 0x55
    with pytest.raises(RecordsError):
        log.append(batch, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert log.log_end_offset == 0
