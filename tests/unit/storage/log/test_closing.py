"""Many logs closed together."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ottla.broker.runtime.tasks import run_in_threads
from ottla.storage.directories.log_manager import LogManager
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, fetched, manager_on


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
    assert all(log.is_closed for log in manager.logs())
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
    assert all(log.is_closed for log in logs)
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
    assert all(each.is_closed for each in manager.logs())
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
