"""The end of a move to another log directory fails or is interrupted at each file-system call."""

import errno
from collections.abc import Callable, Iterator

import pytest

from ottla.protocol.records.crc32c import crc32c
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.directories.replaced_logs import rename_to_current
from ottla.storage.errors import InconsistentMetadata, OverlappingDirectories, StorageError
from ottla.storage.files.fs import CREATE, FileSystem
from ottla.storage.files.set_aside import Reason, SetAside, of_files
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
    log.truncator.delete_records_before(2)
    manager.checkpoint_all()
    future = manager.create_future("t", 0, "/b", NOW_MS)
    for batch in log.batches(2):
        future.append_as_follower(bytes(batch), now_ms=NOW_MS)
    for each in (log, future):
        each.flusher.flush()
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


@pytest.mark.parametrize("order", [("/a", "/b"), ("/b", "/a")])
def test_power_that_is_lost_after_the_second_log_was_deleted_loses_nothing(
    order: tuple[str, str],
) -> None:
    for fs in each_call(replace):
        manager_on(fs, order).purge(NOW_MS * 2)
        log = the_log(manager_on(fs.after_power_failure(), order))
        log.update_high_watermark(log.log_end_offset)
        assert [each.offset for each in fetched(log)] == [2, 3, 4]


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
        assert not log.local.closed
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


def set_aside(manager: LogManager) -> list[SetAside]:
    return [item for directory in manager.directories.all for item in directory.set_aside]


def changed(fs: MemoryFileSystem, path: str, position: int = 65) -> None:
    """One byte of the first batch is another one, and so is its checksum."""
    content = bytearray(fs.content(path))
    content[position] ^= 1
    end = 12 + int.from_bytes(content[8:12], "big")
    assert 61 <= position < end
    content[17:21] = crc32c(bytes(content[21:end])).to_bytes(4, "big")
    fs.overwrite(path, bytes(content))


def test_a_log_with_the_same_end_and_other_records_is_not_deleted() -> None:
    fs = two_logs(1, 1)
    changed(fs, "/b/t-0/00000000000000000000.log")
    manager = manager_on(fs, DIRECTORIES)
    assert the_log(manager).path == "/a/t-0"
    (item,) = set_aside(manager)
    assert (item.reason, item.needs_attention) == (Reason.SECOND_COPY, True)
    assert "does not have all records" in item.detail
    manager.purge(NOW_MS * 2)
    assert fs.exists(f"{item.path}/00000000000000000000.log")


def test_a_log_without_a_topic_id_is_not_deleted() -> None:
    fs = two_logs(2, 2)
    fs.remove("/b/t-0/partition.metadata")
    manager = manager_on(fs, DIRECTORIES)
    (item,) = set_aside(manager)
    assert (item.reason, item.needs_attention) == (Reason.SECOND_COPY, False)
    assert the_log(manager).path == "/a/t-0"


def test_a_log_with_parts_that_were_set_aside_is_not_deleted() -> None:
    fs = two_logs(2, 2)
    fs.close(fs.open("/b/t-0/00000000000000000009.log.after-gap.set-aside", CREATE))
    manager = manager_on(fs, DIRECTORIES)
    manager.purge(NOW_MS * 2)
    (item,) = [item for item in set_aside(manager) if item.path.endswith("-stray")]
    assert item.needs_attention
    assert fs.exists(f"{item.path}/00000000000000000009.log.after-gap.set-aside")


def test_an_empty_log_does_not_replace_one_with_records_by_its_leader_epoch() -> None:
    """A disk was not mounted for a while, and the partition went on in another directory."""
    fs = two_logs(0, 5)
    new = the_log(manager_on(fs, ("/a",)))
    new.append(batch_of(2), leader_epoch=4, now_ms=NOW_MS)
    manager = manager_on(fs, DIRECTORIES)
    assert (the_log(manager).path, the_log(manager).log_end_offset) == ("/b/t-0", 5)
    (item,) = set_aside(manager)
    assert item.needs_attention


def test_a_longer_log_with_committed_records_is_kept_whatever_its_leader_epoch() -> None:
    """An old copy of a directory was used for a while."""
    fs = two_logs(6, 2)
    later = the_log(manager_on(fs, ("/b",)))
    later.append(batch_of(), leader_epoch=4, now_ms=NOW_MS)
    manager = manager_on(fs, ("/a",))
    the_log(manager).update_high_watermark(6)
    manager.checkpoint_high_watermarks()
    manager = manager_on(fs, DIRECTORIES)
    assert (the_log(manager).path, the_log(manager).log_end_offset) == ("/a/t-0", 6)
    assert set_aside(manager)[0].needs_attention


def test_the_log_with_the_higher_leader_epoch_is_kept() -> None:
    fs = two_logs(3, 2)
    later = the_log(manager_on(fs, ("/b",)))
    later.append(batch_of(), leader_epoch=7, now_ms=NOW_MS)
    later.truncator.truncate_to(2)
    later.append(batch_of(1), leader_epoch=8, now_ms=NOW_MS)
    log = the_log(manager_on(fs, DIRECTORIES))
    assert (log.log_directory.path, log.log_end_offset) == ("/b", 3)


def logs_of_two_topics() -> MemoryFileSystem:
    """The same partition in both directories: two records of one topic, three of another one."""
    fs = MemoryFileSystem()
    for path, topic_id, count in (("/a", TOPIC_ID, 2), ("/b", OTHER_ID, 3)):
        manager = manager_on(fs, (path,))
        append(manager.get_or_create("t", 0, topic_id=topic_id, now_ms=NOW_MS), count)
        append(manager.get_or_create(path[1:], 0, topic_id=topic_id, now_ms=NOW_MS), 1)
        manager.shutdown(NOW_MS)
    return fs


@pytest.mark.parametrize(
    ("known", "kept"), [(TOPIC_ID, "/a"), (OTHER_ID, "/b"), (None, "/b"), (b"n" * 16, "/b")]
)
def test_of_logs_of_two_topics_that_of_the_cluster_is_kept(
    known: bytes | None, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    fs = logs_of_two_topics()
    manager = manager_on(fs, DIRECTORIES)
    assert manager.undecided == ["t"]
    assert "t-0 is in two log directories with different topic ids" in caplog.text
    manager.decide("t", known, NOW_MS)
    assert manager.undecided == []
    log = manager.get("t", 0)
    assert log is not None
    assert (log.log_directory.path, len(fetched(log))) == (kept, 2 if kept == "/a" else 3)
    assert sorted(log.topic for log in manager.logs()) == ["a", "b", "t"]
    (item,) = set_aside(manager)
    assert (item.reason, item.needs_attention, item.set_aside_ms) == (
        *(Reason.SECOND_COPY, True),
        NOW_MS,
    )
    assert TOPIC_ID.hex() in item.detail
    assert OTHER_ID.hex() in item.detail
    manager.shutdown(NOW_MS)
    manager.purge(NOW_MS * 2)
    assert fs.exists(item.path)
    assert manager_on(fs, DIRECTORIES).undecided == []


def test_logs_of_two_topics_are_closed_by_a_start_that_is_given_up() -> None:
    fs = logs_of_two_topics()
    manager_on(fs, DIRECTORIES).shutdown(NOW_MS)
    again = manager_on(fs, DIRECTORIES)
    assert not again.unclean_start
    assert again.undecided == ["t"]


def test_of_three_logs_of_two_topics_one_is_kept() -> None:
    fs = logs_of_two_topics()
    manager = manager_on(fs, ("/c",))
    append(manager.get_or_create("t", 0, topic_id=OTHER_ID, now_ms=NOW_MS), 5)
    manager = manager_on(fs, (*DIRECTORIES, "/c"))
    manager.decide("t", OTHER_ID, NOW_MS)
    log = manager.get("t", 0)
    assert log is not None
    assert (log.path, len(fetched(log))) == ("/c/t-0", 5)
    assert len(set_aside(manager)) == 2


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
    log.truncator.delete_records_before(3)
    manager.checkpoint_log_starts()
    future.flusher.flush()
    manager.replace_current_with_future("t", 0, NOW_MS)
    moved = the_log(manager_on(fs.after_kill(), ("/a", "/b")))
    assert (moved.log_directory.path, moved.log_start_offset) == ("/b", 3)


def test_records_in_remote_storage_stay_when_a_log_is_moved_after_a_start() -> None:
    """There is no checkpoint of a log that is being moved, and tiered storage is disabled now."""
    fs = MemoryFileSystem()
    settings: dict[str, object] = {"has_remote_storage": True}
    manager = manager_on(fs, ("/a", "/b"), **settings)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    log.truncator.truncate_fully_and_start_at(5, 2)
    append(log, 5)
    manager.create_future("t", 0, "/b", NOW_MS).truncator.truncate_fully_and_start_at(5, 2)
    manager.shutdown(NOW_MS)
    manager = manager_on(fs.after_kill(), ("/a", "/b"), **settings)
    future = manager.get_future("t", 0)
    assert future is not None
    for batch in the_log(manager).batches(5):
        future.append_as_follower(bytearray(batch), now_ms=NOW_MS)
    future.flusher.flush()
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
    log.truncator.delete_records_before(3)
    fs.fail("pwrite", errno.ENOSPC, path_part="/b/log-start", after=1)
    assert manager.replace_current_with_future("t", 0, NOW_MS).log_start_offset == 3
    assert manager.get("t", 0) is future
    assert fs.list_directories("/a") != ["t-0"]


def test_a_future_log_that_is_the_current_one_does_not_replace_it() -> None:
    """By a link to the directory, or a mount, that was made while the broker runs."""
    fs = MemoryFileSystem()
    manager = copied(fs)
    current, future = manager.get("t", 0), manager.get_future("t", 0)
    assert current is not None
    assert future is not None
    fs.mounts[future.path] = current.path
    with pytest.raises(OverlappingDirectories):
        manager.replace_current_with_future("t", 0, NOW_MS)
    assert manager.get("t", 0) is current
    assert not current.local.closed
    fs.mounts = {"/b": "/a"}
    manager.abandon_future("t", 0, NOW_MS)
    with pytest.raises(ValueError, match="already"):
        manager.create_future("t", 0, "/b", NOW_MS)


# --- future logs that are found at the start -----------------------------------------------------


def with_future(first: int, copied: int) -> MemoryFileSystem:
    """A log of so many records in /a, and a future log in /b with so many of them."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, DIRECTORIES)
    log = manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    for _ in range(first):
        append(log)
    future = manager.create_future("t", 0, "/b", NOW_MS)
    for batch in log.batches(0, copied):
        future.append_as_follower(bytes(batch), now_ms=NOW_MS)
    for each in (log, future):
        each.flusher.flush()
    return fs


def future_path(fs: MemoryFileSystem) -> str:
    (name,) = [name for name in fs.list_directories("/b") if name.endswith("-future")]
    return f"/b/{name}"


def assert_incomplete_move(manager: LogManager, words: str, records: int) -> None:
    (item,) = set_aside(manager)
    assert (item.reason, item.needs_attention) == (Reason.INCOMPLETE_MOVE, True)
    assert words in item.detail
    assert manager.get_future("t", 0) is None
    fs = manager.fs
    manager.purge(NOW_MS * 2)
    # What `ottla log set-aside restore` does.
    fs.replace(item.path, "/r/t-0")
    assert len(fetched_from(fs, "/r")) == records


def fetched_from(fs: FileSystem, directory: str) -> list[int]:
    assert isinstance(fs, MemoryFileSystem)
    fs.make_directory(directory)
    log = the_log(manager_on(fs, (directory,)))
    log.update_high_watermark(log.log_end_offset)
    return [each.offset for each in fetched(log)]


def test_a_future_log_without_its_current_log_is_set_aside() -> None:
    """The disk with the current log was removed from log.dirs, or replaced by an empty one."""
    fs = with_future(5, 4)
    fs.remove_tree("/a/t-0")
    manager = manager_on(fs, DIRECTORIES)
    assert manager.logs() == []
    assert_incomplete_move(manager, "may be the only copy (leader epoch 0, log end offset 4)", 4)


def test_a_future_log_waits_for_a_directory_that_is_offline() -> None:
    fs = with_future(5, 4)
    path = future_path(fs)
    fs.fail("list_directories", path_part="/a")
    manager = manager_on(fs, DIRECTORIES)
    assert manager.offline_directories == ["/a"]
    assert set_aside(manager) == []
    assert fs.exists(path)
    again = manager_on(fs, DIRECTORIES)
    assert again.get_future("t", 0) is not None


def test_a_future_log_with_more_records_than_the_current_log_is_set_aside() -> None:
    """It would be truncated to the current log, which has lost its end."""
    fs = with_future(5, 5)
    log = the_log(manager_on(fs, ("/a",)))
    log.truncator.truncate_to(3)
    log.flusher.flush()
    manager = manager_on(fs, DIRECTORIES)
    assert the_log(manager).log_end_offset == 3
    assert_incomplete_move(manager, "has records that /a/t-0 does not have", 5)


def test_a_future_log_of_another_history_is_set_aside() -> None:
    """The current log began again: its directory was not mounted."""
    fs = with_future(5, 4)
    fs.remove_tree("/a/t-0")
    log = manager_on(fs, ("/a",)).get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    for _ in range(9):
        log.append(batch_of(), leader_epoch=3, now_ms=NOW_MS)
    manager = manager_on(fs, DIRECTORIES)
    assert the_log(manager).log_end_offset == 9
    assert_incomplete_move(manager, "has records that /a/t-0 does not have", 4)


def test_a_future_log_that_a_leader_has_truncated_is_continued() -> None:
    fs = with_future(5, 5)
    log = the_log(manager_on(fs, ("/a",)))
    log.truncator.truncate_to(3)
    log.append(batch_of(), leader_epoch=2, now_ms=NOW_MS)
    log.flusher.flush()
    assert manager_on(fs, DIRECTORIES).get_future("t", 0) is not None


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_future_log_beside_its_current_log_is_deleted_if_its_records_are_there(
    is_equal: bool,
) -> None:
    fs = with_future(5, 4)
    path = future_path(fs)
    moved = f"/a/{path.rpartition('/')[2]}"
    fs.replace(path, moved)
    if not is_equal:
        changed(fs, f"{moved}/00000000000000000000.log")
    manager = manager_on(fs, DIRECTORIES)
    assert manager.get_future("t", 0) is None
    manager.purge(NOW_MS * 2)
    (name,) = [name for name in fs.list_directories("/a") if name != "t-0"] or [""]
    assert name.endswith("" if is_equal else "-stray")
    assert bool(name) is not is_equal
    assert len(fetched_from(fs, "/a")) == 5


def test_a_second_future_log_is_deleted_only_if_its_records_are_in_the_current_log() -> None:
    fs = with_future(5, 4)
    path = future_path(fs)
    for number in (1, 2):
        copy = f"/c/t-0.{number:032}-future"
        fs.make_directory(copy)
        for name in fs.list_files(path):
            descriptor = fs.open(f"{copy}/{name}", CREATE)
            fs.pwrite(descriptor, fs.content(f"{path}/{name}"), 0)
            fs.close(descriptor)
    changed(fs, f"/c/t-0.{2:032}-future/00000000000000000000.log")
    manager = manager_on(fs, (*DIRECTORIES, "/c"))
    future = manager.get_future("t", 0)
    assert future is not None
    assert future.path == path
    manager.purge(NOW_MS * 2)
    assert [name[-6:] for name in fs.list_directories("/c")] == ["-stray"]


# --- interrupted starts --------------------------------------------------------------------------


def other_history() -> MemoryFileSystem:
    """Two logs of one end with other records."""
    fs = two_logs(3, 3)
    changed(fs, "/b/t-0/00000000000000000000.log")
    return fs


def without_current() -> MemoryFileSystem:
    fs = with_future(5, 4)
    fs.remove_tree("/a/t-0")
    return fs


def of_two_topics() -> MemoryFileSystem:
    fs = logs_of_two_topics()
    fs.remove_tree("/a/a-0")
    fs.remove_tree("/b/b-0")
    return fs


def contents(fs: MemoryFileSystem) -> set[bytes]:
    return {
        fs.content(path)
        for path in fs.paths()
        if path.endswith(".log") and "-delete/" not in path and fs.content(path)
    }


@pytest.mark.parametrize("made", [other_history, without_current, of_two_topics])
@pytest.mark.parametrize("code", [0, errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_a_start_that_is_interrupted_or_fails_at_any_call_loses_no_record(
    made: Callable[[], MemoryFileSystem], code: int
) -> None:
    before = contents(made())
    assert before
    for count in range(1, MANY):
        fs = CountedFileSystem()
        _copy(made(), fs)
        fs.left, fs.code = count, code
        try:
            manager = manager_on(fs, DIRECTORIES)
            manager.decide("t", OTHER_ID, NOW_MS)
            manager.check_free_bytes()
        except Killed:
            pass
        is_over = fs.left > 0
        fs.left, fs.code = MANY, 0
        again = fs.after_kill()
        for _ in range(2):
            manager = manager_on(again, DIRECTORIES)
            manager.decide("t", OTHER_ID, NOW_MS)
            assert manager.undecided == []
            manager.purge(NOW_MS * 2)
            assert contents(again) == before
            manager.shutdown(NOW_MS)
        if is_over:
            return


def _copy(source: MemoryFileSystem, target: MemoryFileSystem) -> None:
    for path in source.paths():
        target.make_directory(path.rpartition("/")[0])
        descriptor = target.open(path, CREATE)
        target.pwrite(descriptor, source.content(path), 0)
        target.close(descriptor)


def test_a_log_that_is_moved_stays_if_parts_of_it_are_set_aside() -> None:
    fs = MemoryFileSystem()
    manager = copied(fs)
    log = the_log(manager)
    part = f"{log.path}/{9:020d}.log.after-gap.set-aside"
    fs.close(fs.open(part, CREATE))
    log.log_directory.note_set_aside(of_files([part.rpartition("/")[2]], log.path, "t", 0))
    manager.replace_current_with_future("t", 0, NOW_MS)
    manager.purge(NOW_MS * 2)
    manager.forget_restored(manager.find_restored())
    (item,) = set_aside(manager)
    assert item.is_log
    assert item.needs_attention
    assert fs.exists(f"{item.path}/{part.rpartition('/')[2]}")


def test_a_copy_that_somebody_has_deleted_takes_no_disk_offline() -> None:
    fs = MemoryFileSystem()
    manager = copied(fs)
    future = manager.get_future("t", 0)
    assert future is not None
    fs.remove_tree(future.path)
    with pytest.raises(InconsistentMetadata, match="moved or deleted"):
        rename_to_current(future)
    assert manager.offline_directories == []
