"""Which log is compacted next, and up to which offset. Kafka's `LogCleanerManager`.

The broker calls `dirty_logs` and, for each of them, `begin`, runs the compaction in a worker thread
and passes it to `finish`.
The first dirty offset of each log is in `cleaner-offset-checkpoint` of its log directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

from ottla.protocol.steps import Steps
from ottla.storage.cleaner.compaction import Compaction, CompactionCancelled, Throttle, finish_swap
from ottla.storage.cleaner.offset_map import OffsetMap
from ottla.storage.errors import (
    CorruptFile,
    DiskFull,
    LogDirectoryOffline,
    ResourceExhausted,
)
from ottla.storage.files.checkpoints import Offsets, read_offset_checkpoint, write_offset_checkpoint
from ottla.storage.files.layout import CLEANER_CHECKPOINT, SWAP_SUFFIX
from ottla.storage.files.log_directory import LogDirectory, is_exhausted
from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.storage")

DEFAULT_MEMORY_BYTES = 128 << 20
Key = tuple[str, int]


class CleanableRange(NamedTuple):
    """The offsets and bytes of a log that can be compacted (Kafka: `LogToClean`)."""

    first_dirty_offset: int
    uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        """Dirty bytes as a share of all bytes that are not active, 0.0 to 1.0."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


class Cleaner:
    """Selects logs to compact, at most one compaction per log at a time.

    Used by the thread that owns the logs; only `write_checkpoints` may run in a worker thread.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[Log]],
        *,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        throttle: Throttle = lambda _: None,
        is_moving: Callable[[Log], bool] = lambda _: False,
    ) -> None:
        """`logs` returns all logs; `memory_bytes` limits the offset map of one compaction.

        Raises ValueError when that is too little for a single key. A log for which `is_moving` is
        true is not compacted: its copy may have a record of which the tombstone is not copied yet.
        """
        OffsetMap(memory_bytes)
        self._logs = logs
        self.memory_bytes = memory_bytes
        self._throttle = throttle
        self._is_moving = is_moving
        self._offsets: dict[str, Offsets] = {}
        self._directories: dict[str, LogDirectory] = {}
        self._changed: set[str] = set()
        self._writing = Lock()  # cleaner threads share the files
        self._running: dict[Key, Compaction] = {}
        # Segments that have replaced others, until their new names are durable.
        self._unsynced: dict[Key, Compaction] = {}
        # Logs whose compaction failed, with the reason: not compacted again until a restart.
        self.uncleanable: dict[Key, str] = {}

    @property
    def compactions(self) -> int:
        """The number of logs that are being compacted."""
        return len(self._running)

    def checkpoint_of(self, log: Log) -> int | None:
        """The offset up to which the log was compacted, None if never."""
        return self._checkpoints(log.log_directory).get((log.topic, log.partition))

    def _checkpoints(self, directory: LogDirectory) -> Offsets:
        offsets = self._offsets.get(directory.path)
        if offsets is None:
            path = f"{directory.path}/{CLEANER_CHECKPOINT}"
            try:
                offsets = read_offset_checkpoint(directory.fs, path)
            except (CorruptFile, OSError) as damage:
                logger.warning("Ignoring checkpoint, compacting from the beginning: %s", damage)
                offsets = {}
            self._offsets[directory.path] = offsets
            self._directories[directory.path] = directory
        return offsets

    def _set_checkpoint(self, log: Log, offset: int) -> None:
        self._checkpoints(log.log_directory)[log.topic, log.partition] = offset
        self._changed.add(log.log_directory.path)

    @property
    def has_changed_checkpoints(self) -> bool:
        """Whether `write_checkpoints` has something to write."""
        return bool(self._changed)

    def write_checkpoints(self) -> None:
        """Write the changed checkpoints. Synced. May run in worker threads."""
        retry: set[str] = set()
        with self._writing:
            while self._changed:
                directory = self._directories[self._changed.pop()]
                if directory.is_offline:
                    continue
                try:
                    self._write(directory)
                except OSError as error:
                    directory.write_failed(error)
                    retry.add(directory.path)
        self._changed |= retry

    def _write_first_checkpoint(self, directory: LogDirectory) -> None:
        """In a worker thread. Raises OSError; a log must have no gap before it is written."""
        with self._writing:
            self._changed.discard(directory.path)
            try:
                self._write(directory)
            except OSError:
                self._changed.add(directory.path)
                raise

    def _write(self, directory: LogDirectory) -> None:
        target = f"{directory.path}/{CLEANER_CHECKPOINT}"
        write_offset_checkpoint(directory.fs, target, dict(self._offsets[directory.path]))

    # --- selecting ---------------------------------------------------------------------------

    def cleanable_range(self, log: Log, now_ms: int) -> CleanableRange:
        """Return the part of the log that can be compacted now.

        Not the active segment, nothing above the last stable offset or the recovery point, nothing
        younger than `min.compaction.lag.ms`.
        """
        start = log.log_start_offset
        first_dirty = self.checkpoint_of(log)
        if first_dirty is None or not start <= first_dirty <= log.log_end_offset:
            first_dirty = start
        active = log.local.active
        closed = [s for s in log.segments if s is not active]
        limit = min(log.last_stable_offset, log.recovery_point, active.base_offset)
        lag_ms = log.config.min_compaction_lag_ms
        if lag_ms > 0:
            for segment in log.segments.from_offset(first_dirty):
                if segment is not active and segment.largest_timestamp() > now_ms - lag_ms:
                    limit = min(limit, segment.base_offset)
                    break
        # Whole segments only, without the first one that ends above the limit.
        limit = max(limit, first_dirty)
        bases = [*(s.base_offset for s in closed), active.base_offset]
        uncleanable = next((base for base, end in pairwise(bases) if end > limit), bases[-1])
        # A segment in which the last compaction stopped with a full map is dirty as a whole.
        floor = log.segments.floor(first_dirty)
        dirty_from = first_dirty if floor is None else min(first_dirty, floor.base_offset)
        dirty = [s for s in closed if dirty_from <= s.base_offset < uncleanable]
        clean = sum(s.size for s in closed if s.base_offset < min(dirty_from, uncleanable))
        oldest = min((t for s in dirty if (t := s.rolling_timestamp()) > 0), default=None)
        overdue = oldest is not None and oldest < now_ms - log.config.max_compaction_lag_ms
        cleanable = sum(segment.size for segment in dirty)
        return CleanableRange(first_dirty, uncleanable, clean, cleanable, overdue)

    def dirty_logs(self, now_ms: int) -> Steps[list[Log]]:
        """The logs that need a compaction, those with the highest dirty ratio first.

        May pause after each log.
        """
        found = []
        for log in self._logs():
            dirt = self._needed(log, now_ms)
            if dirt is not None:
                found.append((dirt.ratio, log))
            yield
        found.sort(key=lambda each: each[0], reverse=True)
        return [log for _, log in found]

    def _needed(self, log: Log, now_ms: int) -> CleanableRange | None:
        """Return the range to compact; None if it is not enough, or not possible now."""
        key = (log.topic, log.partition)
        if not log.config.compact or key in self._running or key in self.uncleanable:
            return None
        if log.log_directory.append_error is not None or log.local.closed or self._is_moving(log):
            return None
        try:
            if not self._finish_names(log):
                return None
            dirt = self.cleanable_range(log, now_ms)
        except Exception as error:
            self._cannot_begin(log, error)
            return None
        wanted = dirt.overdue or dirt.ratio > log.config.min_cleanable_dirty_ratio
        return dirt if dirt.cleanable_bytes and wanted else None

    def _cannot_begin(self, log: Log, error: Exception) -> None:
        """An error in one log must not stop the others."""
        if isinstance(error, OSError) and is_exhausted(error):
            log.log_directory.exhausted(error)  # the log is checked again later
        elif not isinstance(error, LogDirectoryOffline):
            self._mark_uncleanable(log, error)

    def begin(self, log: Log, now_ms: int) -> Compaction | None:
        """A compaction of one of the `dirty_logs`; None if it needs none any more."""
        dirt = self._needed(log, now_ms)
        if dirt is None:
            return None
        # Before the first gap in the log: in a log that was never compacted recovery takes gaps for
        # lost records, which a follower fetches again.
        is_first = self.checkpoint_of(log) is None
        prepare = partial(self._write_first_checkpoint, log.log_directory) if is_first else None
        try:
            compaction = Compaction(
                log,
                first_dirty_offset=dirt.first_dirty_offset,
                uncleanable_offset=dirt.uncleanable_offset,
                memory_bytes=self.memory_bytes,
                now_ms=now_ms,
                throttle=self._throttle,
                prepare=prepare,
            )
        except Exception as error:
            self._cannot_begin(log, error)
            return None
        if is_first:
            self._set_checkpoint(log, dirt.first_dirty_offset)
        self._running[log.topic, log.partition] = compaction
        return compaction

    def _finish_names(self, log: Log) -> bool:
        """Whether all segments have their final names, on disk, too. Raises LogDirectoryOffline.

        They need them before the next compaction: after a power failure, the next start removes
        `.swap` files if there are `.cleaned` files. Syncs the directory on the event loop, which
        happens only after a lack of space, descriptors or memory.
        """
        key = (log.topic, log.partition)
        previous = self._unsynced.get(key)
        if previous is not None and previous.log is not log:
            previous = None
        if previous is not None and not (previous.is_synced or previous.sync_failed):
            return False
        names_changed = any(segment.suffix == SWAP_SUFFIX for segment in log.segments)
        if names_changed and finish_swap(log) is not None:
            return False
        if names_changed or (previous is not None and previous.sync_failed):
            try:
                log.log_directory.fs.sync_directory(log.path)
            except OSError as error:
                log.log_directory.read_failed(error)
                if previous is not None:
                    previous.sync_failed = True
                return False
        self._unsynced.pop(key, None)
        return True

    def finish(self, compaction: Compaction, now_ms: int) -> bool:
        """Commit a compaction that has run. False if it failed or was cancelled.

        If it has replaced segments, the log is not compacted again before `Compaction.sync`.
        """
        log = compaction.log
        key = (log.topic, log.partition)
        self._running.pop(key, None)
        error = compaction.error
        if error is not None and compaction.is_first:
            # The log has no gap. The next one has to write the first checkpoint, if that failed.
            self._checkpoints(log.log_directory).pop(key, None)
        if isinstance(error, CompactionCancelled | FileNotFoundError):
            # FileNotFoundError: retention deleted a segment. The compaction is retried later.
            logger.info("%s: Compaction stopped: %s", log.name, error)
            return False
        if isinstance(error, OSError):
            error = log.local.write_failed(error)
        if isinstance(error, DiskFull | ResourceExhausted | LogDirectoryOffline):
            logger.error("%s: Compaction failed: %s", log.name, error)
            return False
        if error is not None and log.local.closed:
            # It was deleted, or moved to another log directory. Its files may be those of a new
            # log by now, which is not the one that cannot be read.
            logger.info("%s: Compaction of a closed log stopped: %s", log.name, error)
            return False
        if error is not None:
            self._mark_uncleanable(log, error)
            return False
        if self._is_moving(log):
            logger.info("%s: Compaction stopped: the log is being moved", log.name)
            compaction.discard()
            return False
        committed = compaction.commit(now_ms)
        if compaction.has_replaced:
            self._unsynced[key] = compaction
        if not committed:
            return False
        self._set_checkpoint(log, compaction.end_offset)
        logger.info(
            "%s: Compacted up to offset %d: %s", log.name, compaction.end_offset, compaction.stats
        )
        return True

    def _mark_uncleanable(self, log: Log, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self.uncleanable[log.topic, log.partition] = reason
        logger.error("%s: The log is uncleanable until the next start: %s", log.name, reason)

    def cancel(self, topic: str, partition: int) -> None:
        """Cancel a running compaction of the log, which is to be deleted or moved."""
        running = self._running.get((topic, partition))
        if running is not None:
            running.cancel()

    def cancel_all(self) -> None:
        """Cancel all running compactions, for shutdown."""
        for running in self._running.values():
            running.cancel()

    def forget(self, topic: str, partition: int) -> None:
        """The log was deleted: removes its checkpoint and its uncleanable mark."""
        self.cancel(topic, partition)
        self._unsynced.pop((topic, partition), None)
        self.uncleanable.pop((topic, partition), None)
        for path, offsets in self._offsets.items():
            if offsets.pop((topic, partition), None) is not None:
                self._changed.add(path)

    def truncated(self, log: Log) -> None:
        """The log was truncated: lowers its checkpoint to the log end."""
        known = self.checkpoint_of(log)
        if known is not None and known > log.log_end_offset:
            self._set_checkpoint(log, log.log_end_offset)
