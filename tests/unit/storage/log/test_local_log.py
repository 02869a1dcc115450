"""The segments of a log on disk: rolling, retiring, and failed writes."""

import errno
import logging
from typing import cast

import pytest

from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.config import LogConfig
from ottla.storage.errors import DiskFull, LogClosed, LogDirectoryOffline
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.log.local_log import LocalLog, PartitionDirectory, SegmentList
from ottla.storage.log.segment import Segment
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
    log.flusher.flush()
    compaction = next_compaction(Cleaner(manager.logs), NOW_MS + 1000)
    assert compaction is not None
    assert compaction.log is log


class Fake:
    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset


def listed(*bases: int) -> tuple[SegmentList, dict[int, Segment]]:
    segments = SegmentList()
    by_base = {base: cast(Segment, Fake(base)) for base in bases}
    for segment in by_base.values():
        segments.add(segment)
    return segments, by_base


def test_they_are_kept_in_order() -> None:
    segments, by = listed(50, 0, 20)
    assert segments.base_offsets == [0, 20, 50]
    assert len(segments) == 3
    assert (segments.first, segments.active) == (by[0], by[50])
    assert list(segments) == [by[0], by[20], by[50]]


def test_finding() -> None:
    segments, by = listed(10, 20, 50)
    assert segments.floor(9) is None
    assert segments.floor(10) is by[10]
    assert segments.floor(49) is by[20]
    assert segments.floor(1000) is by[50]
    assert segments.after(by[10]) is by[20]
    assert segments.after(by[50]) is None
    assert segments.from_offset(0) == [by[10], by[20], by[50]]
    assert segments.from_offset(25) == [by[20], by[50]]
    assert segments.between(15, 20) == [by[10]]
    assert segments.between(15, 21) == [by[10], by[20]]
    assert segments.between(20, 20) == []


def test_changing_while_iterating() -> None:
    segments, by = listed(0, 10, 20)
    for segment in segments:
        segments.remove(segment)
    assert len(segments) == 0
    assert by


def test_doubles_and_other_files_are_refused() -> None:
    segments, _ = listed(0, 10)
    with pytest.raises(ValueError, match="already"):
        segments.add(cast(Segment, Fake(10)))
    with pytest.raises(ValueError, match="not in the list"):
        segments.remove(cast(Segment, Fake(10)))
    assert len(segments.clear()) == 2
    assert len(segments) == 0


def test_the_name_is_that_of_the_partition_whatever_the_directory_is_called() -> None:
    fs = MemoryFileSystem()
    path = "/disk/t-0.abc-future"
    directory = PartitionDirectory(LogDirectory(fs, "/disk"), path, "t", 0, OpenFiles())
    assert directory.name == "t-0"
    assert directory.metadata_path == f"{path}/partition.metadata"
    directory.path = "/disk/t-0"
    assert directory.leader_epoch_path == "/disk/t-0/leader-epoch-checkpoint"
    assert repr(directory) == "PartitionDirectory(/disk/t-0)"


def test_a_segment_is_described_and_not_created() -> None:
    fs = MemoryFileSystem()
    directory = PartitionDirectory(LogDirectory(fs, "/disk"), "/disk/t-0", "t", 0, OpenFiles())
    sizes = {"00000000000000000005.log": 77}
    segment = directory.segment(5, LogConfig(), NOW_MS, sizes)
    assert (segment.base_offset, segment.size, segment.created_ms) == (5, 77, NOW_MS)
    assert directory.segment(9, LogConfig(), NOW_MS, suffix=".cleaned").size == 0
    assert fs.paths() == []
