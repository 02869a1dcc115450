"""The offset checkpoints of the log directories."""

from ottla.storage.directories.offset_checkpoints import OffsetCheckpoints
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, ROOT, append, manager_on


def test_each_checkpoint_has_its_offset_of_every_log() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 3, now_ms=NOW_MS)
    append(log, 5)
    log.flush()
    append(log, 2)
    log.delete_records_before(2)
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
