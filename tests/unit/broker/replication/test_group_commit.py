"""Flushes that `flush.messages` requires: who waits for them, and what a failed one means."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from ottla.broker.replication.delayed_writes import FLUSH_TIMEOUT_MS
from ottla.broker.replication.group_commit import LOGS_AT_ONCE, SYNCS_MAX
from ottla.broker.replication.log_dir_mover import LogDirMover
from ottla.broker.runtime.tasks import WorkerPool, WorkerPoolClosed, spawn
from ottla.protocol.errors import ErrorCode
from ottla.storage.errors import DiskFull, LogDirectoryOffline
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.pace import steps_per_turn
from tests.doubles.replicas import BROKER, Replicas

OTHER = 2
DISKS = ("/disk", "/other")


class Scene(Replicas):
    """Broker 1 leads partition 0; flushes wait for `run_flushes`."""

    def __init__(self, flush_messages: int = 1, **settings: object) -> None:
        super().__init__(flush_messages=flush_messages, **settings)  # type: ignore[arg-type]  # passed on
        self.commit_in_groups()
        self.syncs = 0
        self.free_workers = asyncio.Semaphore(0)

    async def run(self, job: Callable[[], None]) -> None:
        await self.free_workers.acquire()
        job()
        self.syncs += 1

    async def finish(self) -> None:
        """The flushes that are required end."""
        await self.run_flushes(5)
        while not self.free_workers.locked():
            await self.free_workers.acquire()

    async def run_flushes(self, number: int) -> None:
        """Workers for so many flushes."""
        for _ in range(number):
            self.free_workers.release()
        for _ in range(20):
            await asyncio.sleep(0)

    async def move(self) -> None:
        """The log moves to the other log directory."""
        key, workers = self.partition().key, WorkerPool(threads=1, name="copies")
        mover = LogDirMover(
            self.logs, self.manager, workers, self.group_commit.flush, self.clock.now_ms
        )
        other = DISKS[1] if self.log().path.startswith(DISKS[0]) else DISKS[0]
        mover.move(key, other)
        assert mover._task is not None
        await mover._task
        assert self.log().path == f"{other}/t-0"
        await workers.close()

    @property
    def files(self) -> MemoryFileSystem:
        fs = self.logs.fs
        assert isinstance(fs, MemoryFileSystem)
        return fs


def run(body: Callable[[Scene], Awaitable[None]], **settings: object) -> None:
    async def whole() -> None:
        await body(Scene(**settings))  # type: ignore[arg-type]  # passed on

    asyncio.run(whole())


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_response_waits_for_the_flush(acks: int) -> None:
    async def body(scene: Scene) -> None:
        partition = scene.lead()
        appended = scene.append(acks=acks)
        log = scene.log()
        await asyncio.sleep(0)
        assert not appended.is_completed
        assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (1, 0, 0)
        assert not partition.maybe_increment_high_watermark()
        await scene.finish()
        assert appended.offset == 0
        assert (log.high_watermark, log.recovery_point) == (1, 1)

    run(body)


def test_appends_during_a_flush_share_the_next_one() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        first = [scene.append() for _ in range(3)]
        await asyncio.sleep(0)
        late = [scene.append() for _ in range(3)]
        await scene.finish()
        assert [each.offset for each in first + late] == list(range(6))
        assert scene.syncs == 2

    run(body)


def test_a_flush_acknowledges_only_what_was_appended_before_it() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        first = scene.append()
        await asyncio.sleep(0)  # the flush has begun
        late = scene.append()
        log = scene.log()
        await scene.run_flushes(1)
        assert first.offset == 0
        assert not late.is_completed
        assert (log.recovery_point, log.high_watermark) == (1, 1)
        await scene.finish()
        assert late.offset == 1

    run(body)


def test_below_flush_messages_nothing_waits() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        assert scene.append(2).offset == 0
        assert scene.log().high_watermark == 2
        third = scene.append()
        assert not third.is_completed
        await scene.finish()
        assert third.offset == 2
        assert scene.append().offset == 3, "one record is not flushed now"

    run(body, flush_messages=3)


def test_replication_is_waited_for_after_the_flush() -> None:
    async def body(scene: Scene) -> None:
        partition = scene.lead(replicas=(BROKER, OTHER), isr=(BROKER, OTHER))
        appended = scene.append(acks=-1, timeout_ms=50)
        scene.timer.advance(100)
        await asyncio.sleep(0)
        follower = partition.followers[OTHER]
        follower.record_fetch(1, 0, 1, 0)
        assert not partition.maybe_increment_high_watermark(), "the leader has not flushed"
        assert not appended.is_completed, "the timeout begins after the flush"
        await scene.finish()
        assert appended.offset == 0
        behind = scene.append(acks=-1, timeout_ms=50)
        await scene.finish()
        assert not behind.is_completed
        scene.timer.advance(100)
        assert behind.code == ErrorCode.REQUEST_TIMED_OUT

    run(body)


def test_a_failed_sync_is_an_error_and_takes_the_directory_offline() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        scene.files.fail("sync", errno.EIO, path_part=".log")
        appended = scene.append(producer_id=7, producer_epoch=0, base_sequence=0)
        await scene.finish()
        assert appended.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert scene.failed_directories == ["/disk"]
        log = scene.log()
        assert log.log_directory.is_offline
        assert (log.log_end_offset, log.recovery_point, log.high_watermark) == (1, 0, 0)
        assert log.producer_state.producers[7].last_sequence == 0, "the records were written"

    run(body)


def test_a_flush_that_could_not_begin_is_retried_with_the_producers_retry() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        fields = {"producer_id": 7, "producer_epoch": 0}
        scene.append(base_sequence=0, **fields)
        await scene.finish()
        scene.files.fail("pwrite", errno.ENOSPC, path_part=".index")
        failed = scene.append(base_sequence=1, **fields)
        await scene.finish()
        assert failed.code == ErrorCode.KAFKA_STORAGE_ERROR
        log = scene.log()
        assert log.high_watermark == 1
        assert scene.logs.flushes_due(scene.clock.now_ms()) == [log], "the scheduler retries, too"
        scene.logs.check_free_bytes()
        again = scene.append(base_sequence=1, **fields)
        assert not again.is_completed, "a duplicate waits for the flush as well"
        await scene.finish()
        assert again.offset == 1
        assert (log.log_end_offset, log.high_watermark) == (2, 2)

    run(body, index_interval_bytes=0)


def test_a_leader_that_changed_has_not_acknowledged() -> None:
    async def body(scene: Scene) -> None:
        scene.lead(replicas=(BROKER, OTHER))
        appended = scene.append()
        scene.follow(OTHER, epoch=1, replicas=(BROKER, OTHER))
        assert appended.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await scene.finish()
        assert scene.log().recovery_point == 1, "what a follower has is flushed"

    run(body)


def test_records_that_a_new_leader_truncated_are_not_acknowledged_by_a_later_flush() -> None:
    async def body(scene: Scene) -> None:
        scene.lead(replicas=(BROKER, OTHER))
        count = 10
        lost = [scene.append() for _ in range(count)]
        scene.follow(OTHER, epoch=1, replicas=(BROKER, OTHER))
        scene.log().truncator.truncate_to(0)
        scene.lead(epoch=2, replicas=(BROKER, OTHER))
        others = [scene.append() for _ in range(count)]
        await scene.finish()
        assert scene.log().recovery_point == count
        scene.timer.advance(100)
        assert {each.code for each in lost} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert [each.offset for each in others] == list(range(count))

    with steps_per_turn(1):  # a new leader checks some of the requests that wait, not all
        run(body)


def test_a_disk_that_does_not_respond_is_a_timeout() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        appended = scene.append()
        scene.timer.advance(FLUSH_TIMEOUT_MS + 1_000)
        assert appended.code == ErrorCode.REQUEST_TIMED_OUT

    run(body)


def test_flush_returns_errors_that_wait_does_not() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        scene.append()
        await scene.finish()
        flusher = scene.log().flusher
        scene.files.fail("pwrite", errno.ENOSPC, path_part=".index")
        scene.append()
        for _ in range(5):
            scene.free_workers.release()
        await scene.group_commit.wait([flusher])
        scene.files.fail("pwrite", errno.ENOSPC, path_part=".index")
        (error,) = await scene.group_commit.flush([flusher])
        assert isinstance(error, DiskFull)
        assert await scene.group_commit.flush([flusher]) == [None]
        assert scene.log().recovery_point == 2
        await scene.group_commit.wait([flusher])

    run(body, index_interval_bytes=0)


@pytest.mark.parametrize("has_begun", [False, True])
def test_one_who_waits_for_a_flush_does_not_wait_for_those_behind_it(has_begun: bool) -> None:
    """With many producers each flush is followed by another one."""

    async def body(scene: Scene) -> None:
        scene.lead()
        if has_begun:
            scene.append()
            await asyncio.sleep(0)
        flusher = scene.log().flusher

        async def append_and(wait: Awaitable[object]) -> object:
            scene.append()
            return await wait

        waits = spawn(append_and(scene.group_commit.wait([flusher])), name="waits")
        flushes = spawn(append_and(scene.group_commit.flush([flusher])), name="flushes")
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # a flush has begun
        needed = scene.log().log_end_offset
        for _ in range(1 + has_begun):
            assert not waits.done()
            assert not flushes.done()
            scene.append()
            await scene.run_flushes(1)
        assert scene.log().offsets.flush_required
        assert scene.log().recovery_point >= needed
        assert waits.done()
        assert flushes.result() == [None]
        await scene.finish()

    run(body)


def test_a_sync_after_a_failed_one_proves_nothing() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        appended = scene.append()
        await asyncio.sleep(0)
        log = scene.log()
        other = log.flusher.begin_flush()
        assert other is not None
        scene.files.fail("sync", errno.EIO, path_part=".log")
        other.run()
        with pytest.raises(LogDirectoryOffline):
            log.flusher.finish_flush(other, 0)
        await scene.finish()
        assert appended.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert log.recovery_point == 0

    run(body)


def test_many_logs_are_handed_over_to_few_workers() -> None:
    async def body(scene: Scene) -> None:
        logs = 3 * SYNCS_MAX
        for index in range(logs):
            scene.lead(index)
        for _ in range(2):
            appended = [scene.append(index=index) for index in range(logs)]
            scene.files.calls.clear()
            await scene.run_flushes(SYNCS_MAX)
            assert all(each.is_completed and not each.code for each in appended)
        syncs = [path for operation, path in scene.files.calls if operation == "sync"]
        assert len(syncs) == len(set(syncs)) == logs, "one of each log"
        assert scene.syncs <= 2 * SYNCS_MAX

    run(body)


def test_a_failed_sync_fails_the_logs_that_are_finished_after_it() -> None:
    async def body(scene: Scene) -> None:
        for index in range(3):
            scene.lead(index)
        scene.files.fail("sync", errno.EIO, path_part=".log", after=1)
        appended = [scene.append(index=index) for index in range(3)]
        await scene.finish()
        failed = ErrorCode.KAFKA_STORAGE_ERROR
        assert [each.response.error_code for each in appended] == [0, failed, failed]
        assert [scene.log(index).recovery_point for index in range(3)] == [1, 0, 0]

    run(body)


def test_more_logs_than_are_flushed_at_once() -> None:
    """Each flush keeps descriptors."""

    async def body(scene: Scene) -> None:
        logs = 2 * LOGS_AT_ONCE + 1
        for index in range(logs):
            scene.lead(index)
        appended = [scene.append(index=index) for index in range(logs)]
        for _ in range(10):
            await asyncio.sleep(0)
        begun = [len(scene.log(index).offsets.flushing) for index in range(logs)]
        assert sum(begun) == LOGS_AT_ONCE
        await scene.run_flushes(4 * SYNCS_MAX)
        assert all(each.is_completed and not each.code for each in appended)
        flushers = [scene.log(index).flusher for index in range(logs)]
        assert await scene.group_commit.flush(flushers) == [None] * logs, "nothing is unflushed"

    run(body)


def test_a_pool_that_is_closed_ends_the_flushes_that_wait() -> None:
    async def body(scene: Scene) -> None:
        async def closed(job: Callable[[], None]) -> None:
            raise WorkerPoolClosed

        scene.group_commit.run = closed
        logs = 2 * LOGS_AT_ONCE + 1
        for index in range(logs):
            scene.lead(index)
            scene.append(index=index)
        flushers = [scene.log(index).flusher for index in range(logs)]
        assert await scene.group_commit.flush(flushers) == [None] * logs
        assert scene.log().recovery_point == 0

    run(body)


def test_a_flush_that_begins_while_the_workers_end_is_not_forgotten() -> None:
    """The thread has found no more log, and the loop does not know yet."""

    async def body(scene: Scene) -> None:
        for index in range(2):
            scene.lead(index)
        synced, known = asyncio.Event(), asyncio.Event()

        async def run_later(job: Callable[[], None]) -> None:
            job()
            synced.set()
            await known.wait()

        scene.group_commit.run = run_later
        first = [scene.append(index=0)]
        await synced.wait()
        for _ in range(SYNCS_MAX):
            first.append(scene.append(index=1))
            await asyncio.sleep(0)
        assert not any(each.is_completed for each in first)
        known.set()
        await scene.group_commit.wait([scene.log(0).flusher, scene.log(1).flusher])
        assert all(each.is_completed for each in first)

    run(body)


def test_an_unexpected_error_in_a_worker_acknowledges_nothing() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        scene.lead(1)

        def broken(descriptor: int) -> None:
            raise RuntimeError("no disk does this")

        scene.files.sync = broken  # type: ignore[method-assign]
        appended = [scene.append(), scene.append(index=1)]
        await scene.finish()
        for index, each in enumerate(appended):
            assert each.code == ErrorCode.KAFKA_STORAGE_ERROR
            assert scene.log(index).recovery_point == 0

    run(body)


def test_a_log_that_is_closed_or_a_pool_that_is_closed_ends_the_flush() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        scene.append()
        scene.log().local.release()
        await scene.finish()
        scene.lead(1)

        async def closed(job: Callable[[], None]) -> None:
            raise WorkerPoolClosed

        scene.group_commit.run = closed
        scene.append(index=1)
        await scene.group_commit.flush([scene.log(1).flusher])
        assert scene.log(1).recovery_point == 0

    run(body)


def test_records_of_a_log_that_moved_wait_for_the_flush_of_the_new_log() -> None:
    """What the old disk has is deleted with the old log."""

    async def body(scene: Scene) -> None:
        scene.lead()
        appended = scene.append()
        await asyncio.sleep(0)  # the flush of the old log has begun
        await scene.move()
        scene.files.fail("sync", path_part=scene.log().path)
        await scene.finish()
        assert scene.log().recovery_point == 0
        assert appended.code == ErrorCode.KAFKA_STORAGE_ERROR

    run(body, directories=DISKS)


def test_the_flush_of_a_log_that_moved_acknowledges_its_records() -> None:
    async def body(scene: Scene) -> None:
        scene.lead()
        others = [scene.lead(1 + index) for index in range(LOGS_AT_ONCE)]
        for each in others:
            scene.append(index=each.index)
        await asyncio.sleep(0)
        appended = scene.append()  # its flush has to wait until others have ended
        await scene.move()
        assert not appended.is_completed
        await scene.finish()
        await scene.finish()
        assert scene.log().recovery_point == 1
        assert appended.offset == 0

    run(body, directories=DISKS)
