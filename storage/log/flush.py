"""Flushing and closing a log: the syncing may run in a worker thread, the rest may not."""

from __future__ import annotations

from collections.abc import Callable

from ottla.storage.errors import StorageError
from ottla.storage.files.fs import READ_ONLY
from ottla.storage.files.log_directory import is_exhausted
from ottla.storage.files.open_files import OpenFile
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.local_log import LocalLog
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.producer.producer_state import ProducerState


class Flush:
    """Syncs every file that has data at or above the recovery point.

    Creating one, on the thread that owns the log, writes pending index entries. `run` syncs and
    stores an error for `LogFlusher.finish_flush`. After a successful run everything below `offset`
    is on disk. A truncation of the log meanwhile lowers `offset` (`LogOffsets.flushing`).
    """

    __slots__ = (
        "_directory",
        "_epochs",
        "_files",
        "_fs",
        "_optional",
        "_syncing",
        "_where",
        "error",
        "offset",
    )

    def __init__(
        self, local: LocalLog, offsets: LogOffsets, producers: ProducerState, epochs: LeaderEpochs
    ) -> None:
        self._fs = local.directory.fs
        # A move between log directories ends with a rename, perhaps while this runs.
        self._where = local.directory
        self._directory = local.directory.path
        self._files: list[OpenFile] = []
        self._optional: list[str] = []
        self.offset = offsets.log_end_offset
        self.error: OSError | None = None
        self._syncing = False
        self._epochs = epochs if epochs.unsynced else None
        for segment in local.segments.from_offset(offsets.recovery_point):
            segment.offset_index.write()
            segment.time_index.write()
            self._files.append(segment.log.file())
            self._optional += [segment.offset_index.path, segment.time_index.path]
            if segment.txn_index.exists:
                self._optional.append(segment.txn_index.path)
        # A snapshot matters as much as the segment it belongs to: with it, recovery does not read
        # the older segments again.
        for offset in producers.snapshots:
            if offset >= offsets.recovery_point:
                self._optional.append(producers.snapshot_path(offset))
        if epochs.unsynced:
            self._optional.append(epochs.path)
            epochs.unsynced = False
        self._optional.append(local.directory.metadata_path)

    def run(self) -> None:
        """Syncs. Safe in a worker thread while the log is appended to, rolled or truncated."""
        try:
            for file in self._files:
                self._sync(file.descriptor)
            self._sync_names()
        except OSError as error:
            self.error = error
        self.run_if_renamed()

    def run_if_renamed(self) -> None:
        """Syncs again what was not found because the directory was renamed meanwhile."""
        try:
            if self.error is None and self._directory != self._where.path:
                self._sync_names()
        except OSError as error:
            self.error = error

    def _sync_names(self) -> None:
        directory = self._directory = self._where.path
        for path in self._optional:
            self._sync_path(f"{directory}/{path.rpartition('/')[2]}")
        try:
            self._fs.sync_directory(directory)
        except FileNotFoundError:
            return  # the directory was renamed: the log is being deleted or moved

    def _sync(self, descriptor: int) -> None:
        self._syncing = True
        self._fs.sync(descriptor)
        self._syncing = False

    def lacked_descriptors(self) -> bool:
        """Whether a file could not even be opened to be synced: the next flush syncs it.

        A sync itself that lacks memory is a failed one: the kernel may have dropped the pages.
        """
        if self.error is None or self._syncing or not is_exhausted(self.error):
            return False
        if self._epochs is not None:
            self._epochs.unsynced = True
        return True

    def _sync_path(self, path: str) -> None:
        # These files may be renamed or deleted while this runs. Then they need not be on disk.
        try:
            descriptor = self._fs.open(path, READ_ONLY)
        except FileNotFoundError:
            return
        try:
            self._sync(descriptor)
        finally:
            self._fs.close(descriptor)


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
        """That of the log."""
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

    def require_flush(self, now_ms: int) -> None:
        """`flush.messages` is exceeded: flushes now, or leaves it to `flush_later`."""
        if self.flush_later is None:
            self.flush(now_ms)
        else:
            self._offsets.flush_required = True
            self.flush_later(self)

    def begin_flush(self) -> Flush | None:
        """`Log.begin_flush`."""
        offsets = self._offsets
        if offsets.recovery_point >= offsets.log_end_offset and not self._epochs.unsynced:
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
        """`Log.finish_flush`."""
        offsets, log_directory = self._offsets, self._local.directory.log_directory
        if flush in offsets.flushing:
            offsets.flushing.remove(flush)
        flush.run_if_renamed()
        if flush.error is not None:
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
        offsets.recovery_point = max(offsets.recovery_point, flush.offset)
        if offsets.flush_required:
            unflushed = offsets.log_end_offset - offsets.recovery_point
            offsets.flush_required = unflushed >= self._local.config.flush_messages
        self.last_flushed_ms = now_ms

    def flush(self, now_ms: int | None = None) -> None:
        """`Log.flush`."""
        flush = self.begin_flush()
        if flush is not None:
            flush.run()
            self.finish_flush(flush, self.last_flushed_ms if now_ms is None else now_ms)

    def begin_close(self) -> Flush | None:
        """`Log.begin_close`."""
        local = self._local
        if local.closed or local.directory.log_directory.is_offline:
            return None
        try:
            for segment in local.segments:
                segment.finish()
            self._producers.take_snapshot()
            return self.begin_flush()
        except OSError as error:
            local.release()
            raise local.directory.log_directory.fail(error) from error
        except StorageError:
            local.release()
            raise

    def finish_close(self, flush: Flush | None) -> None:
        """`Log.finish_close`."""
        try:
            if flush is not None:
                self.finish_flush(flush, self.last_flushed_ms)
        finally:
            self._local.release()
