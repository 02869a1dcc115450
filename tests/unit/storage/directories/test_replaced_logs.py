"""The end of a move to another log directory fails or is interrupted at each file-system call."""

import errno
from collections.abc import Callable, Iterator

import pytest

from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import InconsistentMetadata, StorageError
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import Fault, MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, batch_of, fetched, manager_on

TOPIC_ID, OTHER_ID = b"i" * 16, b"o" * 16
DIRECTORIES = ("/a", "/b")
MANY = 1_000


class Killed(BaseException):
    """The process ends here."""


class CountedFileSystem(MemoryFileSystem):
    """Ends the process, or fails, before a call."""

    def __init__(self) -> None:
        super().__init__()
        self.left = MANY
        self.code = 0
        self.ended_in = ""

    def _call(self, operation: str, path: str) -> Fault | None:
        self.left -= 1
        if self.left == 0:
            self.ended_in = operation
            raise OSError(self.code, "injected", path) if self.code else Killed(operation)
        return super()._call(operation, path)


def copied(fs: MemoryFileSystem) -> LogManager:
    """A manager with a synced log of five records, two of them deleted, and a complete copy."""
    manager = manager_on(fs, DIRECTORIES)
    log = manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 2)
    append(log, 3)
    log.delete_records_before(2)
    manager.checkpoint_all()
    future = manager.create_future("t", 0, "/b", NOW_MS)
    for batch in log.batches(2):
        future.append_as_follower(bytes(batch), now_ms=NOW_MS)
    for each in (log, future):
        each.flush()
    return manager


def the_log(manager: LogManager) -> Log:
    (log,) = manager.logs()
    return log


def assert_whole(fs: MemoryFileSystem, records: list[int]) -> None:
    """The start finds one log with these records, which can be moved and started again."""
    manager = manager_on(fs, DIRECTORIES)
    log = the_log(manager)
    log.update_high_watermark(log.log_end_offset)
    assert [each.offset for each in fetched(log)] == records
    assert log.topic_id == TOPIC_ID
    future = manager.get_future("t", 0)
    if future is None:
        other = "/b" if log.log_directory.path == "/a" else "/a"
        future = manager.create_future("t", 0, other, NOW_MS)
    for batch in log.batches(future.log_end_offset):
        future.append_as_follower(bytes(batch), now_ms=NOW_MS)
    moved = manager.replace_current_with_future("t", 0, NOW_MS)
    assert [each.offset for each in fetched(moved)] == records
    manager.shutdown(NOW_MS)
    again = manager_on(fs, DIRECTORIES)
    again.purge(NOW_MS * 2)
    names = [name for path in DIRECTORIES for name in fs.list_directories(path)]
    assert [name for name in names if not name.endswith("-stray")] == ["t-0"]


def each_call(act: Callable[[LogManager], object]) -> Iterator[CountedFileSystem]:
    """File systems on which `act` was ended before its first call, its second, and so on."""
    for count in range(1, MANY):
        fs = CountedFileSystem()
        manager = copied(fs)
        fs.left = count
        try:
            act(manager)
        except Killed:
            fs.left = MANY
            yield fs
        else:
            assert count > 5  # two renames, a sync of a directory, a checkpoint
            fs.left = MANY
            yield fs
            return


def replace(manager: LogManager) -> None:
    manager.replace_current_with_future("t", 0, NOW_MS)


def test_a_broker_that_is_killed_between_any_two_calls_starts_again() -> None:
    for fs in each_call(replace):
        assert_whole(fs.after_kill(), [2, 3, 4])


def test_power_that_is_lost_between_any_two_calls_loses_nothing() -> None:
    for fs in each_call(replace):
        assert_whole(fs.after_power_failure(), [2, 3, 4])


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_after_a_call_that_fails_the_log_continues_and_the_next_start_keeps_it(code: int) -> None:
    for count in range(1, MANY):
        fs = CountedFileSystem()
        manager = copied(fs)
        fs.left, fs.code = count, code
        try:
            replace(manager)
        except StorageError:
            assert manager.get_future("t", 0) is not None
        is_over = fs.left > 0
        fs.left = MANY
        log = the_log(manager)
        assert not log.is_closed
        offline = manager.offline_directories
        assert log.log_directory.path not in offline
        if code == errno.EMFILE and fs.ended_in != "replace":  # which needs no descriptor
            assert not offline
        fs.heal()
        append(log)
        assert_whole(fs.after_kill(), [2, 3, 4, 5])
        if is_over:
            return


def two_logs(first: int, second: int) -> MemoryFileSystem:
    """The same partition in both directories, with so many records."""
    fs = MemoryFileSystem()
    for path, count in (("/a", first), ("/b", second)):
        log = manager_on(fs, (path,)).get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
        for _ in range(count):
            append(log)
    return fs


@pytest.mark.parametrize(
    ("first", "second", "kept", "suffix"),
    [(3, 3, "/a", "-delete"), (2, 3, "/b", "-stray"), (3, 2, "/a", "-stray")],
)
def test_the_longer_log_is_kept(
    first: int, second: int, kept: str, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    fs = two_logs(first, second)
    log = the_log(manager_on(fs, DIRECTORIES))
    assert (log.log_directory.path, log.log_end_offset) == (kept, 3)
    (other,) = fs.list_directories("/b" if kept == "/a" else "/a")
    assert other.endswith(suffix)
    assert "t-0 is in two log directories" in caplog.text


def test_the_log_with_the_higher_leader_epoch_is_kept() -> None:
    fs = two_logs(3, 2)
    later = the_log(manager_on(fs, ("/b",)))
    later.append(batch_of(), leader_epoch=7, now_ms=NOW_MS)
    later.truncate_to(2)
    later.append(batch_of(1), leader_epoch=8, now_ms=NOW_MS)
    log = the_log(manager_on(fs, DIRECTORIES))
    assert (log.log_directory.path, log.log_end_offset) == ("/b", 3)


def test_logs_of_different_topics_are_an_error() -> None:
    fs = MemoryFileSystem()
    for path, topic_id in (("/a", TOPIC_ID), ("/b", OTHER_ID)):
        manager_on(fs, (path,)).get_or_create("t", 0, topic_id=topic_id, now_ms=NOW_MS)
    with pytest.raises(InconsistentMetadata, match="different topic ids"):
        manager_on(fs, DIRECTORIES)


def test_segments_that_a_future_log_had_deleted_are_deleted_after_the_move() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 2)
    future = manager.create_future("t", 0, "/b", NOW_MS)
    for batch in log.batches(0):
        future.append_as_follower(bytearray(batch), now_ms=NOW_MS)
    future.roll(NOW_MS)
    future.local.retire_segments([next(iter(future.segments))], NOW_MS + 10)
    manager.replace_current_with_future("t", 0, NOW_MS)
    retired = [path for path in fs.paths() if path.endswith(".deleted")]
    assert retired
    assert all(path.startswith("/b/t-0/") for path in retired)
    manager.purge(NOW_MS + 10)
    assert [path for path in fs.paths() if path.endswith(".deleted")] == []


def test_records_that_were_deleted_before_a_move_stay_deleted_after_a_crash() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for _ in range(5):
        append(log)
    future = manager.create_future("t", 0, "/b", NOW_MS)
    for batch in log.batches(0):
        future.append_as_follower(bytearray(batch), now_ms=NOW_MS)
    log.delete_records_before(3)
    manager.checkpoint_log_starts()
    future.flush()
    manager.replace_current_with_future("t", 0, NOW_MS)
    moved = the_log(manager_on(fs.after_kill(), ("/a", "/b")))
    assert (moved.log_directory.path, moved.log_start_offset) == ("/b", 3)


def test_records_in_remote_storage_stay_when_a_log_is_moved_after_a_start() -> None:
    """There is no checkpoint of a log that is being moved, and tiered storage is disabled now."""
    fs = MemoryFileSystem()
    settings: dict[str, object] = {"has_remote_storage": True}
    manager = manager_on(fs, ("/a", "/b"), **settings)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    log.truncate_fully_and_start_at(5, 2)
    append(log, 5)
    manager.create_future("t", 0, "/b", NOW_MS).truncate_fully_and_start_at(5, 2)
    manager.shutdown(NOW_MS)
    manager = manager_on(fs.after_kill(), ("/a", "/b"), **settings)
    future = manager.get_future("t", 0)
    assert future is not None
    for batch in the_log(manager).batches(5):
        future.append_as_follower(bytearray(batch), now_ms=NOW_MS)
    future.flush()
    moved = manager.replace_current_with_future("t", 0, NOW_MS)
    assert (moved.log_start_offset, moved.local_log_start_offset) == (2, 5)


def test_a_move_ends_if_the_log_start_finds_no_space() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 5)
    future = manager.create_future("t", 0, "/b", NOW_MS)
    for batch in log.batches(0):
        future.append_as_follower(bytearray(batch), now_ms=NOW_MS)
    log.delete_records_before(3)
    fs.fail("pwrite", errno.ENOSPC, path_part="/b/log-start", after=1)
    assert manager.replace_current_with_future("t", 0, NOW_MS).log_start_offset == 3
    assert manager.get("t", 0) is future
    assert fs.list_directories("/a") != ["t-0"]
