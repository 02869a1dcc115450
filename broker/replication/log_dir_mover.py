"""Moves replicas between the log directories of this broker (AlterReplicaLogDirs, KIP-113).

A future log (`...-future`) is copied in the other directory while the current log is in use. When
it has caught up, it replaces the current log in one step of the loop, and the old log is deleted.
A move that a restart interrupts is resumed. A move waits while the disk is full, or descriptors are
lacking; after any other error it waits for the next start. Mirrors Kafka's
`ReplicaAlterLogDirsThread`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.replication.fetcher import in_pieces
from ottla.broker.runtime.tasks import WorkerPool, spawn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.steps import Turn
from ottla.protocol.topics import TopicPartition
from ottla.storage.errors import (
    DiskFull,
    ResourceExhausted,
    StorageError,
    UnexpectedAppendOffset,
)
from ottla.storage.files.log_directory import is_exhausted

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.flush import LogFlusher
    from ottla.storage.log.log import Log

    Flush = Callable[[Iterable[LogFlusher]], Awaitable[list[StorageError | None]]]

logger = logging.getLogger("ottla.replication")

# Read at once by a worker thread, and appended in turns.
_CHUNK_BYTES = 1 << 20
# The name is `<topic>-<partition>.<32 digits>-future`; the limit of file systems is 255 bytes.
_COPY_SUFFIX_LENGTH, _NAME_LENGTH_MAX = 1 + 32 + len("-future"), 255
_THROTTLED_SECONDS = 0.1
_CAUGHT_UP_SECONDS = 0.01
# Between attempts of a move that lacks disk space or descriptors.
_RETRY_SECONDS = 1.0


class LogDirMover:
    """One task that copies the future logs of a broker. Loop only."""

    def __init__(
        self,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        workers: WorkerPool,
        flush: Flush,
        now_ms: Callable[[], int],
    ) -> None:
        """`flush` flushes logs: `GroupCommit.flush`."""
        #: `replica.alter.log.dirs.io.max.bytes.per.second`.
        self.throttle = ReplicationQuota()
        self._log_manager = log_manager
        self._replica_manager = replica_manager
        self._workers = workers
        self._flush = flush
        self._now_ms = now_ms
        self._moving: set[TopicPartition] = set()
        # When a move that lacks disk space or descriptors is retried (loop time).
        self._retries: dict[TopicPartition, float] = {}
        # Where copies have to be truncated that could not be, at most one for each copy.
        self._untruncated: dict[TopicPartition, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def resume(self) -> None:
        """Resumes the moves that were in progress when the broker stopped."""
        for log in self._log_manager.logs():
            if self._log_manager.get_future(log.topic, log.partition) is not None:
                self._start(TopicPartition(log.topic, log.partition))

    def move(self, key: TopicPartition, directory: str) -> None:
        """Starts to move a replica; raises KafkaError when it cannot be moved there."""
        directories = self._log_manager.directories
        if len(f"{key.topic}-{key.partition}") + _COPY_SUFFIX_LENGTH > _NAME_LENGTH_MAX:
            # The name of the future log would be truncated, and the log lost at the next start.
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        try:
            target = directories.find(directory)
        except ValueError:
            raise KafkaError(
                ErrorCode.LOG_DIR_NOT_FOUND, f"{directory} is not in log.dirs."
            ) from None
        if target.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory} is offline.")
        log = self._log_manager.get(*key)
        if log is None:
            # It is created there when the controller assigns it.
            self._log_manager.prefer_directory(*key, directory)
        try:
            self._replica_manager.partition(*key)
        except KafkaError as error:
            if error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            log = None
        if log is None:
            raise KafkaError(
                ErrorCode.REPLICA_NOT_AVAILABLE, f"This broker has no replica of {key}."
            )
        if log.log_directory is target:
            self._log_manager.abandon_future(*key, self._now_ms())
            self._moving.discard(key)
            self._untruncated.pop(key, None)
            return
        copy = self._log_manager.get_future(*key)
        is_new = copy is None or copy.log_directory is not target
        if is_new and self._log_manager.offline_directories:
            # There may be a future log already, on the log directory that has failed.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "A log directory is offline.")
        try:
            self._log_manager.create_future(*key, directory, self._now_ms())
        except ValueError as error:  # another name of its directory
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, str(error)) from None
        if is_new:
            self._untruncated.pop(key, None)
        self._start(key)

    def truncated(self, log: Log) -> None:
        """A log was truncated: its future log is truncated to the same offset, or before the next
        chunk if that takes long; a lack of space of the other log directory, or its failure, is
        none of the log."""
        key = TopicPartition(log.topic, log.partition)
        future = self._log_manager.get_future(*key)
        if future is None or future.log_end_offset <= log.log_end_offset:
            return
        self._untruncated[key] = min(
            log.log_end_offset, self._untruncated.get(key, log.log_end_offset)
        )
        if not future.producer_state.is_empty:
            return  # what they have sent is read again: seconds for a large segment
        try:
            self._truncate_copy(key, future)
        except StorageError as error:
            logger.warning(
                "Failed to truncate the copy of %s for another log dir: %s",
                key,
                error,
                extra=key._asdict(),
            )

    def _truncate_copy(self, key: TopicPartition, future: Log) -> None:
        future.truncator.truncate_to(self._untruncated[key])
        del self._untruncated[key]

    async def _truncate_in_parts(self, key: TopicPartition, future: Log) -> None:
        """Does nothing if the future log is deleted, or the log is truncated again, meanwhile."""
        offset, turn = self._untruncated[key], Turn()

        def is_same() -> bool:
            current = self._log_manager.get_future(*key)
            return current is future and self._untruncated.get(key) == offset

        for part in future.truncator.parts(offset):
            with closing(future.truncator.prepare(part)) as steps:
                for work in steps:
                    if work is None:
                        await turn.share()
                    else:
                        await self._workers.run(work)
                    if not is_same():
                        return
            await turn.pause()  # the removal of segments takes milliseconds
            if not is_same():
                return
            future.truncator.truncate_to(part)
        del self._untruncated[key]

    def stop(self) -> None:
        """Stops copying; the copies stay and are resumed at the next start. So do moves that a
        client requests meanwhile: nothing may replace a log while it is closed."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    def _start(self, key: TopicPartition) -> None:
        self._moving.add(key)
        self._retries.pop(key, None)
        if not self._stopped and (self._task is None or self._task.done()):
            self._task = spawn(self._run(), name="log-dir-mover")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._moving:
            due = [key for key in self._moving if self._retries.get(key, 0.0) <= loop.time()]
            for key in due:
                try:
                    await self._copy_chunk(key)
                    self._retries.pop(key, None)
                except Exception as error:  # the other moves go on
                    self._failed(key, error, loop.time())
            if not due:
                await asyncio.sleep(_RETRY_SECONDS)

    def _failed(self, key: TopicPartition, error: Exception, now: float) -> None:
        passes = isinstance(error, DiskFull | ResourceExhausted) or (
            isinstance(error, OSError) and is_exhausted(error)
        )
        if not passes:
            expected = isinstance(error, StorageError | RecordsError | OSError)
            logger.error(
                "Failed to move %s to another log dir, request the move again: %s",
                key,
                error,
                exc_info=None if expected else error,
                extra=key._asdict(),
            )
            self._moving.discard(key)
            self._retries.pop(key, None)
            return
        if key not in self._retries:
            logger.warning(
                "The move of %s to another log dir waits, retrying: %s",
                key,
                error,
                extra=key._asdict(),
            )
        self._retries[key] = now + _RETRY_SECONDS

    async def _copy_chunk(self, key: TopicPartition) -> None:
        """Copies one chunk, or replaces the current log if the future log has caught up."""
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        if self.throttle.is_exceeded(now_ms):
            await asyncio.sleep(_THROTTLED_SECONDS)
            return
        log = self._log_manager.get(*key)
        future = self._log_manager.get_future(*key)
        if log is None or future is None:
            self._moving.discard(key)  # Deleted, or moved back, meanwhile.
            self._untruncated.pop(key, None)
            return
        if future.config is not log.config:
            future.update_config(log.config)  # which decides whether they have leader epochs
        if (end := _end_of_same_records(log, future)) is not None:
            self._untruncated[key] = min(end, self._untruncated.get(key, end))
        if key in self._untruncated:
            await self._truncate_in_parts(key, future)
            return
        if future.log_end_offset < log.local_log_start_offset:
            log.begin_copy(future, self._now_ms())
        start = future.log_end_offset
        truncations = log.truncations
        if start >= log.log_end_offset:
            if future.recovery_point < log.recovery_point:
                await self._flush_copy(key, future)
                return  # the log may have more records by now
            self._replace_current_log(key, log, future)
            await asyncio.sleep(_CAUGHT_UP_SECONDS)
            return
        chunk = log.read(start, _CHUNK_BYTES, up_to=log.log_end_offset).slice
        if chunk is None:
            await asyncio.sleep(_CAUGHT_UP_SECONDS)
            return
        content = await self._workers.run(chunk.read)
        turn = Turn()
        for piece in in_pieces(content):
            if (
                self._log_manager.get_future(*key) is not future
                or future.log_end_offset != start
                # After a truncation the file may have other batches at the same offsets.
                or self._log_manager.get(*key) is not log
                or log.truncations != truncations
            ):
                return
            self._append(future, piece)
            # Or each transaction of the log stays in memory until the end of the move.
            future.update_high_watermark(log.high_watermark)
            self.throttle.record(len(piece), now_ms)
            start = future.log_end_offset
            await turn.share()

    async def _flush_copy(self, key: TopicPartition, future: Log) -> None:
        """What is on disk stays on disk: with `flush.messages` it was acknowledged for that."""
        (error,) = await self._flush([future.flusher])
        if error is not None and self._log_manager.get_future(*key) is future:
            raise error

    def _append(self, future: Log, content: memoryview) -> None:
        now_ms = self._now_ms()
        try:
            future.append_as_follower(content, now_ms=now_ms)
        except UnexpectedAppendOffset as error:
            is_empty = future.local_log_start_offset == future.log_end_offset
            if not (is_empty and error.first_offset < future.log_end_offset <= error.last_offset):
                raise
            # Records were deleted up to the middle of a batch: the future log has the whole batch,
            # and gets the log start offset when it replaces the current log.
            start = min(error.first_offset, future.log_start_offset)
            future.truncator.truncate_fully_and_start_at(error.first_offset, start)
            future.append_as_follower(content, now_ms=now_ms)

    def _replace_current_log(self, key: TopicPartition, log: Log, future: Log) -> None:
        if future.log_end_offset != log.log_end_offset:
            self.truncated(log)
            return
        future.update_config(log.config)
        # All or none: with a part of them the next try would take the copy for a diverged one.
        if log.leader_epochs.entries:
            future.replace_epochs(log.leader_epochs.entries)
        moved = self._log_manager.replace_current_with_future(*key, self._now_ms())
        self._moving.discard(key)
        partition = self._replica_manager.partitions.get(key)
        if partition is not None:
            partition.log = moved  # also if the next call finds the disk of the log failed
        if moved.flusher.exceeds_flush_messages:
            # Responses wait for it now. A flush of the copy may have failed for lack of space.
            moved.flusher.require_flush(self._now_ms())
        if partition is not None:
            self._replica_manager.complete_delayed_requests(partition)
        logger.info(
            "Replaced current log of %s with the future log in %s",
            key,
            moved.log_directory.path,
            extra=key._asdict(),
        )


def _end_of_same_records(log: Log, future: Log) -> int | None:
    """Where the last leader epoch of the copy ends in the log, if that is before the end of the
    copy, which has to be truncated then (Kafka: the same, KIP-101).

    The log may have been truncated and filled again while nothing was copied: before a restart.
    """
    if future.log_end_offset <= future.local_log_start_offset:
        return None
    epoch = future.leader_epochs.latest_epoch
    known, end = log.end_offset_for_epoch(epoch)
    if known < 0 and epoch < 0:
        return None  # no epochs at all: batches of an old format
    if known < 0:
        end = future.leader_epochs.entries[-1][1]  # the log has no batch of this epoch
    elif known != epoch:
        end = min(end, future.leader_epochs.entries[-1][1])
    return None if end >= future.log_end_offset else max(end, 0)
