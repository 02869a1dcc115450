"""One flush of a log: what to sync is fixed on the log's thread, the syncing runs anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.storage.files.fs import READ_ONLY
from ottla.storage.files.open_files import OpenFile

if TYPE_CHECKING:
    from ottla.storage.log.log_state import LogState


class Flush:
    """Syncs every file of `log` that has data at or above its recovery point.

    Making one (on the thread that owns the log) writes waiting index entries; `run` syncs and keeps
    an error for `Log.finish_flush`. When it has run, everything below `offset` is on disk.
    """

    __slots__ = ("_directory", "_files", "_fs", "_optional", "error", "offset")

    def __init__(self, log: LogState) -> None:
        self._fs = log.fs
        self._directory = log.path
        self._files: list[OpenFile] = []
        self._optional: list[str] = []
        self.offset = log.log_end_offset
        self.error: OSError | None = None
        for segment in log.segments.from_offset(log.recovery_point):
            segment.offset_index.write()
            segment.time_index.write()
            self._files.append(segment.log.file())
            self._optional += [segment.offset_index.path, segment.time_index.path]
            if segment.txn_index.exists:
                self._optional.append(segment.txn_index.path)
        producers = log.producer_state
        # A snapshot matters as much as the segment it belongs to: it is what makes reading older
        # segments again unnecessary.
        for offset in producers.snapshots:
            if offset >= log.recovery_point:
                self._optional.append(producers.snapshot_path(offset))
        if log.leader_epochs.unsynced:
            self._optional.append(log.leader_epochs.path)
            log.leader_epochs.unsynced = False
        self._optional.append(log.metadata_path)

    def run(self) -> None:
        """Syncs. Safe in a worker thread while the log is appended to, rolled or truncated."""
        try:
            for file in self._files:
                self._fs.sync(file.descriptor)
            for path in self._optional:
                self._sync_path(path)
            try:
                self._fs.sync_directory(self._directory)
            except FileNotFoundError:
                return  # the directory was renamed meanwhile: the log is being deleted or moved
        except OSError as error:
            self.error = error

    def _sync_path(self, path: str) -> None:
        # These files may be renamed or deleted while this runs; then nobody needs them on disk.
        try:
            descriptor = self._fs.open(path, READ_ONLY)
        except FileNotFoundError:
            return
        try:
            self._fs.sync(descriptor)
        finally:
            self._fs.close(descriptor)
