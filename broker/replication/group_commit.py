"""Flushes that `flush.messages` requires, in worker threads.

Kafka syncs inside of the append. Here the append requests a flush of its log and returns. One flush
of a log runs at a time; what is appended meanwhile is in the next one, so many producers share one
sync. No client learns of a record before its flush: `Partition` keeps the high watermark at or
below the recovery point, responses wait in the produce purgatory (`delayed_flush`), and a follower
waits before its next fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.broker.runtime.tasks import WorkerPoolClosed, spawn
from ottla.storage.errors import LogDirectoryOffline, StorageError

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.log.flush import LogFlusher


class GroupCommit:
    """At most one flush of a log at a time. Loop only."""

    def __init__(
        self,
        run: Callable[[Callable[[], None]], Awaitable[None]],
        now_ms: Callable[[], int],
        replicas: ReplicaManager,
    ) -> None:
        """`run` runs a function in a worker thread."""
        #: Runs a function in a worker thread.
        self.run = run
        self._now_ms = now_ms
        self._replicas = replicas
        # One for each log that is flushed now.
        self._flushes: dict[LogFlusher, asyncio.Task[StorageError | None]] = {}

    def request(self, log: LogFlusher) -> asyncio.Task[StorageError | None]:
        """Flushes a log soon; returns the task of the flush that runs, with its error."""
        task = self._flushes.get(log)
        if task is None:
            # The task starts in the next turn, so that all appends of this one share the flush.
            task = self._flushes[log] = spawn(self._flush(log), name=f"flush-{log.name}")
        return task

    async def flush(self, log: LogFlusher) -> None:
        """Flushes what was appended when the flush began. Raises StorageError."""
        task = self.request(log)
        await asyncio.wait((task,))  # not cancelled with the caller
        error = task.result()
        if error is not None:
            raise error

    async def wait(self, logs: list[LogFlusher]) -> None:
        """Waits for the flushes of logs that run now; they may fail."""
        tasks = [self._flushes[log] for log in logs if log in self._flushes]
        if tasks:
            await asyncio.wait(tasks)  # not cancelled with the caller

    async def _flush(self, log: LogFlusher) -> StorageError | None:
        error = None
        try:
            await self._run_flushes(log)
        except StorageError as failure:
            error = failure
        except WorkerPoolClosed:
            return None  # the broker stops: the log is flushed when it is closed
        finally:
            # Before what may append again.
            del self._flushes[log]
        self._flush_ended(log, error)
        return error

    async def _run_flushes(self, log: LogFlusher) -> None:
        """Until no flush is required; one at least."""
        while not log.is_closed:
            flush = log.begin_flush()
            if flush is not None:
                await self.run(flush.run)
                log.finish_flush(flush, self._now_ms())
            if not log.flush_required:
                return
            self._flush_ended(log, None)

    def _flush_ended(self, log: LogFlusher, error: StorageError | None) -> None:
        """The recovery point advanced, or the flush failed."""
        replicas = self._replicas
        if isinstance(error, LogDirectoryOffline):
            replicas.on_directory_failure(error.directory)
        partition = replicas.partitions.get(log.partition)
        if partition is not None:
            if partition.is_leader:
                partition.maybe_increment_high_watermark()
            replicas.complete_delayed_requests(partition)
