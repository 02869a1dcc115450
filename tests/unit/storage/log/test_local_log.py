"""The segments of a log on disk: rolling, retiring, and failed writes."""

import errno
import logging

import pytest

from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.errors import DiskFull, LogClosed, LogDirectoryOffline
from ottla.storage.log.local_log import LocalLog
from tests.doubles.compactions import next_compaction
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, batch_of, manager_on, new_log


def test_rolling_is_logged_and_leaves_a_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    log = new_log()
    append(log, producer_id=7, producer_epoch=0, base_sequence=0)
    # At DEBUG: with thousands of partitions several segments are rolled each second.
    with caplog.at_level(logging.DEBUG, "ottla.storage"):
        segment = log.local.roll(NOW_MS, 1)
    assert not [each for each in caplog.records if each.levelno > logging.DEBUG]
    assert log.local.active is log.segments.active is segment
    assert log.producer_state.snapshots == [1]
    assert "t-0: Rolled new log segment at offset 1" in caplog.messages


def test_the_limits_tell_when_a_closer_look_is_needed() -> None:
    log = new_log(segment_bytes=1000, segment_ms=500)
    local = log.local
    assert (local.roll_bytes, local.roll_offset, local.roll_timestamp) == (1000, 2**31 - 1, -1)
    append(log, [(NOW_MS, None, b"", [])])
    assert not local.must_roll(100, NOW_MS, 1, NOW_MS)
    assert local.roll_timestamp == NOW_MS + 500
    assert local.must_roll(100, NOW_MS + 501, 1, NOW_MS)
    assert local.must_roll(1000, NOW_MS, 1, NOW_MS)


def test_retired_segments_are_renamed_and_deleted_when_due() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_bytes=100)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(3):
        append(log, producer_id=7, producer_epoch=0, base_sequence=number)
    assert log.segments.base_offsets == [0, 1, 2]
    log.local.retire_segments(list(log.segments)[:2], NOW_MS + 10)
    assert log.segments.base_offsets == [2]
    assert log.producer_state.snapshots == [2]
    manager.purge(NOW_MS + 9)
    assert any(path.endswith(".deleted") for path in fs.paths())
    manager.purge(NOW_MS + 10)
    assert not any(path.endswith(".deleted") for path in fs.paths())


def failed(error_number: int) -> tuple[MemoryFileSystem, LocalLog]:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log)
    fs.fail("pwrite", error_number)
    with pytest.raises((DiskFull, LogDirectoryOffline)):
        log.append(batch_of(), leader_epoch=0, now_ms=NOW_MS)
    return fs, log.local


def test_a_full_disk_leaves_no_partial_batch_behind() -> None:
    fs, local = failed(errno.ENOSPC)
    assert len(fs.content(local.active.log.path)) == local.active.size
    with pytest.raises(DiskFull):
        local.check_writable()
    local.check_writable(even_if_full=True)


def test_a_failed_disk_takes_the_directory_offline() -> None:
    _, local = failed(errno.EIO)
    with pytest.raises(LogDirectoryOffline):
        local.check_writable(even_if_full=True)


def test_a_released_log_takes_no_more_records() -> None:
    log = new_log()
    log.local.release()
    with pytest.raises(LogClosed, match="t-0 is closed"):
        log.local.check_writable()


def test_the_active_segment_of_a_compacted_log_rolls_after_the_max_compaction_lag() -> None:
    def bases(**settings: object) -> list[int]:
        log = new_log(segment_ms=10_000, max_compaction_lag_ms=500, **settings)
        for age_ms in (0, 500, 501):
            append(log, [(NOW_MS + age_ms, b"k", b"", [])])
        return log.segments.base_offsets

    assert bases(cleanup_policy=("compact",)) == [0, 2]
    assert bases(cleanup_policy=("compact", "delete")) == [0, 2]
    assert bases(cleanup_policy=("delete",)) == [0], "the lag means nothing without compaction"
    assert bases(cleanup_policy=("compact",), segment_jitter_ms=9_999)[0] == 0


def test_a_record_older_than_the_max_compaction_lag_becomes_compactable() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, cleanup_policy=("compact",), max_compaction_lag_ms=500)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(3):
        append(log, [(NOW_MS + number * 400, b"k", b"", [])])
    log.flush()
    compaction = next_compaction(Cleaner(manager.logs), NOW_MS + 1000)
    assert compaction is not None
    assert compaction.log is log
