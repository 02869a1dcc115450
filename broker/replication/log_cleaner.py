"""Runs log compaction: the loop selects a log, a worker thread cleans it, the loop swaps the
segments."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from threading import Event, Lock
from typing import TYPE_CHECKING

from ottla.broker.runtime.tasks import WorkerPool, spawn, stop
from ottla.protocol.steps import Turn, run_in_turns
from ottla.storage.cleaner.cleaner import Cleaner

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.runtime.clock import Clock
    from ottla.protocol.topics import TopicPartition
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.background")

# The limit for `log.cleaner.threads`, as the threads share one interpreter.
_THREADS_MAX = 16
# The part of the rate that was not used in the last second is not saved up.
_BURST_SECONDS = 1.0
# From this rate on nothing is throttled: Kafka's default is the largest double.
_UNLIMITED = 1e15


class CleanerThrottler:
    """Limits the bytes that all compactions read and write per second
    (`log.cleaner.io.max.bytes.per.second`). For worker threads."""

    def __init__(self, bytes_per_second: Callable[[], float], clock: Clock) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._lock = Lock()
        self._stopped = Event()
        # The time until which the bytes so far last at the allowed rate.
        self._busy_until = 0.0

    def __call__(self, size: int) -> None:
        """Records bytes read or written; blocks until the rate allows them."""
        rate = self._bytes_per_second()
        if rate >= _UNLIMITED:
            return
        with self._lock:
            now = self._clock.monotonic()
            # A rate of zero would block for ever: one byte a second instead.
            earliest = max(self._busy_until, now - _BURST_SECONDS)
            self._busy_until = earliest + size / max(rate, 1.0)
            wait = self._busy_until - now
        if wait > 0:
            self._stopped.wait(wait)

    def stop(self) -> None:
        """Ends all waits, for the shutdown of the broker."""
        self._stopped.set()


class LogCleaner:
    """`log.cleaner.threads` tasks that each compact one log at a time. Loop only.

    Mirrors Kafka's `LogCleaner`; which log is the dirtiest is decided in `ottla.storage.cleaner`.
    """

    def __init__(self, config: BrokerConfig, clock: Clock, log_manager: LogManager) -> None:
        self._config = config
        self._clock = clock
        # Threads of its own: a compaction may take minutes, and blocks when it is throttled.
        self._workers = WorkerPool(threads=_THREADS_MAX, name="cleaner")
        self._throttle = CleanerThrottler(lambda: config.log_cleaner_io_max_bytes_per_second, clock)
        self._log_manager = log_manager
        self.cleaner = Cleaner(
            log_manager.logs,
            memory_bytes=self._memory_bytes(),
            throttle=self._throttle,
            is_moving=self._is_moving,
        )
        self._started = False
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def _is_moving(self, log: Log) -> bool:
        """Whether the log is being copied to another log directory, one that has not failed."""
        copy = self._log_manager.get_future(log.topic, log.partition)
        return copy is not None and not copy.log_directory.is_offline

    def _memory_bytes(self) -> int:
        """The share of one compaction: the setting is the sum of all."""
        config = self._config
        return config.log_cleaner_dedupe_buffer_size // max(1, config.log_cleaner_threads)

    def start(self) -> None:
        """Starts the tasks, if `log.cleaner.enable` is set."""
        self._started = self._config.log_cleaner_enable
        self.settings_changed()

    def settings_changed(self) -> None:
        """Applies new values of `log.cleaner.*`; surplus tasks end after their current log."""
        self.cleaner.memory_bytes = self._memory_bytes()
        if not self._started:
            return
        for number in range(self._config.log_cleaner_threads):
            if number not in self._tasks:
                self._tasks[number] = spawn(self._run(number), name=f"log-cleaner-{number}")

    async def stop(self) -> None:
        """Ends the tasks; a running compaction is aborted and its result dropped."""
        self._started = False
        tasks, self._tasks = list(self._tasks.values()), {}
        await stop(*tasks)
        self.cleaner.cancel_all()
        self._throttle.stop()
        await self._workers.close()

    def deleted(self, partition: TopicPartition) -> None:
        """The log of a partition is being deleted: aborts its compaction."""
        self.cleaner.forget(partition.topic, partition.partition)

    def truncated(self, log: Log) -> None:
        """A follower has truncated its log."""
        self.cleaner.truncated(log)

    async def _run(self, number: int) -> None:
        while number < self._config.log_cleaner_threads:
            await asyncio.sleep(self._config.log_cleaner_backoff_ms / 1000)
            try:
                await self._clean_logs()
            except Exception:
                logger.exception("Log cleaner failed, retrying")
        del self._tasks[number]

    async def _clean_logs(self) -> None:
        while await self._clean_dirtiest():
            pass
        # Also of deleted logs: after a restart a new log of the same name would start with them.
        if self.cleaner.has_changed_checkpoints:
            await self._workers.run(self.cleaner.write_checkpoints)

    async def _clean_dirtiest(self) -> bool:
        """Compacts the logs that are dirty now, until it is time to see which they are then.

        False if none was compacted. What another task has compacted meanwhile is left out. One
        that fails does not hold up the others: it may fail each time, and be the dirtiest.
        """
        cleaner, clock = self.cleaner, self._clock
        dirty = await run_in_turns(cleaner.dirty_logs(clock.now_ms()))
        order_is_old_at = clock.monotonic() + self._config.log_cleaner_backoff_ms / 1000
        has_cleaned, turn = False, Turn()
        for log in dirty:
            compaction = cleaner.begin(log, clock.now_ms())
            if compaction is None:
                await turn.share()
                continue
            await self._workers.run(compaction.run)
            cleaner.finish(compaction, clock.now_ms())
            if compaction.has_replaced:
                await self._workers.run(compaction.sync)
            has_cleaned |= compaction.error is None
            if has_cleaned and clock.monotonic() >= order_is_old_at:
                break
        return has_cleaned
