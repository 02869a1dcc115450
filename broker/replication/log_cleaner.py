"""Runs log compaction: chosen on the loop, done in worker threads, put in place on the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from threading import Event, Lock
from typing import TYPE_CHECKING

from ottla.broker.runtime.tasks import WorkerPool, spawn, stop
from ottla.storage.cleaner.cleaner import Cleaner

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.runtime.clock import Clock
    from ottla.protocol.topics import TopicPartition
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.background")

# As many at once at the most, whatever `log.cleaner.threads` says: they share one interpreter.
_THREADS_MAX = 16
# What was not read in the last second is not made up for later.
_BURST_SECONDS = 1.0
# At this rate nobody is held back: Kafka's default is the largest double.
_UNLIMITED = 1e15


class CleanerThrottler:
    """Holds compactions, all together, to a rate of bytes read and written. For worker threads."""

    def __init__(self, bytes_per_second: Callable[[], float], clock: Clock) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._lock = Lock()
        self._stopped = Event()
        # Until then what was read so far takes at the rate that is allowed.
        self._paid_until = 0.0

    def __call__(self, size: int) -> None:
        """Notes that so many bytes are read or written; waits until the rate allows it."""
        rate = self._bytes_per_second()
        if rate >= _UNLIMITED:
            return
        with self._lock:
            now = self._clock.monotonic()
            # A rate of nothing would wait for ever: one byte a second is close enough to it.
            earliest = max(self._paid_until, now - _BURST_SECONDS)
            self._paid_until = earliest + size / max(rate, 1.0)
            wait = self._paid_until - now
        if wait > 0:
            self._stopped.wait(wait)

    def stop(self) -> None:
        """Nobody waits any more: the broker ends."""
        self._stopped.set()


class LogCleaner:
    """`log.cleaner.threads` loops that each compact one log at a time. Loop only."""

    def __init__(self, config: BrokerConfig, clock: Clock, log_manager: LogManager) -> None:
        self._config = config
        self._clock = clock
        # Threads of their own: a compaction may take minutes, and is made to wait when throttled.
        self._workers = WorkerPool(threads=_THREADS_MAX, name="cleaner")
        self._throttle = CleanerThrottler(lambda: config.log_cleaner_io_max_bytes_per_second, clock)
        self.cleaner = Cleaner(
            log_manager.logs, memory_bytes=self._memory_bytes(), throttle=self._throttle
        )
        self._started = False
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def _memory_bytes(self) -> int:
        """For one compaction: the setting is for all of them together."""
        config = self._config
        return config.log_cleaner_dedupe_buffer_size // max(1, config.log_cleaner_threads)

    def start(self) -> None:
        """Begins to look for logs to compact, if `log.cleaner.enable` is set."""
        self._started = self._config.log_cleaner_enable
        self.settings_changed()

    def settings_changed(self) -> None:
        """Takes new values of `log.cleaner.*`; loops that are too many end after their log."""
        self.cleaner.memory_bytes = self._memory_bytes()
        if not self._started:
            return
        for number in range(self._config.log_cleaner_threads):
            if number not in self._tasks:
                self._tasks[number] = spawn(self._run(number), name=f"log-cleaner-{number}")

    async def stop(self) -> None:
        """Ends the loops; a compaction that runs in a thread ends soon and is thrown away."""
        self._started = False
        tasks, self._tasks = list(self._tasks.values()), {}
        await stop(*tasks)
        self.cleaner.cancel_all()
        self._throttle.stop()
        await self._workers.close()

    def deleted(self, partition: TopicPartition) -> None:
        """The log of a partition goes: stop to compact it."""
        self.cleaner.forget(partition.topic, partition.partition)

    def truncated(self, log: Log) -> None:
        """A follower has cut its log."""
        self.cleaner.truncated(log)

    async def _run(self, number: int) -> None:
        while number < self._config.log_cleaner_threads:
            await asyncio.sleep(self._config.log_cleaner_backoff_ms / 1000)
            try:
                await self._compact_what_there_is()
            except Exception:
                logger.exception("compaction failed and will be tried again")
        del self._tasks[number]

    async def _compact_what_there_is(self) -> None:
        did_any = False
        while True:
            compaction = self.cleaner.next_compaction(self._clock.now_ms())
            if compaction is None:
                break
            await self._workers.run(compaction.run)
            if self.cleaner.finish(compaction, self._clock.now_ms()):
                did_any = True
                await self._workers.run(compaction.sync)
            if compaction.error is not None:
                break
        if did_any:
            await self._workers.run(self.cleaner.write_checkpoints)
