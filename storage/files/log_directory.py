"""The state of one log directory (a disk), shared by the logs on it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from ottla.storage.errors import DiskFull, LogDirectoryOffline, StorageError
from ottla.storage.files.fs import FileSystem

logger = logging.getLogger("ottla.storage")

# How much more room than the watermark there has to be before appends are taken again, so that a
# disk at the edge does not flap.
_HYSTERESIS = 1.1


class LogDirectory:
    """One of `log.dirs`.

    `refusal` is what an append is answered with, None when all is well: LogDirectoryOffline after a
    disk error (for good), DiskFull while there is too little room.
    """

    __slots__ = ("fs", "path", "refusal", "write_recovery_points")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.fs = fs
        self.path = path
        self.refusal: StorageError | None = None
        # Writes `recovery-point-offset-checkpoint`, for those who cannot wait for its turn:
        # - A truncated log may be written again below the recovery point on disk. It has to be
        #   lowered there first, or a crash would leave the new records unread by recovery.
        # - Compaction makes gaps, which recovery takes for lost records where nothing is flushed.
        self.write_recovery_points: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"LogDirectory({self.path})"

    @property
    def is_offline(self) -> bool:
        return isinstance(self.refusal, LogDirectoryOffline)

    @property
    def is_full(self) -> bool:
        return isinstance(self.refusal, DiskFull)

    @property
    def refusal_reason(self) -> str:
        """Why no records are taken, "" when they are."""
        return getattr(self.refusal, "reason", "")

    def check_online(self) -> None:
        """Raises LogDirectoryOffline after a disk error."""
        if self.is_offline:
            raise self._again()

    def check_writable(self) -> None:
        """Raises LogDirectoryOffline or DiskFull when no records can be taken."""
        if self.refusal is not None:
            raise self._again()

    def _again(self) -> StorageError:
        # A new exception each time: one that is raised again and again collects tracebacks.
        refusal = self.refusal
        assert isinstance(refusal, DiskFull | LogDirectoryOffline)
        return type(refusal)(self.path, refusal.reason)

    def fail(self, error: OSError) -> LogDirectoryOffline:
        """Takes the directory out of service; gives the exception to raise."""
        if not self.is_offline:
            self.refusal = LogDirectoryOffline(self.path, str(error))
            logger.error("%s; restart after the disk is repaired", self.refusal)
        return LogDirectoryOffline(self.path, str(error))

    def refused(self, error: OSError) -> StorageError:
        """Takes note of a call that changed nothing; gives the exception to raise.

        No room stops appends until there is some again; anything else takes the directory out of
        service.
        """
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self.note_full(error.strerror or str(error))
        return self.fail(error)

    def note_full(self, reason: str) -> DiskFull:
        """No more records for now; gives the exception to raise."""
        if self.refusal is None:
            self.refusal = DiskFull(self.path, reason)
            logger.error("%s; free some room, no restart is needed", self.refusal)
        return DiskFull(self.path, reason)

    def free_bytes(self) -> int | OSError:
        """The free room of the disk, or why nobody can tell. May run in a worker thread."""
        try:
            return self.fs.free_bytes(self.path)
        except OSError as error:
            return error

    def note_room(self, free: int | OSError, min_free_bytes: int) -> None:
        """Stops appends when less than `min_free_bytes` are free, allows them when more are.

        A disk that could not be asked is offline.
        """
        if self.is_offline:
            return
        if isinstance(free, OSError):
            self.fail(free)
        elif free < min_free_bytes:
            self.note_full(f"{free} bytes are free, {min_free_bytes} are to stay free")
        elif self.is_full and free >= min_free_bytes * _HYSTERESIS:
            logger.info("log directory %s takes records again, %d bytes are free", self.path, free)
            self.refusal = None

    def check_room(self, min_free_bytes: int) -> None:
        """Both at once, on the thread that owns the logs."""
        self.note_room(self.free_bytes(), min_free_bytes)
