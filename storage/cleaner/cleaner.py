"""Which log is compacted next, and up to where: `LogCleanerManager` of Kafka.

The broker asks `next_compaction` for work, runs it in a worker thread and hands it to `finish`.
How far each log has been compacted is kept in `cleaner-offset-checkpoint` of its log directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

from ottla.storage.cleaner.compaction import Compaction, CompactionCancelled, Throttle
from ottla.storage.cleaner.offset_map import OffsetMap
from ottla.storage.errors import CorruptFile
from ottla.storage.files.checkpoints import Offsets, read_offset_checkpoint, write_offset_checkpoint
from ottla.storage.files.layout import CLEANER_CHECKPOINT
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.storage")

DEFAULT_MEMORY_BYTES = 128 << 20
Key = tuple[str, int]


class Dirt(NamedTuple):
    """How much of a log could be compacted."""

    first_dirty_offset: int
    uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


class Cleaner:
    """Chooses logs to compact, one compaction at a time for each log.

    Used by the thread that owns the logs; only `write_checkpoints` may run elsewhere.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[Log]],
        *,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        throttle: Throttle = lambda _: None,
    ) -> None:
        """`logs` gives all logs; `memory_bytes` is for the keys of one compaction.

        Raises ValueError when that is too little for any key.
        """
        OffsetMap(memory_bytes)
        self._logs = logs
        self.memory_bytes = memory_bytes
        self._throttle = throttle
        self._offsets: dict[str, Offsets] = {}
        self._directories: dict[str, LogDirectory] = {}
        self._changed: set[str] = set()
        self._running: dict[Key, Compaction] = {}
        # Logs that could not be compacted, with the reason: left alone until the next start.
        self.uncleanable: dict[Key, str] = {}

    def checkpoint_of(self, log: Log) -> int | None:
        """Up to where the log has been compacted, None when it never was."""
        return self._checkpoints(log.log_directory).get((log.topic, log.partition))

    def _checkpoints(self, directory: LogDirectory) -> Offsets:
        offsets = self._offsets.get(directory.path)
        if offsets is None:
            path = f"{directory.path}/{CLEANER_CHECKPOINT}"
            try:
                offsets = read_offset_checkpoint(directory.fs, path)
            except (CorruptFile, OSError) as damage:
                logger.warning("compacting from the beginning again: %s", damage)
                offsets = {}
            self._offsets[directory.path] = offsets
            self._directories[directory.path] = directory
        return offsets

    def _note(self, log: Log, offset: int) -> None:
        self._checkpoints(log.log_directory)[log.topic, log.partition] = offset
        self._changed.add(log.log_directory.path)

    def write_checkpoints(self) -> None:
        """Writes the checkpoints that changed; synced. May run in a worker thread."""
        retry: set[str] = set()
        while self._changed:
            path = self._changed.pop()
            directory = self._directories[path]
            if directory.is_offline:
                continue
            try:
                target = f"{path}/{CLEANER_CHECKPOINT}"
                write_offset_checkpoint(directory.fs, target, dict(self._offsets[path]))
            except OSError as error:
                directory.refused(error)
                retry.add(path)
        self._changed |= retry

    # --- choosing ----------------------------------------------------------------------------

    def dirt_of(self, log: Log, now_ms: int) -> Dirt:
        """How much of the log could be compacted now.

        Never the active segment, nothing above the last stable offset or the recovery point,
        nothing younger than `min.compaction.lag.ms`.
        """
        start = log.log_start_offset
        first_dirty = self.checkpoint_of(log)
        if first_dirty is None or not start <= first_dirty <= log.log_end_offset:
            first_dirty = start
        active = log.active_segment
        closed = [s for s in log.segments if s is not active]
        limit = min(log.last_stable_offset, log.recovery_point, active.base_offset)
        lag_ms = log.config.min_compaction_lag_ms
        if lag_ms > 0:
            for segment in log.segments.from_offset(first_dirty):
                if segment is not active and segment.largest_timestamp() > now_ms - lag_ms:
                    limit = min(limit, segment.base_offset)
                    break
        # Whole segments only: the first that reaches to the limit or beyond stays out.
        limit = max(limit, first_dirty)
        bases = [*(s.base_offset for s in closed), active.base_offset]
        uncleanable = next((base for base, end in pairwise(bases) if end > limit), bases[-1])
        # A segment in which a compaction had to end, for want of memory, is dirty as a whole.
        floor = log.segments.floor(first_dirty)
        dirty_from = first_dirty if floor is None else min(first_dirty, floor.base_offset)
        dirty = [s for s in closed if dirty_from <= s.base_offset < uncleanable]
        clean = sum(s.size for s in closed if s.base_offset < min(dirty_from, uncleanable))
        oldest = min((t for s in dirty if (t := s.rolling_timestamp()) > 0), default=None)
        overdue = oldest is not None and oldest < now_ms - log.config.max_compaction_lag_ms
        cleanable = sum(segment.size for segment in dirty)
        return Dirt(first_dirty, uncleanable, clean, cleanable, overdue)

    def next_compaction(self, now_ms: int) -> Compaction | None:
        """The dirtiest log that is dirty enough (or overdue), ready to run; None without one."""
        best: tuple[float, Log, Dirt] | None = None
        for log in self._logs():
            key = (log.topic, log.partition)
            if not log.config.compact or key in self._running or key in self.uncleanable:
                continue
            if log.log_directory.append_error is not None or log.is_closed:
                continue
            try:
                dirt = self.dirt_of(log, now_ms)
            except Exception as error:  # whatever is wrong with one log, the others go on
                self._give_up(log, error)
                continue
            wanted = dirt.overdue or dirt.ratio > log.config.min_cleanable_dirty_ratio
            if dirt.cleanable_bytes and wanted and (best is None or dirt.ratio > best[0]):
                best = (dirt.ratio, log, dirt)
        if best is None:
            return None
        _, log, dirt = best
        if self.checkpoint_of(log) is None:
            # Before the first gap appears in the log: recovery takes gaps in a log that is not
            # known to be compacted for lost records.
            self._note(log, dirt.first_dirty_offset)
            self.write_checkpoints()
        compaction = Compaction(
            log,
            first_dirty_offset=dirt.first_dirty_offset,
            uncleanable_offset=dirt.uncleanable_offset,
            memory_bytes=self.memory_bytes,
            now_ms=now_ms,
            throttle=self._throttle,
        )
        self._running[log.topic, log.partition] = compaction
        return compaction

    def finish(self, compaction: Compaction, now_ms: int) -> bool:
        """Puts a compaction that has run in place. False when it came to nothing."""
        log = compaction.log
        self._running.pop((log.topic, log.partition), None)
        error = compaction.error
        if isinstance(error, CompactionCancelled | FileNotFoundError):
            # Segments that went away under it: retention was faster. It will be tried again.
            logger.info("%s: compaction stopped: %s", log.name, error)
            return False
        if isinstance(error, OSError):
            logger.error("%s", log.local.write_failed(error))
            return False
        if error is not None:
            self._give_up(log, error)
            return False
        if not compaction.commit(now_ms):
            return False
        self._note(log, compaction.end_offset)
        logger.info(
            "%s: compacted up to offset %d: %s", log.name, compaction.end_offset, compaction.stats
        )
        return True

    def _give_up(self, log: Log, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self.uncleanable[log.topic, log.partition] = reason
        logger.error("%s will not be compacted until the next start: %s", log.name, reason)

    def cancel(self, topic: str, partition: int) -> None:
        """Stops a compaction of the log soon, because it is to be deleted or moved."""
        running = self._running.get((topic, partition))
        if running is not None:
            running.cancel()

    def cancel_all(self) -> None:
        """Stops all compactions soon, because the broker ends."""
        for running in self._running.values():
            running.cancel()

    def forget(self, topic: str, partition: int) -> None:
        """The log is gone: a later one of the same name begins anew."""
        self.cancel(topic, partition)
        self.uncleanable.pop((topic, partition), None)
        for path, offsets in self._offsets.items():
            if offsets.pop((topic, partition), None) is not None:
                self._changed.add(path)

    def truncated(self, log: Log) -> None:
        """The log was truncated: what is appended from there on has not been compacted."""
        known = self.checkpoint_of(log)
        if known is not None and known > log.log_end_offset:
            self._note(log, log.log_end_offset)
