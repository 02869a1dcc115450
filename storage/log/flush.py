"""Flushing and closing logs: syncing may run in a worker thread, everything else may not.

Most of the time of a close goes into syncing. `close_logs` syncs many logs together, which disks do
faster in parallel.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ottla.storage.errors import LogGone, StorageError
from ottla.storage.files.fs import READ_ONLY, UNUSABLE_FILE
from ottla.storage.files.log_directory import NO_SPACE, is_exhausted
from ottla.storage.files.open_files import OpenFile
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.local_log import LocalLog
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.producer.producer_state import ProducerState

if TYPE_CHECKING:
    from ottla.storage.files.log_directory import LogDirectory
    from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.storage")


class Synced(Protocol):
    """A file, or a directory, of which a flush syncs the changes."""

    #: How often it was changed.
    changes: int
    #: `changes` of what the last flush that succeeded has synced.
    synced_changes: int


class Flush:
    """Syncs every file that has data at or above the recovery point and was changed.

    Creating one, on the thread that owns the log, writes pending index entries. `run` syncs and
    stores an error for `LogFlusher.finish_flush`. After a successful run everything below `offset`
    is on disk. A truncation of the log meanwhile lowers `offset` (`LogOffsets.flushing`).

    As Kafka's `LocalLog.flush` it syncs the segments above the recovery point, and the directory
    only if there are new names in it. Other files are synced once after each change.
    """

    __slots__ = (
        "_directory",
        "_files",
        "_fs",
        "_paths",
        "_syncing",
        "_syncs_names",
        "_unsynced",
        "_where",
        "error",
        "offset",
    )

    def __init__(
        self, local: LocalLog, offsets: LogOffsets, producers: ProducerState, epochs: LeaderEpochs
    ) -> None:
        directory = local.directory
        self._fs = directory.fs
        # A move between log directories ends with a rename, perhaps while this runs.
        self._where = directory
        self._directory = directory.path
        self._files: list[OpenFile] = []
        self._paths: list[str] = []
        # What is synced, and its `changes` now: those that come meanwhile are for the next flush.
        self._unsynced: list[tuple[Synced, int]] = []
        self.offset = offsets.log_end_offset
        self.error: OSError | None = OSError(errno.ECANCELED, "the flush has not run")
        self._syncing = False
        point = offsets.recovery_point
        segments = local.segments.from_offset(point)
        for segment in segments:
            self._files.append(segment.log.file())
            for index in (segment.offset_index, segment.time_index):
                index.write()
                if index.changes != index.synced_changes:
                    self._add(index, index.path)
        # A snapshot matters as much as the segment it belongs to: with it, recovery does not read
        # the older segments again.
        snapshots = producers.snapshots_from(point)
        self._paths += map(producers.snapshot_path, snapshots)
        self._syncs_names = bool(snapshots)
        for segment in segments:
            aborted = segment.txn_index
            if aborted.changes != aborted.synced_changes:
                self._add(aborted, aborted.path if aborted.exists else None)
                self._syncs_names = True
        if epochs.changes != epochs.synced_changes:
            self._add(epochs, epochs.path)
            self._syncs_names = True
        if directory.changes != directory.synced_changes:
            self._add(directory, directory.metadata_path)
            self._syncs_names = True

    def _add(self, unsynced: Synced, path: str | None) -> None:
        self._unsynced.append((unsynced, unsynced.changes))
        if path is not None:
            self._paths.append(path)

    def run(self) -> None:
        """Sync. Safe in a worker thread while the log is appended to, rolled or truncated."""
        try:
            for file in self._files:
                self._sync(file.descriptor)
            self._sync_names()
            self.error = None
        except OSError as error:
            self.error = error
        self.run_if_renamed()

    def run_if_renamed(self) -> None:
        """Sync again what was not found because the directory was renamed meanwhile."""
        try:
            if self.error is None and self._directory != self._where.path:
                self._sync_names()
        except OSError as error:
            self.error = error

    def _sync_names(self) -> None:
        directory = self._directory = self._where.path
        for path in self._paths:
            self._sync_path(f"{directory}/{path.rpartition('/')[2]}")
        if self._syncs_names:
            try:
                self._fs.sync_directory(directory)
            except FileNotFoundError:
                # Renamed: the log is being deleted or moved. After a move these names are synced
                # again, and the next flush syncs all.
                self._unsynced.clear()

    def _sync(self, descriptor: int) -> None:
        self._syncing = True
        self._fs.sync(descriptor)
        self._syncing = False

    def _sync_path(self, path: str) -> None:
        try:
            descriptor = self._fs.open(path, READ_ONLY)
        except OSError as error:
            if error.errno not in UNUSABLE_FILE:
                raise
            # Deleted or renamed meanwhile, then it need not be on disk; or the whole directory was.
            # What else cannot be opened can be derived from the log again.
            self._syncs_names = True
            return
        try:
            self._sync(descriptor)
        finally:
            self._fs.close(descriptor)

    def lacked_descriptors(self) -> bool:
        """Whether a file could not even be opened to be synced: the next flush syncs it.

        A sync itself that lacks memory is a failed one: the kernel may have dropped the pages.
        """
        return self.error is not None and not self._syncing and is_exhausted(self.error)

    def mark_synced(self) -> None:
        """The next flush need not sync the same changes again. After a successful `run`."""
        for each, changes in self._unsynced:
            each.synced_changes = max(each.synced_changes, changes)


FlushLater = Callable[["LogFlusher"], object]
"""Flushes a log soon, in a worker thread, because `flush.messages` requires it."""


class LogFlusher:
    """Makes the appended records of one log durable and advances its recovery point."""

    __slots__ = ("_epochs", "_local", "_offsets", "_producers", "flush_later", "last_flushed_ms")

    def __init__(
        self,
        local: LocalLog,
        offsets: LogOffsets,
        producers: ProducerState,
        epochs: LeaderEpochs,
        now_ms: int,
    ) -> None:
        self._local = local
        self._offsets = offsets
        self._producers = producers
        self._epochs = epochs
        self.last_flushed_ms = now_ms
        self.flush_later: FlushLater | None = None

    @property
    def name(self) -> str:
        """The name of the log."""
        return self._local.directory.name

    @property
    def partition(self) -> tuple[str, int]:
        """Topic and partition of the log."""
        return self._local.directory.topic, self._local.directory.partition

    @property
    def is_closed(self) -> bool:
        return self._local.closed

    @property
    def flush_required(self) -> bool:
        """Whether `flush.messages` requires a flush."""
        return self._offsets.flush_required

    @property
    def exceeds_flush_messages(self) -> bool:
        """Whether `flush.messages` records or more are not flushed."""
        offsets = self._offsets
        unflushed = offsets.log_end_offset - offsets.recovery_point
        return unflushed >= self._local.config.flush_messages

    def require_flush(self, now_ms: int) -> None:
        """`flush.messages` is exceeded: flushes now, or leaves it to `flush_later`."""
        if self.flush_later is None:
            self.flush(now_ms)
        else:
            self._offsets.flush_required = True
            self.flush_later(self)

    def begin_flush(self) -> Flush | None:
        """Collect what to sync to make everything appended so far durable; None if all of it is.

        Call `run` of the result, which may take long and may run in a worker thread, and then
        `finish_flush` on the thread that owns the log. Raises DiskFull, LogDirectoryOffline.
        """
        offsets, directory = self._offsets, self._local.directory
        # Or segments that a truncation has removed come back after a power failure.
        is_truncated = offsets.truncations and directory.changes != directory.synced_changes
        is_flushed = offsets.recovery_point >= offsets.log_end_offset and not is_truncated
        if is_flushed and not self._epochs.requires_flush:
            offsets.flush_required = False
            return None
        try:
            flush = Flush(self._local, offsets, self._producers, self._epochs)
        except OSError as error:
            offsets.failed_flushes += 1
            raise self._local.write_failed(error) from error
        offsets.flushing.append(flush)
        return flush

    def finish_flush(self, flush: Flush, now_ms: int) -> None:
        """Advance the recovery point. Raises LogDirectoryOffline when `flush.run` failed."""
        offsets, log_directory = self._offsets, self._local.directory.log_directory
        if flush in offsets.flushing:
            offsets.flushing.remove(flush)
        flush.run_if_renamed()
        if flush.error is not None or log_directory.is_offline:
            offsets.failed_flushes += 1
        if flush.lacked_descriptors():
            assert flush.error is not None
            raise log_directory.exhausted(flush.error) from flush.error
        if flush.error is not None:
            # After a failed fsync the kernel may have dropped the pages: the disk cannot be
            # trusted with this log until it has been read again.
            raise log_directory.fail(flush.error) from flush.error
        # The kernel reports a failed sync once: this one may have succeeded because another failed.
        log_directory.check_online()
        flush.mark_synced()
        offsets.recovery_point = max(offsets.recovery_point, flush.offset)
        if offsets.flush_required:
            offsets.flush_required = self.exceeds_flush_messages
        self.last_flushed_ms = now_ms

    def flush(self, now_ms: int | None = None) -> None:
        """Make everything appended so far durable, on this thread."""
        flush = self.begin_flush()
        if flush is not None:
            flush.run()
            self.finish_flush(flush, self.last_flushed_ms if now_ms is None else now_ms)

    def begin_close(self) -> Flush | None:
        """`Log.begin_close` after the leader epochs are written."""
        local = self._local
        log_directory = local.directory.log_directory
        if local.closed or log_directory.is_offline:
            return None
        if local.directory.path in log_directory.gone:
            # Put back, it has to be recovered: nothing of it was synced since.
            local.release()
            raise LogGone(log_directory.path, local.directory.path)
        try:
            local.active.finish()  # the others were finished when they became inactive
            self._take_snapshot()
            return self.begin_flush()
        except OSError as error:
            local.release()
            raise local.directory.log_directory.write_failed(error) from error
        except StorageError:
            local.release()
            raise

    def _take_snapshot(self) -> None:
        """A log can do without: the next start replays from an older one. Raises OSError."""
        try:
            self._producers.take_snapshot()
        except OSError as error:
            if error.errno not in NO_SPACE and not is_exhausted(error):
                raise
            logger.warning("%s: No producer snapshot is written: %s", self.name, error)

    def finish_close(self, flush: Flush | None) -> None:
        """Close all descriptors. Raises LogDirectoryOffline when the flush failed."""
        try:
            if flush is not None:
                self.finish_flush(flush, self.last_flushed_ms)
        finally:
            self._local.release()


# Runs all of the functions, possibly in worker threads, and returns when they are done.
RunAll = Callable[[Sequence[Callable[[], None]]], object]

# Each log keeps its files open while it is synced.
_LOGS_AT_ONCE = 64


def close_logs(logs: Sequence[Log], run_all: RunAll) -> set[LogDirectory]:
    """Close all logs. A log that cannot be written is logged and does not stop the others.

    Returns the log directories of those that could not be closed: the next start recovers them.
    """
    unclean: set[LogDirectory] = set()
    for start in range(0, len(logs), _LOGS_AT_ONCE):
        begun: list[tuple[Log, Flush | None]] = []
        for log in logs[start : start + _LOGS_AT_ONCE]:
            try:
                begun.append((log, log.begin_close()))
            except StorageError as error:
                _log_failure(log, error)
                unclean.add(log.log_directory)
        run_all([flush.run for _, flush in begun if flush is not None])
        for log, flush in begun:
            try:
                log.flusher.finish_close(flush)
            except StorageError as error:
                _log_failure(log, error)
                unclean.add(log.log_directory)
    return unclean


def _log_failure(log: Log, error: StorageError) -> None:
    logger.error("%s: Could not close the log: %s", log.name, error)
