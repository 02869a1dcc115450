"""Flushes that `flush.messages` requires, in worker threads, of many logs at a time.

Kafka syncs inside of the append. Here the append requests a flush of its log and returns. Worker
threads take the logs that wait one after the other. The event loop gets the ones that are done
together, and sends the responses to their producers in one iteration. What is appended to a log
during its flush is in the next one, so many producers share one sync.

No client learns of a record before its flush: `Partition` keeps the high watermark at or below the
recovery point, responses wait in the produce purgatory (`delayed_writes`), and a follower waits
before its next fetch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ottla.broker.runtime.tasks import WorkerPoolClosed, spawn
from ottla.storage.errors import LogDirectoryOffline, StorageError

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.log.flush import Flush, LogFlusher

    Waiting = dict[LogFlusher, asyncio.Future[StorageError | None]]

# As many as Kafka has threads for requests (`num.io.threads`). File systems commit concurrent syncs
# together.
SYNCS_MAX = 8
# Flushes that are begun and not finished: each keeps its segments open. And what a turn of the loop
# begins or finishes takes 0.1 ms a log, with the responses.
LOGS_AT_ONCE = 64


class GroupCommit:
    """At most one flush of a log at a time. Loop only, but for `_sync`."""

    def __init__(
        self,
        run: Callable[[Callable[[], None]], Awaitable[None]],
        now_ms: Callable[[], int],
        replicas: ReplicaManager,
        together: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        """`run` runs a function in a worker thread, `together` one that sends many responses."""
        #: Runs a function in a worker thread.
        self.run = run
        self._together = together
        self._now_ms = now_ms
        self._replicas = replicas
        # Each log is in one of these at a time, once: there are no more entries than logs.
        self._requested: dict[LogFlusher, None] = {}
        self._begun: deque[tuple[LogFlusher, Flush]] = deque()
        self._synced: deque[tuple[LogFlusher, Flush]] = deque()
        # Those whose flush has begun and was not finished yet.
        self._running: set[LogFlusher] = set()
        self._workers = 0
        # Whether a call of `_begin`, and one of `_finish`, is scheduled.
        self._begins = self._finishes = False
        # Of those that wait for the next flush of a log, and for one that has begun: with many
        # producers another one follows each flush, for as long as they send.
        self._next_ended: Waiting = {}
        self._ended: Waiting = {}

    def request(self, log: LogFlusher) -> None:
        """Flushes a log soon. While it is flushed, what comes meanwhile is flushed next."""
        if log in self._running or log in self._requested:
            return
        self._requested[log] = None
        self._begin_soon()

    def _begin_soon(self) -> None:
        """In the next turn, so that all appends of this one share the flush."""
        if not self._begins and len(self._running) < LOGS_AT_ONCE:
            self._begins = True
            asyncio.get_running_loop().call_soon(self._begin)

    async def flush(self, logs: Iterable[LogFlusher]) -> list[StorageError | None]:
        """Flushes what was appended to each log when its flush began. Returns their errors."""
        ended = []
        for log in logs:
            self.request(log)
            ended.append(self._end_of(log))
        if ended:
            await asyncio.wait(ended)  # not cancelled with the caller
        return [each.result() for each in ended]

    async def wait(self, logs: Iterable[LogFlusher]) -> None:
        """Waits until what was appended to logs is flushed, or not for an error: for the flushes
        that are requested now, and those that run with the next one that they require."""
        requested, running = self._requested, self._running
        ended = [self._end_of(log) for log in logs if log in requested or log in running]
        if ended:
            await asyncio.wait(ended)  # not cancelled with the caller

    def _end_of(self, log: LogFlusher) -> asyncio.Future[StorageError | None]:
        ended = self._next_ended.get(log)
        if ended is None:
            ended = self._next_ended[log] = asyncio.get_running_loop().create_future()
        return ended

    def _begin(self) -> None:
        """Begins the flushes that were requested; those above the bound when others have ended."""
        self._begins = False
        requested = self._requested
        ended: list[tuple[LogFlusher, StorageError | None]] = []
        for log in list(islice(requested, LOGS_AT_ONCE - len(self._running))):
            del requested[log]
            if (waiting := self._next_ended.pop(log, None)) is not None:
                self._ended[log] = waiting
            try:
                flush = None if log.is_closed else log.begin_flush()
            except StorageError as error:
                ended.append((log, error))
                continue
            if flush is None:
                ended.append((log, None))
                continue
            self._running.add(log)
            self._begun.append((log, flush))
        if requested:
            self._begin_soon()
        loop = asyncio.get_running_loop()
        for _ in range(min(len(self._begun), SYNCS_MAX - self._workers)):
            self._workers += 1
            spawn(self._work(partial(self._sync, loop)), name="group-commit")
        for log, outcome in ended:
            self._flush_ended(log, outcome)

    async def _work(self, sync: Callable[[], None]) -> None:
        try:
            # Those that `_begin` adds after the thread has found none are left to this task.
            while self._begun:
                try:
                    await self.run(sync)
                finally:
                    self._finish()
        except WorkerPoolClosed:
            # The broker stops: the logs are flushed when they are closed.
            while self._begun:
                log, _ = self._begun.popleft()
                self._running.discard(log)
                _resolve(self._ended, log, None)
                _resolve(self._next_ended, log, None)
        finally:
            self._workers -= 1
            if self._requested:
                self._begin_soon()

    def _sync(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a worker thread: syncs while logs wait. What `_work` finishes is not announced."""
        begun, synced = self._begun, self._synced
        for _ in range(LOGS_AT_ONCE):
            try:
                each = begun.popleft()
            except IndexError:
                return
            try:
                each[1].run()
            finally:
                synced.append(each)
            if begun and not self._finishes:
                self._finishes = True
                loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        """Finishes the flushes that were synced."""
        self._together(self._finish_synced)

    def _finish_synced(self) -> None:
        self._finishes = False  # before what a thread may add meanwhile, which announces it again
        synced, now_ms = self._synced, self._now_ms()
        for _ in range(len(synced)):
            log, flush = synced.popleft()
            error = None
            try:
                log.finish_flush(flush, now_ms)
            except StorageError as failure:
                error = failure
            self._running.discard(log)  # before what may append again
            if error is None and log.flush_required:
                self.request(log)
            self._flush_ended(log, error)
        if self._requested:
            self._begin_soon()

    def _flush_ended(self, log: LogFlusher, error: StorageError | None) -> None:
        """The recovery point advanced, or the flush failed."""
        replicas = self._replicas
        _resolve(self._ended, log, error)
        if log not in self._requested:
            _resolve(self._next_ended, log, error)
        if isinstance(error, LogDirectoryOffline):
            replicas.on_directory_failure(error.directory)
        partition = replicas.partitions.get(log.partition)
        if partition is not None:
            if partition.is_leader:
                partition.maybe_increment_high_watermark()
            replicas.complete_delayed_requests(partition)


def _resolve(waiting: Waiting, log: LogFlusher, error: StorageError | None) -> None:
    ended = waiting.pop(log, None)
    if ended is not None:
        ended.set_result(error)
