"""Runs log compaction: chosen on the loop, done in worker threads, put in place on the loop."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.tasks import WorkerPool, spawn, stop
from storage.cleaner import Cleaner

if TYPE_CHECKING:
    from broker.clock import Clock
    from broker.config import BrokerConfig
    from protocol.topics import TopicPartition
    from storage.log import Log
    from storage.log_manager import LogManager

logger = logging.getLogger("ottla.background")


class CompactionWork:
    """`log.cleaner.threads` loops that each compact one log at a time."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, workers: WorkerPool, log_manager: LogManager
    ) -> None:
        self.cleaner = Cleaner(log_manager.logs, memory_bytes=config.log_cleaner_dedupe_buffer_size)
        self._config = config
        self._clock = clock
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to look for logs to compact, if `log.cleaner.enable` is set."""
        if self._config.log_cleaner_enable:
            for number in range(self._config.log_cleaner_threads):
                self._tasks.append(spawn(self._run(), name=f"log-cleaner-{number}"))

    async def stop(self) -> None:
        """Ends the loops; a compaction that runs in a thread is not put in place any more."""
        tasks, self._tasks = self._tasks, []
        await stop(*tasks)

    def deleted(self, partition: TopicPartition) -> None:
        """The log of a partition goes: stop to compact it."""
        self.cleaner.forget(partition.topic, partition.partition)

    def truncated(self, log: Log) -> None:
        """A follower has cut its log."""
        self.cleaner.truncated(log)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._config.log_cleaner_backoff_ms / 1000)
            try:
                await self._compact_what_there_is()
            except Exception:
                logger.exception("compaction failed and will be tried again")

    async def _compact_what_there_is(self) -> None:
        did_any = False
        while True:
            compaction = self.cleaner.next_compaction(self._clock.now_ms())
            if compaction is None:
                break
            await self._workers.run(compaction.run)
            did_any = self.cleaner.finish(compaction, self._clock.now_ms()) or did_any
            if compaction.error is not None:
                break
        if did_any:
            await self._workers.run(self.cleaner.write_checkpoints)
