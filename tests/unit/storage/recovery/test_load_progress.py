"""The sums of the load of all log directories."""

from __future__ import annotations

import pytest

from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.layout import segment_file_name
from ottla.storage.recovery.load_progress import LoadProgress, bytes_to_recover
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append

FILES = {
    "leader-epoch-checkpoint": 70,
    **{segment_file_name(0, suffix): size for suffix, size in ((".log", 10), (".index", 5))},
    **{segment_file_name(7, suffix): size for suffix, size in ((".log", 20), (".index", 5))},
    segment_file_name(9, ".log"): 40,
}


@pytest.mark.parametrize(
    ("recovery_point", "expected"), [(0, 70), (6, 70), (7, 60), (8, 60), (9, 40), (99, 40)]
)
def test_segments_with_offsets_at_or_above_the_recovery_point(
    recovery_point: int, expected: int
) -> None:
    assert bytes_to_recover(FILES, recovery_point) == expected


def test_a_log_without_segments() -> None:
    assert bytes_to_recover({}, 0) == 0


def test_the_total_becomes_what_was_read() -> None:
    progress = LoadProgress()
    first, second = progress.of_directory("/a"), progress.of_directory("/b")
    first.logs, first.recovery_bytes = 2, 100
    second.logs = 1
    first.add_recovered(30)
    assert (progress.recovered_bytes, progress.recovery_bytes) == (30, 100)
    first.add_loaded(80, 30)
    assert (progress.loaded_logs, progress.logs) == (1, 3)
    assert (progress.recovered_bytes, progress.recovery_bytes) == (30, 50)
    second.add_recovered(5)  # a log that was corrupt after a clean shutdown
    assert (progress.recovered_bytes, progress.recovery_bytes) == (35, 55)
    assert second.remaining_bytes == 0


def test_what_the_step_raises_ends_the_load() -> None:
    class Cancelled(Exception):
        pass

    def step() -> None:
        raise Cancelled

    progress = LoadProgress(step)
    with pytest.raises(Cancelled):
        progress.of_directory("/a").add_loaded(0, 0)


def test_a_clean_start_counts_logs_and_no_bytes() -> None:
    fs = MemoryFileSystem()
    manager = LogManager(["/a", "/b"], fs=fs)
    manager.load(NOW_MS)
    for partition in range(4):
        append(manager.get_or_create("t", partition, now_ms=NOW_MS), 3)
    manager.shutdown(NOW_MS)
    seen: list[int] = []
    progress = LoadProgress(lambda: seen.append(progress.loaded_logs))
    LogManager(["/a", "/b"], fs=fs).load(NOW_MS, progress=progress)
    assert seen == [1, 2, 3, 4]
    assert (progress.logs, progress.recovery_bytes, progress.recovered_bytes) == (4, 0, 0)
    assert [part.logs for part in progress.directories.values()] == [2, 2]
