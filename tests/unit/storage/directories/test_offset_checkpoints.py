"""The offset checkpoints of the log directories."""

import errno
from collections.abc import Callable

import pytest

from ottla.storage.directories.offset_checkpoints import OffsetCheckpoints
from ottla.storage.errors import DiskFull
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, ROOT, append, manager_on


def test_each_checkpoint_has_its_offset_of_every_log() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 3, now_ms=NOW_MS)
    append(log, 5)
    log.flusher.flush()
    append(log, 2)
    log.truncator.delete_records_before(2)
    checkpoints = OffsetCheckpoints(manager.directories, {("t", 3): log})
    checkpoints.write_recovery_points()
    checkpoints.write_high_watermarks()
    checkpoints.write_log_starts()
    assert fs.content(f"{ROOT}/recovery-point-offset-checkpoint") == b"0\n1\nt 3 5\n"
    assert fs.content(f"{ROOT}/replication-offset-checkpoint") == b"0\n1\nt 3 7\n"
    assert fs.content(f"{ROOT}/log-start-offset-checkpoint") == b"0\n1\nt 3 2\n"


def test_a_log_that_starts_with_a_segment_needs_no_log_start() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    OffsetCheckpoints(manager.directories, {("t", 0): log}).write_log_starts()
    assert fs.content(f"{ROOT}/log-start-offset-checkpoint") == b"0\n0\n"


def test_only_the_directory_that_is_requested_is_written() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    logs = {(t, 0): manager.get_or_create(t, 0, now_ms=NOW_MS) for t in ("t", "u")}
    first = manager.directories.find("/a")
    OffsetCheckpoints(manager.directories, logs).write_recovery_points(first)
    assert fs.content("/a/recovery-point-offset-checkpoint") == b"0\n1\nt 0 0\n"
    assert not fs.exists("/b/recovery-point-offset-checkpoint")


def syncs(fs: MemoryFileSystem) -> int:
    """How often anything was synced since the last call."""
    found = sum(operation in ("sync", "sync_directory") for operation, _ in fs.calls)
    fs.calls.clear()
    return found


def test_a_file_that_has_the_offsets_already_is_not_written_again() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    logs = {(t, 0): manager.get_or_create(t, 0, now_ms=NOW_MS) for t in ("t", "u")}
    log = logs["t", 0]
    append(log, 5)
    log.flusher.flush()
    checkpoints = OffsetCheckpoints(manager.directories, logs)
    syncs(fs)
    checkpoints.write_recovery_points()
    for_a_file = syncs(fs) / 4  # two files in two directories
    assert for_a_file >= 1
    checkpoints.write_recovery_points()
    assert syncs(fs) == 0
    # A recovery point, and only that, in one of the directories.
    append(log, 1)
    log.flusher.flush()
    syncs(fs)
    checkpoints.write_recovery_points()
    assert syncs(fs) == for_a_file
    # A log start that does not begin a segment, and the recovery point that it raises.
    log.truncator.delete_records_before(6)
    checkpoints.write_recovery_points()
    assert syncs(fs) == 2 * for_a_file, "the leader epochs as well"
    assert fs.content(f"{log.log_directory.path}/log-start-offset-checkpoint") == b"0\n1\nt 0 6\n"


def test_a_truncation_syncs_the_recovery_points_only() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 5)
    append(log, 5)
    log.flusher.flush()
    manager.checkpoint_recovery_points()
    fs.calls.clear()
    log.truncator.truncate_to(5)
    written = {path for operation, path in fs.calls if operation == "sync"}
    assert f"{ROOT}/recovery-point-offset-checkpoint.tmp" in written
    assert f"{ROOT}/log-start-offset-checkpoint.tmp" not in written
    assert fs.content(f"{ROOT}/recovery-point-offset-checkpoint") == b"0\n1\nt 0 5\n"


def test_after_a_failure_the_file_is_written_again() -> None:
    """It may have the old offsets or the new ones."""
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    checkpoints = OffsetCheckpoints(manager.directories, {("t", 0): log})
    checkpoints.write_recovery_points()
    append(log, 5)
    log.flusher.flush()
    before = log.recovery_point
    fs.fail("sync_directory", errno.ENOSPC)
    with pytest.raises(DiskFull):
        checkpoints.write_recovery_points(log.log_directory)
    fs.heal()
    log.offsets.recovery_point = 0
    checkpoints.write_recovery_points()
    assert fs.content(f"{ROOT}/recovery-point-offset-checkpoint") == b"0\n1\nt 0 0\n"
    log.offsets.recovery_point = before


def test_a_log_that_is_created_again_has_no_offsets_of_the_earlier_one() -> None:
    """After a crash the new log would begin at the old log start, and lose its records."""
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 5)
    append(log, 2)
    log.truncator.delete_records_before(6)
    manager.checkpoint_all()
    manager.delete_async("t", 0, NOW_MS)
    append(manager.get_or_create("t", 0, now_ms=NOW_MS), 3)
    assert fs.content(f"{ROOT}/recovery-point-offset-checkpoint") == b"0\n0\n"
    (again,) = manager_on(fs.after_kill()).logs()
    assert (again.log_start_offset, again.log_end_offset) == (0, 3)


def test_an_unknown_log_costs_no_checkpoint() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    manager.get_or_create("t", 0, now_ms=NOW_MS)
    assert not fs.exists(f"{ROOT}/recovery-point-offset-checkpoint")
    manager.checkpoint_all()
    content = fs.content(f"{ROOT}/recovery-point-offset-checkpoint")
    manager.get_or_create("u", 0, now_ms=NOW_MS)
    assert fs.content(f"{ROOT}/recovery-point-offset-checkpoint") == content


def test_a_log_is_not_created_while_its_old_offsets_cannot_be_removed() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    append(manager.get_or_create("t", 0, now_ms=NOW_MS), 5)
    manager.checkpoint_all()
    manager.delete_async("t", 0, NOW_MS)
    fs.fail("pwrite", errno.ENOSPC, path_part="checkpoint")
    with pytest.raises(DiskFull):
        manager.get_or_create("t", 0, now_ms=NOW_MS)
    assert manager.get_or_create("t", 0, now_ms=NOW_MS).log_end_offset == 0


class WatchedFileSystem(MemoryFileSystem):
    """Calls `on_replace` after each rename of a file of a log: a thread may run then."""

    on_replace: Callable[[], object] | None = None

    def replace(self, source: str, target: str) -> None:
        super().replace(source, target)
        if self.on_replace is not None and "/t-0/" in source:
            self.on_replace()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_log_that_is_truncated_fully_may_have_no_segment_for_a_moment(is_damaged: bool) -> None:
    fs = WatchedFileSystem()
    manager = manager_on(fs, segment_bytes=300)
    logs = [manager.get_or_create("t", partition, now_ms=NOW_MS) for partition in range(2)]
    for log in logs:
        for _ in range(6):
            append(log, 2)
        log.flusher.flush()
        log.truncator.delete_records_before(3)
    offset = 100
    if is_damaged:
        offset = logs[0].local.active.base_offset
        fs.overwrite(logs[0].local.active.log.path, bytes(100))
        logs[0].local.active.invalidate_cached()
    fs.on_replace = manager.checkpoint_recovery_points
    logs[0].truncator.truncate_fully_and_start_at(offset)
    assert fs.content(f"{ROOT}/log-start-offset-checkpoint") == b"0\n2\nt 0 3\nt 1 3\n"
    fs.on_replace = None
    manager.checkpoint_recovery_points()
    assert fs.content(f"{ROOT}/log-start-offset-checkpoint") == b"0\n1\nt 1 3\n"


@pytest.mark.parametrize("start", [3, 7])
def test_a_log_start_survives_a_power_failure(start: int) -> None:
    """The leader epochs, which confirm it, are on disk before it is; also at the log end."""
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 3)
    append(log, 4)
    log.flusher.flush()
    log.truncator.delete_records_before(start)
    manager.checkpoint_log_starts()
    fs.calls.clear()
    manager.checkpoint_log_starts()
    assert not [path for operation, path in fs.calls if operation == "sync"]
    for _ in range(3):
        fs = fs.after_power_failure()
        again = manager_on(fs).get("t", 0)
        assert again is not None
        assert (again.log_start_offset, again.log_end_offset) == (start, 7)


@pytest.mark.parametrize("code", [errno.ELOOP, errno.EACCES, errno.ENOENT])
def test_what_stands_in_place_of_the_leader_epochs_is_no_failure_of_the_disk(code: int) -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 5)
    log.truncator.delete_records_before(2)
    fs.fail("open", code, path_part="/leader-epoch-checkpoint")
    OffsetCheckpoints(manager.directories, {("t", 0): log}).write_log_starts()
    assert not manager.offline_directories
    assert fs.content(f"{ROOT}/log-start-offset-checkpoint") == b"0\n1\nt 0 2\n"
