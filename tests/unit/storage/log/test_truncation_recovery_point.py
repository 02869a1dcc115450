"""The recovery point on disk is below every truncation, and lowered before it."""

import errno

import pytest

from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import DiskFull, ResourceExhausted
from ottla.storage.files.layout import RECOVERY_POINT_CHECKPOINT
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, batch_of, manager_on


def flushed(fs: MemoryFileSystem, **fields: object) -> tuple[LogManager, Log]:
    """Two batches of three records, with the recovery point 6."""
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 3, **fields)
    append(log, 3)
    log.flusher.flush()
    manager.checkpoint_recovery_points()
    return manager, log


def test_the_recovery_point_on_disk_is_lowered_first() -> None:
    """Else a crash after new appends would leave them unread by recovery."""
    fs = MemoryFileSystem()
    _, log = flushed(fs)
    log.truncator.truncate_to(3)
    assert fs.content(f"/disk/{RECOVERY_POINT_CHECKPOINT}") == b"0\n1\nt 0 3\n"


def test_the_recovery_point_on_disk_is_lowered_by_a_full_truncation() -> None:
    fs = MemoryFileSystem()
    _, log = flushed(fs)
    log.truncator.truncate_fully_and_start_at(2)
    assert fs.content(f"/disk/{RECOVERY_POINT_CHECKPOINT}") == b"0\n1\nt 0 2\n"


def test_the_recovery_point_is_written_only_where_it_is_lowered() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 3)
    log.flusher.flush()
    append(log, 3)
    fs.calls.clear()
    log.truncator.truncate_to(3)
    assert [path for _, path in fs.calls if RECOVERY_POINT_CHECKPOINT in path] == []


def checkpoint(fs: MemoryFileSystem) -> int:
    """That of the log."""
    lines = fs.content(f"/disk/{RECOVERY_POINT_CHECKPOINT}").splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith(b"t 0 "))


@pytest.mark.parametrize(
    "producer", [{}, {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}]
)
def test_a_preparation_lowers_the_recovery_point_on_disk(producer: dict[str, int]) -> None:
    """So that `truncate_to`, which runs on the event loop, syncs no file."""
    fs = MemoryFileSystem()
    manager, log = flushed(fs, **producer)
    (work,) = filter(None, log.truncator.prepare(4))
    work()
    assert checkpoint(fs) == 3, "the batch that holds the offset is removed as a whole"
    assert log.recovery_point == 6, "the log is used meanwhile"
    manager.checkpoint_recovery_points()
    assert checkpoint(fs) == 3
    other = manager.get_or_create("other", 0, now_ms=NOW_MS)
    append(other)
    other.flusher.flush()
    fs.calls.clear()
    log.truncator.truncate_to(4)
    assert not [path for operation, path in fs.calls if RECOVERY_POINT_CHECKPOINT in path]
    append(log, 3)
    log.flusher.flush()
    manager.checkpoint_recovery_points()
    assert checkpoint(fs) == log.recovery_point == 6


def test_a_truncation_that_is_given_up_leaves_the_recovery_point() -> None:
    fs = MemoryFileSystem()
    manager, log = flushed(fs)
    steps = log.truncator.prepare(4)
    work = next(steps)
    assert work is not None
    work()
    steps.close()
    manager.checkpoint_recovery_points()
    assert checkpoint(fs) == log.recovery_point == 6


@pytest.mark.parametrize(
    ("operation", "code", "path_part"),
    [("open", errno.EMFILE, ".log"), ("pwrite", errno.ENOSPC, "leader-epoch-checkpoint")],
)
def test_a_truncation_that_failed_does_not_keep_the_recovery_point_low(
    operation: str, code: int, path_part: str
) -> None:
    """The replica may lead then, and never truncates again."""
    fs = MemoryFileSystem()
    manager, log = flushed(fs)
    log.assign_epoch(1, 5)
    for work in log.truncator.prepare(4):
        assert work is not None
        work()
    log.local.active.log.close()  # as if evicted: it must be opened again
    fs.fail(operation, code, path_part=path_part)
    with pytest.raises((DiskFull, ResourceExhausted)):
        log.truncator.truncate_to(4)
    manager.check_free_bytes()
    append(log, 3)
    log.flusher.flush()
    manager.checkpoint_recovery_points()
    assert checkpoint(fs) == log.recovery_point == 9


def test_a_preparation_that_was_not_written_is_made_up_for() -> None:
    fs = MemoryFileSystem()
    _, log = flushed(fs)
    assert len(list(log.truncator.prepare(4))) == 1
    log.truncator.truncate_to(4)
    assert checkpoint(fs) == 3


def test_a_preparation_for_a_higher_offset_is_not_relied_upon() -> None:
    fs = MemoryFileSystem()
    _, log = flushed(fs)
    for work in log.truncator.prepare(4):
        assert work is not None
        work()
    log.truncator.truncate_to(0)
    assert checkpoint(fs) == 0


def test_nothing_is_written_above_the_recovery_point() -> None:
    fs = MemoryFileSystem()
    _, log = flushed(fs)
    append(log, 3)
    append(log, 3)
    assert list(log.truncator.prepare(9)) == []
    assert list(log.truncator.prepare(6)) == []


def test_a_segment_that_begins_above_its_base_is_prepared() -> None:
    """As compaction leaves it: the log ends at the base of the segment then."""
    fs = MemoryFileSystem()
    _, log = flushed(fs)
    log.roll(NOW_MS)
    log.append_as_follower(batch_of(base_offset=8), now_ms=NOW_MS)
    log.flusher.flush()
    (work,) = filter(None, log.truncator.prepare(6))
    work()
    fs.calls.clear()
    log.truncator.truncate_to(6)
    assert [path for _, path in fs.calls if RECOVERY_POINT_CHECKPOINT in path] == []
    assert log.log_end_offset == log.recovery_point == checkpoint(fs) == 6
