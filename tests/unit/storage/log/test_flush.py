"""A flush syncs everything that a restart after a power failure needs."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ottla.broker.runtime.tasks import run_in_threads
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import LogDirectoryOffline
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    append,
    batch_of,
    end_transaction,
    fetched,
    manager_on,
    new_log,
)

LOG, INDEX, TIME_INDEX = (f"{0:019d}{suffix}" for suffix in (".log", ".index", ".timeindex"))


def test_after_a_power_failure_everything_flushed_is_there() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_bytes=600, index_interval_bytes=100)
    log = manager.get_or_create("t", 0, topic_id=b"i" * 16, now_ms=NOW_MS)
    for number in range(20):
        append(
            log, producer_id=7, producer_epoch=0, base_sequence=number, transactional=number > 10
        )
    end_transaction(log, 7, committed=False)
    log.flusher.flush()
    manager.checkpoint_all()
    append(log)
    before = fetched(log)[:-1]
    again = manager_on(fs.after_power_failure(), segment_bytes=600).get("t", 0)
    assert again is not None
    assert fetched(again) == before
    assert again.topic_id == b"i" * 16
    assert again.leader_epochs.entries == [(0, 0)]
    assert [e for s in again.segments for e in s.txn_index.entries()] == [
        e for s in log.segments for e in s.txn_index.entries()
    ]
    assert again.producer_state.producers[7].last_sequence == 19


def test_only_segments_above_the_recovery_point_are_synced() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=300)
    for _ in range(10):
        append(log)
    log.flusher.flush()
    for _ in range(3):
        append(log)
    fs.calls.clear()
    log.flusher.flush()
    synced = {path for operation, path in fs.calls if operation == "sync" and ".log" in path}
    assert synced <= {segment.log.path for segment in log.segments.from_offset(10)}


def test_files_that_went_meanwhile_do_not_matter() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=300)
    for number in range(10):
        append(log, producer_id=7, producer_epoch=0, base_sequence=number)
    flush = log.flusher.begin_flush()
    assert flush is not None
    fs.replace(log.path, "/disk/elsewhere")
    flush.run()
    assert flush.error is None


@pytest.mark.parametrize("when", ["before the flush", "while it runs"])
def test_the_directory_is_renamed_meanwhile(when: str) -> None:
    """At the end of a move between log directories: nothing would read the files again after a
    power failure, because they are below the recovery point."""
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, committed=False)
    flush = log.flusher.begin_flush()
    assert flush is not None
    path = f"{log.path}-moved"
    fs.replace(log.path, path)
    fs.sync_directory("/disk")
    if when == "before the flush":
        log.move_to(path)
        flush.run()
    else:
        flush.run()
        log.move_to(path)
    log.flusher.finish_flush(flush, NOW_MS)
    assert log.recovery_point == 2
    (segment,) = log.segments
    assert segment.txn_index.path.startswith(path)
    after = fs.after_power_failure()
    for file in (segment.log.path, segment.txn_index.path):
        assert after.content(file) == fs.content(file)


def test_an_error_is_kept_for_the_owner() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log)
    flush = log.flusher.begin_flush()
    assert flush is not None
    fs.fail("sync", errno.EIO)
    flush.run()
    assert flush.error is not None
    assert flush.error.errno == errno.EIO


def test_a_truncation_meanwhile_does_not_move_the_recovery_point_behind_the_end() -> None:
    log = new_log()
    append(log)
    append(log)
    flush = log.flusher.begin_flush()
    assert flush is not None
    log.offsets.high_watermark = 0
    log.truncator.truncate_to(1)
    flush.run()
    log.flusher.finish_flush(flush, NOW_MS)
    assert log.recovery_point == 1


def test_a_truncation_meanwhile_leaves_what_was_written_after_it_unflushed() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for _ in range(10):
        log.append(batch_of(), leader_epoch=0, now_ms=NOW_MS)
    flush = log.flusher.begin_flush()
    assert flush is not None
    flush.run()
    log.truncator.truncate_to(5)
    for _ in range(6):
        log.append(batch_of(), leader_epoch=1, now_ms=NOW_MS)
    log.flusher.finish_flush(flush, NOW_MS)
    assert log.recovery_point == 5
    manager.checkpoint_all()
    again = manager_on(fs.after_kill()).get("t", 0)
    assert again is not None
    assert fetched(again) == fetched(log)
    log.flusher.flush()
    assert log.recovery_point == 11


def test_starting_again_meanwhile_leaves_what_was_written_after_it_unflushed() -> None:
    log = new_log()
    append(log, 10)
    flush = log.flusher.begin_flush()
    assert flush is not None
    flush.run()
    log.truncator.truncate_fully_and_start_at(3)
    append(log, 10)
    log.flusher.finish_flush(flush, NOW_MS)
    assert log.recovery_point == 3


def syncs(fs: MemoryFileSystem, log: Log) -> list[str]:
    """What a flush of the log syncs, by the ends of the names."""
    fs.calls.clear()
    log.flusher.flush()
    found = [each for each in fs.calls if each[0] in ("sync", "sync_directory")]
    return sorted(path.removeprefix(log.path).rpartition("/0")[2] for _, path in found)


def test_a_flush_syncs_only_what_was_changed_since_the_last_one() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, index_interval_bytes=200)
    log = manager.get_or_create("t", 0, topic_id=b"i" * 16, now_ms=NOW_MS)
    append(log)
    assert len(syncs(fs, log)) == 6, "with the epochs, partition.metadata and the directory"
    append(log)
    assert syncs(fs, log) == [LOG]
    append(log)
    append(log)
    assert syncs(fs, log) == [INDEX, LOG, TIME_INDEX], "the indexes have an entry now"
    append(log)
    log.assign_epoch(3, log.log_end_offset)
    assert syncs(fs, log) == ["", "/leader-epoch-checkpoint", LOG]
    log.append(batch_of(), leader_epoch=3, now_ms=NOW_MS)
    assert syncs(fs, log) == [LOG]


def test_the_files_of_a_new_segment_and_their_names_are_synced() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0)
    log.flusher.flush()
    log.roll(NOW_MS)
    append(log, producer_id=7, producer_epoch=0, base_sequence=1)
    one = LOG[:-5] + "1"
    names = [f"{one}.index", f"{one}.log", f"{one}.snapshot", f"{one}.timeindex"]
    assert syncs(fs, log) == ["", *names]
    append(log)
    assert syncs(fs, log) == [f"{one}.log"]


def test_an_aborted_transaction_is_synced_once_and_again_when_it_is_truncated() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log)
    log.flusher.flush()
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, committed=False)
    aborted = LOG.replace(".log", ".txnindex")
    assert syncs(fs, log) == ["", LOG, aborted]
    append(log)
    assert syncs(fs, log) == [LOG]
    log.offsets.high_watermark = 0
    log.truncator.truncate_to(1)
    append(log)
    assert syncs(fs, log) == ["", LOG], "the index is gone"


def test_removed_segments_do_not_come_back_after_a_power_failure() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_bytes=300)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log)
    append(log)
    append(log)
    append(log)
    log.flusher.flush()
    assert len(log.segments) > 1
    log.offsets.high_watermark = 0
    log.truncator.truncate_to(1)
    append(log)
    log.flusher.flush()
    manager.checkpoint_all()
    again = manager_on(fs.after_power_failure(), segment_bytes=300).get("t", 0)
    assert again is not None
    assert again.log_end_offset == 2


def test_what_was_changed_during_a_flush_is_synced_by_the_next_one() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, index_interval_bytes=0)
    append(log, 3)
    append(log, 3)
    flush = log.flusher.begin_flush()
    assert flush is not None
    flush.run()
    log.offsets.high_watermark = 0
    log.truncator.truncate_to(3)
    log.flusher.finish_flush(flush, NOW_MS)
    append(log)
    assert INDEX in syncs(fs, log)


def test_a_log_that_moved_during_a_flush_is_synced_whole_by_the_next_one() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log)
    flush = log.flusher.begin_flush()
    assert flush is not None
    fs.replace(log.path, "/disk/elsewhere")
    flush.run()
    log.move_to("/disk/elsewhere")
    log.flusher.finish_flush(flush, NOW_MS)
    append(log)
    # There is no partition.metadata.
    assert len(syncs(fs, log)) == 5


def test_what_an_earlier_process_has_not_synced_is_synced() -> None:
    fs = MemoryFileSystem()
    append(manager_on(fs).get_or_create("t", 0, now_ms=NOW_MS), 3)
    again = manager_on(fs).get("t", 0)
    assert again is not None
    append(again)
    again.flusher.flush()
    after = fs.after_power_failure()
    segment = again.local.active
    for path in (*segment.paths()[:3], again.leader_epochs.path):
        assert after.content(path) == fs.content(path)


def test_a_flush_that_has_not_run_is_not_a_success() -> None:
    log = new_log()
    append(log)
    flush = log.flusher.begin_flush()
    assert flush is not None
    with pytest.raises(LogDirectoryOffline):
        log.flusher.finish_flush(flush, NOW_MS)
    assert log.recovery_point == 0


def test_they_are_synced_in_threads_a_few_at_a_time(tmp_path: Path) -> None:
    manager = LogManager([tmp_path])
    manager.load(NOW_MS)
    for partition in range(150):
        append(manager.get_or_create("t", partition, now_ms=NOW_MS), 2)
    sizes = []

    def run_all(jobs: Sequence[Callable[[], None]]) -> None:
        sizes.append(len(jobs))
        run_in_threads(jobs)

    manager.shutdown(NOW_MS, run_all=run_all)
    assert sizes == [64, 64, 22]
    assert all(log.local.closed for log in manager.logs())
    again = LogManager([tmp_path])
    again.load(NOW_MS)
    assert [log.recovery_point for log in again.logs()] == [2] * 150
    again.shutdown(NOW_MS)


def test_one_that_cannot_be_written_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = tmp_path / "one", tmp_path / "two"
    manager = LogManager(paths)
    manager.load(NOW_MS)
    logs = [manager.get_or_create("t", partition, now_ms=NOW_MS) for partition in range(4)]
    for log in logs:
        append(log, 2)
    (paths[0] / "t-0").rename(paths[0] / "away")  # its snapshot has nowhere to go
    manager.shutdown(NOW_MS, run_all=run_in_threads)
    assert "t-0: Could not close the log" in caplog.text
    assert all(log.local.closed for log in logs)
    assert not (paths[0] / ".kafka_cleanshutdown").exists()
    assert (paths[1] / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("segment", [0, -1])
def test_a_segment_that_is_damaged_does_not_stop_the_others(segment: int) -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"), segment_bytes=300)
    for partition in range(4):
        for _ in range(10):
            append(manager.get_or_create("t", partition, now_ms=NOW_MS), 2)
    manager.shutdown(NOW_MS)
    fs = fs.after_kill()
    manager = manager_on(fs, ("/a", "/b"), segment_bytes=300)
    log = manager.logs()[0]
    damaged = list(log.segments)[segment]
    content = fs.content(damaged.log.path)
    fs.overwrite(damaged.log.path, content[: -damaged.size // 2] + bytes(damaged.size // 2))
    manager.shutdown(NOW_MS)
    assert all(each.local.closed for each in manager.logs())
    again = manager_on(fs.after_kill(), ("/a", "/b"), segment_bytes=300)
    assert not again.unclean_start
    assert [len(fetched(each)) for each in again.logs() if each.name != log.name] == [20] * 3


def shut_down(fs: MemoryFileSystem, operation: str, code: int, path_part: str) -> LogManager:
    """Closes two logs in each of two directories while a call fails, and starts again."""
    manager = manager_on(fs, ("/a", "/b"), index_interval_bytes=0)
    for partition in range(4):
        log = manager.get_or_create("t", partition, now_ms=NOW_MS)
        for sequence in (0, 3):
            append(log, 3, producer_id=7, producer_epoch=0, base_sequence=sequence)
    manager.checkpoint_all()
    fault = fs.fail(operation, code, path_part=path_part)
    manager.shutdown(NOW_MS)
    assert fault.times == 0, "it was hit"
    assert manager.offline_directories == []
    assert fs.exists("/b/.kafka_cleanshutdown")
    return manager_on(fs.after_kill(), ("/a", "/b"))


def recovery_points(manager: LogManager) -> dict[str, int]:
    return {log.name: log.recovery_point for log in manager.logs()}


def test_a_directory_with_a_log_that_was_not_synced_is_not_clean() -> None:
    """Else the next start takes records for synced that a power failure may damage."""
    again = shut_down(MemoryFileSystem(), "open", errno.EMFILE, "/a/t-0/leader-epoch-checkpoint")
    assert again.unclean_start
    assert recovery_points(again) == {"t-0": 0, "t-1": 6, "t-2": 6, "t-3": 6}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_log_is_closed_without_a_snapshot_if_space_or_descriptors_lack(code: int) -> None:
    again = shut_down(MemoryFileSystem(), "open", code, ".snapshot.tmp")
    assert not again.unclean_start
    assert recovery_points(again) == dict.fromkeys(("t-0", "t-1", "t-2", "t-3"), 6)
    assert [log.producer_state.producers[7].last_sequence for log in again.logs()] == [5] * 4


@pytest.mark.parametrize(
    ("operation", "path_part"), [("pwrite", "/a/t-0/"), ("open", "/a/.kafka_cleanshutdown")]
)
def test_a_full_disk_is_not_clean_but_no_failed_disk(operation: str, path_part: str) -> None:
    again = shut_down(MemoryFileSystem(), operation, errno.ENOSPC, path_part)
    assert again.unclean_start
    points = recovery_points(again)
    assert [points[name] for name in ("t-1", "t-2", "t-3")] == [6] * 3, "they are closed"
