"""Retention by time, size and log start."""

import errno

import pytest

from ottla.protocol.records.batch import patch_max_timestamp
from ottla.protocol.steps import run_at_once
from ottla.storage.config import LogConfig
from ottla.storage.errors import LogDirectoryOffline
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, batch_of, manager_on, new_log, plain

HOUR = 3_600_000


def filled(**settings: object) -> Log:
    """Ten segments of one batch, an hour apart."""
    log = new_log(**{"segment_ms": 1, "retention_ms": -1, **settings})
    for number in range(10):
        append(log, plain(2, NOW_MS + number * HOUR))
    assert len(log.segments) == 10
    return log


def test_nothing_is_deleted_without_limits() -> None:
    assert run_at_once(filled().retention.delete_old_segments(NOW_MS * 2)) == 0


def test_by_time() -> None:
    log = filled(retention_ms=HOUR)
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + 4 * HOUR)) == 3
    assert log.log_start_offset == 6
    assert log.segments.base_offsets[0] == 6


def test_by_time_the_last_segment_goes_too_and_a_new_one_begins() -> None:
    log = filled(retention_ms=0)
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + 100 * HOUR)) == 10
    assert (log.log_start_offset, log.log_end_offset) == (20, 20)
    assert log.segments.base_offsets == [20]
    assert append(log).first_offset == 20
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 0


@pytest.mark.parametrize("lie", [-1, 4_102_444_800_000], ids=["none", "2100"])
@pytest.mark.parametrize("codec", range(5))
def test_by_the_time_of_the_records_and_not_of_their_header(codec: int, lie: int) -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_ms=1, retention_ms=HOUR)
    for number in range(10):
        batch = batch_of(plain(2, NOW_MS + number * HOUR), codec=codec)
        patch_max_timestamp(batch, 0, 0, lie)
        log.append(batch, leader_epoch=0, now_ms=NOW_MS)
        log.update_high_watermark(log.log_end_offset)
    times = [segment.largest_timestamp() for segment in log.segments]
    assert times == [NOW_MS + number * HOUR + 1 for number in range(10)]
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + 4 * HOUR)) == 3
    assert log.log_start_offset == 6


def test_records_without_timestamps_are_as_old_as_their_file() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=200, retention_ms=HOUR)
    for _ in range(3):
        append(log, [(-1, None, bytes(50), [])])
    assert len(log.segments) == 3
    for number, segment in enumerate(log.segments):
        fs._live[segment.log.path].modified_ms = (5 + number) * HOUR
    assert run_at_once(log.retention.delete_old_segments(6 * HOUR)) == 0
    assert run_at_once(log.retention.delete_old_segments(6 * HOUR + 1)) == 1


def test_by_size() -> None:
    log = filled()
    one = log.segments.first.size
    log.update_config(log.config.replace(retention_bytes=4 * one))
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 6
    log.update_config(log.config.replace(retention_bytes=4 * one - 1))
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 0, (
        "less than a whole segment too much"
    )
    log.update_config(log.config.replace(retention_bytes=0))
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 4


def test_nothing_above_the_high_watermark_goes() -> None:
    log = filled(retention_ms=0)
    log.offsets.high_watermark = 5
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + 100 * HOUR)) == 2
    assert log.log_start_offset == 4


def test_what_is_below_the_log_start_goes_whatever_the_policy() -> None:
    log = filled(cleanup_policy=("compact",), retention_ms=0, retention_bytes=0)
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + 100 * HOUR)) == 0
    log.truncator.delete_records_before(5)
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 2
    assert log.segments.base_offsets[0] == 4
    assert log.log_start_offset == 5


def test_compact_and_delete_does_both() -> None:
    log = filled(cleanup_policy=("compact", "delete"), retention_ms=HOUR)
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + 4 * HOUR)) == 3


def test_files_go_after_their_delay_with_their_snapshots() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_ms=1, retention_ms=HOUR, file_delete_delay_ms=1000)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(4):
        append(log, plain(2, NOW_MS + number * HOUR))
    now = NOW_MS + 4 * HOUR
    assert run_at_once(manager.cleanup(now)) == 3
    waiting = [path for path in fs.paths() if path.endswith(".deleted")]
    assert len(waiting) == 3 * 3 + 2
    assert manager.purge(now + 999) == 0
    manager.purge(now + 1000)
    assert not [path for path in fs.paths() if path.endswith(".deleted")]
    assert log.producer_state.snapshots == [6]


def test_a_failing_disk_goes_offline_and_other_logs_go_on() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"), segment_ms=1, retention_ms=0)
    logs = [manager.get_or_create("t", p, now_ms=NOW_MS) for p in range(2)]
    for log in logs:
        append(log)
    fs.fail("replace", errno.EIO, path_part="/a/")
    assert run_at_once(manager.cleanup(NOW_MS * 2)) == 1
    assert manager.offline_directories == ["/a"]
    with pytest.raises(LogDirectoryOffline):
        run_at_once(logs[0].retention.delete_old_segments(NOW_MS))


def test_a_log_is_used_between_the_steps_of_retention() -> None:
    log = filled(retention_ms=0)
    steps = log.retention.delete_old_segments(NOW_MS + 100 * HOUR)
    next(steps)
    assert log.log_start_offset == 2
    assert [each.base_offset for each in log.segments] == list(range(2, 20, 2))
    end = log.log_end_offset
    append(log, plain(1, NOW_MS + 200 * HOUR))
    assert run_at_once(steps) == 10
    assert (log.log_start_offset, log.log_end_offset) == (end, end + 1)


def test_retention_ends_when_the_log_is_closed_or_its_disk_fails() -> None:
    log = filled(retention_ms=0)
    steps = log.retention.delete_old_segments(NOW_MS + 100 * HOUR)
    next(steps)
    log.local.release()
    assert run_at_once(steps) == 1
    failed = filled(retention_ms=0)
    steps = failed.retention.delete_old_segments(NOW_MS + 100 * HOUR)
    next(steps)
    failed.log_directory.fail(OSError("gone"))
    with pytest.raises(LogDirectoryOffline):
        next(steps)


@pytest.mark.parametrize("timestamp", [NOW_MS, -1])
def test_a_damaged_segment_expires_like_others(timestamp: int) -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_bytes=500, retention_ms=HOUR)
    for _ in range(20):
        append(manager.get_or_create("t", 0, now_ms=NOW_MS), [(timestamp, None, bytes(50), [])])
    manager.shutdown(NOW_MS)
    (log,) = manager_on(fs, segment_bytes=500, retention_ms=HOUR).logs()
    damaged = log.segments.first
    content = fs.content(damaged.log.path)
    fs.overwrite(damaged.log.path, content[:-200] + bytes(200))
    for segment in log.segments:
        fs._live[segment.log.path].modified_ms = NOW_MS
    count = len(log.segments)
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + HOUR)) == 0
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + HOUR + 1)) == count
    assert log.log_start_offset == 20


def test_a_change_of_the_settings_in_a_pause_ends_the_run() -> None:
    log = filled(retention_ms=HOUR)
    steps = log.retention.delete_old_segments(NOW_MS + 100 * HOUR)
    next(steps)
    next(steps)
    left = len(log.segments)
    log.update_config(LogConfig(segment_ms=1, retention_ms=-1))
    run_at_once(steps)
    assert len(log.segments) == left


def test_a_truncation_in_a_pause_ends_the_run() -> None:
    log = filled(retention_bytes=0)
    steps = log.retention.delete_old_segments(NOW_MS)
    next(steps)
    next(steps)
    log.truncator.truncate_to(log.log_end_offset - 4)
    left = len(log.segments)
    run_at_once(steps)
    assert len(log.segments) == left
