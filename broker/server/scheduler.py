"""The background jobs of a broker: retention, flushing, checkpoints, lagging replicas.

Each job runs every so often; what may block runs in worker threads. A job that fails is logged and
runs again at its next time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.broker.runtime.tasks import WorkerPool, spawn, stop
from ottla.protocol.steps import run_in_turns
from ottla.storage.errors import DiskFull, ResourceExhausted

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.replication.group_commit import GroupCommit
    from ottla.broker.replication.isr import IsrManager
    from ottla.broker.replication.log_cleaner import LogCleaner
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.runtime.clock import Clock
    from ottla.storage.directories.log_manager import LogManager

logger = logging.getLogger("ottla.background")

# How often to check which logs are to be flushed (`flush.ms`); Kafka's own setting for this is
# "never" by default, with flushing left to the operating system.
_FLUSH_CHECK_MS = 1_000
_TICK_MS = 1_000
_PURGE_MS = 10_000
# Twice as long after its partition was given to others, a log without StopReplica is renamed.
_MISSED_DELETIONS_MS = 15_000
# A znode that denies what it covers serves again so long after it was repaired by hand.
_REPAIRS_MS = 5_000
# What is left free (`ottla.log.dir.min.free.bytes`) has to last from one check to the next.
_ROOM_CHECK_MS = 1_000
# A fault is over so long after an operator discarded what was set aside.
_SET_ASIDE_CHECK_MS = 5_000
# Appends to an open file of a log that is gone succeed, and nothing is left of them.
_GONE_CHECK_MS = 5_000


class BrokerScheduler:
    """Starts and stops the jobs of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        workers: WorkerPool,
        log_manager: LogManager,
        group_commit: GroupCommit,
        replica_manager: ReplicaManager,
        isr_manager: IsrManager,
        compaction: LogCleaner,
        look_for_missed_deletions: Callable[[], Awaitable[None]],
        on_tick: Callable[[], None],
        look_for_repairs: Callable[[], Awaitable[None]],
    ) -> None:
        """`look_for_missed_deletions` renames logs that are not assigned to this broker any more,
        and removes deleted topics from the metadata; `on_tick` runs once a second, on the loop;
        `look_for_repairs` reads znodes again that could not be used."""
        self._look_for_repairs = look_for_repairs
        self._config = config
        self._clock = clock
        self._workers = workers
        self._log_manager = log_manager
        self._group_commit = group_commit
        self._replica_manager = replica_manager
        self._isr_manager = isr_manager
        self._compaction = compaction
        self._look_for_missed_deletions = look_for_missed_deletions
        self._on_tick = on_tick
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins all jobs; the slow ones first run after `log.initial.task.delay.ms`."""
        config = self._config
        delay_ms = config.log_initial_task_delay_ms
        logs = self._log_manager
        workers = self._workers

        def in_worker(job: Callable[[], object]) -> Callable[[], Awaitable[object]]:
            return lambda: workers.run(job)

        self._every("retention", config.log_retention_check_interval_ms, self._clean_up, delay_ms)
        self._every("flush", _FLUSH_CHECK_MS, self._flush, delay_ms)
        self._every(
            "recovery-point-checkpoint",
            config.log_flush_offset_checkpoint_interval_ms,
            in_worker(logs.checkpoint_recovery_points),
            delay_ms,
        )
        self._every(
            "log-start-checkpoint",
            config.log_flush_start_offset_checkpoint_interval_ms,
            in_worker(logs.checkpoint_log_starts),
            delay_ms,
        )
        self._every(
            "high-watermark-checkpoint",
            config.replica_high_watermark_checkpoint_interval_ms,
            in_worker(logs.checkpoint_high_watermarks),
        )
        self._every("purge", _PURGE_MS, lambda: workers.run(logs.purge, self._clock.now_ms()))
        self._every("disk-space", _ROOM_CHECK_MS, self.check_free_space)
        self._every("set-aside", _SET_ASIDE_CHECK_MS, self._check_set_aside)
        self._every("gone-logs", _GONE_CHECK_MS, in_worker(logs.find_gone))
        self._every(
            "producer-expiry", config.producer_id_expiration_check_interval_ms, self._expire
        )
        self._every("tick", _TICK_MS, self._tick)
        self._every("missed-deletions", _MISSED_DELETIONS_MS, self._look_for_missed_deletions)
        self._every("repaired-znodes", _REPAIRS_MS, self._look_for_repairs)
        # Half of the allowed lag: a replica leaves the in-sync set after 1 to 1.5 times that.
        self._every("isr-shrink", config.replica_lag_time_max_ms // 2, self._shrink)

        self._compaction.start()

    async def stop(self) -> None:
        """Ends the jobs; what runs in a worker thread now is waited for by the pool."""
        tasks, self._tasks = self._tasks, []
        await stop(*tasks)
        await self._compaction.stop()

    def _every(
        self,
        name: str,
        interval_ms: int,
        job: Callable[[], Awaitable[object]],
        delay_ms: int = 0,
    ) -> None:
        self._tasks.append(spawn(_repeat(name, interval_ms, job, delay_ms), name=name))

    async def _clean_up(self) -> None:
        if self._config.remote_log_storage_system_enable:
            # Of a log with remote segments what is below the log start is deleted when that is on
            # disk: after a crash, what is missing there would be looked for in remote storage.
            await self._workers.run(self._log_manager.checkpoint_log_starts)
        deleted = await run_in_turns(self._log_manager.cleanup(self._clock.now_ms()))
        if deleted:
            logger.info("Deleted %d segments by retention", deleted)

    async def check_free_space(self) -> None:
        """Mark the log directories that are full. The start does it before clients are served."""
        logs = self._log_manager
        logs.update_free_bytes(await self._workers.run(logs.measure_free_bytes))

    async def _check_set_aside(self) -> None:
        logs = self._log_manager
        logs.forget_restored(await self._workers.run(logs.find_restored))

    async def _flush(self) -> None:
        due = self._log_manager.flushes_due(self._clock.now_ms())
        errors = await self._group_commit.flush(log.flusher for log in due)
        for log, error in zip(due, errors, strict=True):
            # Those two are logged once for the whole disk.
            if error is not None and not isinstance(error, DiskFull | ResourceExhausted):
                logger.error("Failed to flush %s, retrying at its next flush: %s", log.name, error)

    async def _expire(self) -> None:
        await run_in_turns(self._log_manager.remove_expired_producers(self._clock.now_ms()))

    async def _tick(self) -> None:
        self._on_tick()

    async def _shrink(self) -> None:
        led = self._replica_manager.led_partitions()
        await run_in_turns(self._isr_manager.maybe_shrink(led))


async def _repeat(
    name: str, interval_ms: int, job: Callable[[], Awaitable[object]], delay_ms: int
) -> None:
    await asyncio.sleep(delay_ms / 1000)
    while True:
        await asyncio.sleep(max(interval_ms, 1) / 1000)
        try:
            await job()
        except Exception:
            if not threading.main_thread().is_alive():
                return  # the interpreter ends, and has ended the worker threads first
            logger.exception("job %s failed; it runs again at its next time", name)
