"""Moving replicas between log directories: what is refused, and what a copy must not miss."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import cast

import pytest

from ottla.broker.replication import log_dir_mover
from ottla.broker.replication.log_dir_mover import LogDirMover
from ottla.broker.replication.replica_manager import ReplicaManager
from ottla.broker.runtime.tasks import WorkerPool
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.errors import DiskFull, LogDirectoryOffline, StorageError
from ottla.storage.log.flush import LogFlusher
from ottla.storage.log.log import Log
from ottla.storage.log.truncation import LogTruncator
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    append,
    batch_of,
    fetched,
    manager_on,
    plain,
    records_in,
)

KEY = TopicPartition("t", 0)


class Workers:
    """Does everything at once; `before` is what happens while a worker reads."""

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None

    async def run(self, work: Callable[[], bytes]) -> bytes:
        self.before()
        return work()


class Hosted:
    """The partitions of this broker; `elsewhere` are those that others have."""

    def __init__(self, partition: SimpleNamespace) -> None:
        self.partitions = {KEY: partition}
        self.elsewhere: set[TopicPartition] = set()
        self.completed: list[object] = []

    def partition(self, topic: str, index: int) -> SimpleNamespace:
        key = TopicPartition(topic, index)
        found = self.partitions.get(key)
        if found is None:
            known = key in self.elsewhere
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        if found.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return found

    def complete_delayed_requests(self, partition: object) -> None:
        self.completed.append(partition)


class Scene:
    """A log in /a that can be moved to /b or /c."""

    def __init__(self) -> None:
        self.logs = manager_on(MemoryFileSystem(), ("/a", "/b", "/c"))
        self.log: Log = self.logs.get_or_create(*KEY, now_ms=NOW_MS)
        self.partition = SimpleNamespace(log=self.log, offline=False)
        self.hosted = Hosted(self.partition)
        self.workers = Workers()
        self.before_flush: Callable[[], object] = lambda: None
        self.mover = LogDirMover(
            self.logs,
            cast(ReplicaManager, self.hosted),
            cast(WorkerPool, self.workers),
            self.flush,
            lambda: NOW_MS,
        )

    async def flush(self, flushers: Iterable[LogFlusher]) -> list[StorageError | None]:
        self.before_flush()
        try:
            for each in flushers:
                each.flush(NOW_MS)
        except StorageError as error:
            return [error]
        return [None]

    async def move(self, directory: str = "/b") -> Log:
        """The log where it is after the move has come to its end."""
        self.mover.move(KEY, directory)
        task = self.mover._task
        assert task is not None
        await task
        moved: Log | None = self.logs.get(*KEY)
        assert moved is not None
        served: object = self.hosted.partitions[KEY].log
        assert served is moved
        return moved

    def refusal(self, directory: str = "/b", key: TopicPartition = KEY) -> int:
        with pytest.raises(KafkaError) as raised:
            self.mover.move(key, directory)
        return raised.value.code


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_the_copy_takes_the_place_of_the_log(scene: Scene) -> None:
    for _ in range(3):
        append(scene.log, 10)
    moved = await scene.move()
    assert moved.path == "/b/t-0"
    assert [record.offset for record in fetched(moved)] == list(range(30))
    assert scene.hosted.completed == [scene.partition]


async def test_what_is_on_disk_is_on_disk_after_the_move(scene: Scene) -> None:
    """With `flush.messages` it was acknowledged because of that."""
    append(scene.log, 10)
    scene.log.flusher.flush()
    append(scene.log, 5)

    def append_more() -> None:
        scene.before_flush = lambda: None
        append(scene.log, 3)

    scene.before_flush = append_more
    moved = await scene.move()
    assert moved.log_end_offset == 18
    assert moved.recovery_point == 15
    disk = cast(MemoryFileSystem, scene.logs.fs).after_power_failure()
    again = manager_on(disk, ("/a", "/b", "/c")).get(*KEY)
    assert again is not None
    assert [record.offset for record in fetched(again)] == list(range(15))


async def test_the_log_is_flushed_after_the_move_if_its_settings_require_it(scene: Scene) -> None:
    requested: list[LogFlusher] = []
    scene.logs.flush_later = requested.append
    append(scene.log, 1)
    scene.workers.before = lambda: scene.log.update_config(LogConfig(flush_messages=1))
    moved = await scene.move()
    assert requested == [moved.flusher]
    assert moved.offsets.flush_required


async def test_a_copy_that_cannot_be_flushed_does_not_replace_the_log(scene: Scene) -> None:
    append(scene.log, 10)
    scene.log.flusher.flush()
    scene.before_flush = lambda: cast(MemoryFileSystem, scene.logs.fs).fail("sync")
    scene.mover.move(KEY, "/b")
    task = scene.mover._task
    assert task is not None
    await task
    assert scene.logs.get(*KEY) is scene.log
    assert scene.partition.log is scene.log


@pytest.mark.parametrize(
    "error", [CorruptRecordError("its CRC is wrong"), RuntimeError("a defect")]
)
async def test_a_batch_that_cannot_be_copied_does_not_stop_the_other_moves(
    scene: Scene,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = TopicPartition("t", 1)
    append(scene.logs.get_or_create(*other, now_ms=NOW_MS), 3)
    scene.hosted.partitions[other] = SimpleNamespace(log=scene.logs.get(*other), offline=False)
    append(scene.log, 3)
    real = Log.append_as_follower

    def append_as_follower(log: Log, records: bytes, *, now_ms: int) -> object:
        if log.partition == KEY.partition:
            raise error
        return real(log, records, now_ms=now_ms)

    monkeypatch.setattr(Log, "append_as_follower", append_as_follower)
    scene.mover.move(KEY, "/b")
    scene.mover.move(other, "/b")
    assert scene.mover._task is not None
    await scene.mover._task
    for key, path in ((KEY, "/a/t-0"), (other, "/b/t-1")):
        log = scene.logs.get(*key)
        assert log is not None
        assert log.path == path
    assert f"Failed to move {KEY} to another log dir" in caplog.text
    assert ("Traceback" in caplog.text) is isinstance(error, RuntimeError)


async def test_a_log_that_starts_inside_of_a_batch_moves(scene: Scene) -> None:
    append(scene.log, 10)
    append(scene.log, 10)
    scene.log.truncator.delete_records_before(4)
    moved = await scene.move()
    assert (moved.log_start_offset, moved.log_end_offset) == (4, 20)


async def test_a_batch_larger_than_segment_bytes_moves(scene: Scene) -> None:
    """segment.bytes was lowered after it was written; the move waited for ever."""
    scene.log.append(batch_of(plain(1, size=3000)), leader_epoch=0, now_ms=NOW_MS)
    scene.log.update_config(LogConfig(segment_bytes=1000))
    moved = await scene.move()
    assert (moved.path, moved.log_end_offset) == ("/b/t-0", 1)


async def test_what_is_deleted_and_written_meanwhile_counts(scene: Scene) -> None:
    append(scene.log, 10)
    append(scene.log, 10)
    deleted = [False]

    def meanwhile() -> None:
        if not deleted[0]:
            deleted[0] = True
            append(scene.log, 5)
            scene.log.truncator.delete_records_before(13)

    scene.workers.before = meanwhile
    moved = await scene.move()
    assert (moved.log_start_offset, moved.log_end_offset) == (13, 25)
    assert moved.high_watermark == 25


async def test_uncommitted_records_move_too(scene: Scene) -> None:
    append(scene.log, 10)
    scene.log.append(batch_of(5), leader_epoch=0, now_ms=NOW_MS)
    moved = await scene.move()
    assert (moved.high_watermark, moved.log_end_offset) == (10, 15)


def test_refusals(scene: Scene) -> None:
    assert scene.refusal("/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
    assert scene.refusal(key=TopicPartition("v", 0)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    long = TopicPartition("l" * 214, 0)
    assert scene.refusal("/nowhere", long) == ErrorCode.INVALID_TOPIC_EXCEPTION
    longest = TopicPartition("l" * 213, 0)
    assert scene.refusal(key=longest) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_another_name_of_the_directory_of_the_log_is_refused(scene: Scene) -> None:
    files = scene.logs.fs
    assert isinstance(files, MemoryFileSystem)
    files.mounts["/b"] = "/a"
    assert scene.refusal("/b") == ErrorCode.LOG_DIR_NOT_FOUND
    assert scene.logs.get_future(*KEY) is None


async def test_a_copy_that_is_the_log_itself_does_not_replace_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """By a mount that was made meanwhile."""
    append(scene.log, 5)
    scene.mover.move(KEY, "/b")
    future, files = scene.logs.get_future(*KEY), scene.logs.fs
    assert future is not None
    assert isinstance(files, MemoryFileSystem)
    files.mounts[future.path] = scene.log.path
    task = scene.mover._task
    assert task is not None
    await task
    assert "are one directory" in caplog.text
    assert scene.logs.get(*KEY) is scene.log
    assert len(fetched(scene.log)) == 5


def test_a_replica_that_comes_later_is_made_where_it_was_requested(scene: Scene) -> None:
    scene.hosted.elsewhere.add(TopicPartition("u", 0))
    assert scene.refusal("/c", TopicPartition("u", 0)) == ErrorCode.REPLICA_NOT_AVAILABLE
    assert scene.logs.get_or_create("u", 0, now_ms=NOW_MS).log_directory.path == "/c"


def test_a_replica_on_a_failed_disk_stays(scene: Scene) -> None:
    scene.partition.offline = True
    assert scene.refusal() == ErrorCode.KAFKA_STORAGE_ERROR


def test_no_move_begins_while_a_disk_is_away(scene: Scene) -> None:
    scene.logs.directories.find("/c").fail(OSError(5, "gone"))
    assert scene.refusal("/c") == ErrorCode.KAFKA_STORAGE_ERROR
    assert scene.refusal("/b") == ErrorCode.KAFKA_STORAGE_ERROR
    assert scene.logs.get_future(*KEY) is None
    scene.mover.move(KEY, "/a")  # it is there


def delete_before(log: Log, offset: int) -> None:
    log.truncator.delete_records_before(offset)
    run_at_once(log.retention.delete_old_segments(NOW_MS))


def of_leader(log: Log, leader_epoch: int, count: int) -> None:
    for _ in range(count):
        log.append(batch_of(), leader_epoch=leader_epoch, now_ms=NOW_MS)


def content(log: Log) -> list[bytes]:
    return [bytes(batch) for batch in log.batches(0)]


async def test_what_was_read_before_a_truncation_is_not_copied(scene: Scene) -> None:
    of_leader(scene.log, 0, 100)
    truncated = [False]
    expected: list[bytes] = []

    async def run(work: Callable[[], bytes]) -> bytes:
        piece = work()
        if not truncated[0]:
            truncated[0] = True
            scene.log.truncator.truncate_to(40)
            scene.mover.truncated(scene.log)
            of_leader(scene.log, 1, 80)
            expected.extend(content(scene.log))
        return piece

    scene.workers.run = run  # type: ignore[method-assign]
    moved = await scene.move()
    assert content(moved) == expected
    assert moved.leader_epochs.entries == [(0, 0), (1, 40)]
    assert moved.log_end_offset == 120


def copied(scene: Scene) -> Log:
    """The copy of a log with two batches, which has both. The mover is stopped."""
    for _ in range(2):
        append(scene.log, 5)
    scene.mover.stop()
    scene.mover.move(KEY, "/b")
    future = scene.logs.get_future(*KEY)
    assert future is not None
    for batch in scene.log.batches(0):
        future.append_as_follower(bytes(batch), now_ms=NOW_MS)
    return future


def test_a_log_is_truncated_also_when_the_disk_of_its_copy_has_failed(scene: Scene) -> None:
    """The error would take the replica for one on the failed disk, and end its fetches for good;
    and a deletion of the topic would wait for the disk."""
    future = copied(scene)
    future.log_directory.fail(OSError(5, "gone"))
    scene.log.truncator.truncate_to(5)
    scene.mover.truncated(scene.log)
    scene.logs.delete_async(*KEY)
    assert (scene.logs.get(*KEY), scene.logs.get_future(*KEY)) == (None, None)
    assert scene.log.path.endswith("-delete")


async def test_a_copy_that_lacks_space_is_truncated_before_it_continues(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = copied(scene)
    real = LogTruncator.truncate_to

    def truncate_to(truncator: LogTruncator, offset: int) -> bool:
        if truncator is future.truncator:
            raise DiskFull("/b", "No space left on device")
        return real(truncator, offset)

    with monkeypatch.context() as patch:
        patch.setattr(LogTruncator, "truncate_to", truncate_to)
        scene.log.truncator.truncate_to(5)
        scene.mover.truncated(scene.log)
    assert future.log_end_offset == 10
    append(scene.log, plain(5, timestamp=NOW_MS + 99))
    scene.mover._stopped = False
    assert content(await scene.move()) == content(scene.log)


async def test_a_copy_that_diverged_before_a_restart_is_truncated(scene: Scene) -> None:
    """The log lost its end in a crash and was filled again before the copy went on."""
    of_leader(scene.log, 0, 100)
    copy = scene.logs.create_future(*KEY, "/b", NOW_MS)
    for batch in scene.log.batches(0):
        copy.append_as_follower(bytes(batch), now_ms=NOW_MS)
    scene.log.truncator.truncate_to(40)
    of_leader(scene.log, 2, 80)
    expected = content(scene.log)
    moved = await scene.move()
    assert moved is copy
    assert content(moved) == expected
    assert moved.leader_epochs.entries == [(0, 0), (2, 40)]


async def test_a_copy_with_an_epoch_that_the_log_has_not_is_truncated(scene: Scene) -> None:
    of_leader(scene.log, 0, 50)
    of_leader(scene.log, 1, 10)
    copy = scene.logs.create_future(*KEY, "/b", NOW_MS)
    for batch in scene.log.batches(0):
        copy.append_as_follower(bytes(batch), now_ms=NOW_MS)
    scene.log.truncator.truncate_to(20)
    of_leader(scene.log, 0, 60)
    expected = content(scene.log)
    moved = await scene.move()
    assert content(moved) == expected
    assert moved.leader_epochs.entries == [(0, 0)]


async def test_a_move_waits_for_space(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the broker nor the move has to be started again."""
    monkeypatch.setattr(log_dir_mover, "_RETRY_SECONDS", 0.001)
    append(scene.log, 10)
    target = scene.logs.directories.find("/b")
    target.mark_full("No space left on device")
    tries: list[str] = []

    async def run(work: Callable[[], bytes]) -> bytes:
        tries.append(target.append_error_reason)
        if len(tries) == 3:
            target.update_free_bytes(1 << 30, 0)
        return work()

    scene.workers.run = run  # type: ignore[method-assign]
    moved = await scene.move()
    assert moved.path == "/b/t-0"
    assert [record.offset for record in fetched(moved)] == list(range(10))
    assert tries == ["No space left on device"] * 3


async def test_a_move_waits_for_descriptors(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_dir_mover, "_RETRY_SECONDS", 0.001)
    append(scene.log, 10)
    left = [3]

    def lacking() -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")

    scene.workers.before = lacking
    moved = await scene.move()
    assert moved.log_end_offset == 10
    assert caplog.text.count("The move of t-0 to another log dir waits") == 1


async def test_a_disk_that_fails_at_the_end_of_a_move_has_the_log(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica goes offline with it; with the old log it would append to deleted files."""
    append(scene.log, 10)

    def fail(truncator: LogTruncator, offset: int) -> bool:
        directory = truncator._local.directory.log_directory
        directory.fail(OSError(errno.EIO, "broken"))
        raise LogDirectoryOffline(directory.path, "broken")

    monkeypatch.setattr(LogTruncator, "delete_records_before", fail)
    moved = await scene.move()
    assert moved is not scene.log
    assert scene.logs.offline_directories == ["/b"]


async def test_a_move_from_a_broken_disk_ends(scene: Scene) -> None:
    append(scene.log, 10)

    def broken() -> None:
        raise OSError(errno.EIO, "Input/output error")

    scene.workers.before = broken
    scene.mover.move(KEY, "/b")
    assert scene.mover._task is not None
    await scene.mover._task
    assert scene.logs.get(*KEY) is scene.log
    assert scene.logs.get_future(*KEY) is not None


async def test_a_log_that_changed_to_an_older_format_is_moved() -> None:
    """It knows no epochs any more, also not those of its batches of the current format."""
    scene = Scene()
    append(scene.log, 3)
    scene.log.update_config(LogConfig(message_format_version="0.10.2"))
    append(scene.log, 2)
    before = records_in(scene.log)
    async with asyncio.timeout(5):
        moved = await scene.move()
    assert (records_in(moved), moved.leader_epochs.entries) == (before, [])
