"""The state of one log directory (a disk), shared by its logs."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable
from threading import Lock

from ottla.storage.errors import (
    DiskFull,
    LogDirectoryOffline,
    LogGone,
    ResourceExhausted,
    StorageError,
)
from ottla.storage.files.fs import UNUSABLE_FILE, FileSystem, write_fully
from ottla.storage.files.set_aside import SetAside

logger = logging.getLogger("ottla.storage")

# Appends resume when this multiple of the minimum is free, so that a disk near the limit does not
# change state all the time.
_HYSTERESIS = 1.1

# Written and deleted to test whether a disk that refused a write accepts one again: the free-space
# figure is not enough, for example under a disk quota. By default a batch of records has at most
# `_PROBE_BYTES`.
PROBE_FILE = ".ottla-space-check"
_PROBE_BYTES = 1 << 20

#: Errors of a disk that has no space left, or none for this user.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

_GONE = (errno.ENOENT, errno.ENOTDIR)

# Errors that say nothing about the disk, and what an operator can do about them.
_EXHAUSTED = {
    errno.EMFILE: "the process has reached its limit of open files; raise it (ulimit -n, or"
    " LimitNOFILE= of the systemd unit), or lower max.connections",
    errno.ENFILE: "the machine has reached its limit of open files; raise it (sysctl fs.file-max)",
    errno.ENOMEM: "the machine or the cgroup of the process is out of memory; give it more",
}


def is_exhausted(error: OSError) -> bool:
    """Whether descriptors or memory are exhausted, which is not a failure of the disk."""
    return error.errno in _EXHAUSTED


class LogDirectory:
    """One of `log.dirs`.

    `append_error` is the error of every append, None normally: LogDirectoryOffline after a disk
    error (until the broker is restarted), DiskFull while there is too little space.
    """

    __slots__ = (
        "_exhausted_lately",
        "_exhausted_logged",
        "_identity",
        "_refused_write",
        "_set_aside_lock",
        "append_error",
        "fs",
        "gone",
        "last_free_bytes",
        "path",
        "set_aside",
        "suspects",
        "unusable",
        "write_recovery_points",
    )

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.fs = fs
        self.path = path
        self.append_error: StorageError | None = None
        self._refused_write = False  # for lack of space, and no write has succeeded since
        #: As last measured; None before that, and while the directory is offline.
        self.last_free_bytes: int | None = None
        #: Records set aside on this disk that still exist (`note_set_aside`).
        self.set_aside: list[SetAside] = []
        # Recovery notes what it sets aside in the worker thread of its directory.
        self._set_aside_lock = Lock()
        self._exhausted_lately = self._exhausted_logged = False
        #: Paths of open logs whose directories somebody has deleted or moved. Their replicas are
        #: offline until the broker is restarted; `LogManager.confirm_gone` has looked.
        self.gone: set[str] = set()
        #: Paths of logs that were not found, perhaps because they are renamed at this moment.
        self.suspects: dict[str, None] = {}
        #: Logs that are not open, by their paths, and why: one of their files cannot be used.
        self.unusable: dict[str, str] = {}
        self._identity: tuple[int, int] | None = None
        # Writes `recovery-point-offset-checkpoint` at once, where the periodic one is too late:
        # - A truncated log may be appended to below the recovery point on disk. It must be lowered
        #   on disk first, or recovery after a crash would not read the new records.
        # - Compaction leaves gaps. Above the recovery point recovery takes them for lost records.
        # Raises StorageError when it is not on disk.
        self.write_recovery_points: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"LogDirectory({self.path})"

    @property
    def is_offline(self) -> bool:
        return isinstance(self.append_error, LogDirectoryOffline)

    @property
    def is_full(self) -> bool:
        return isinstance(self.append_error, DiskFull)

    @property
    def append_error_reason(self) -> str:
        """Why appends are rejected, "" when they are not."""
        return getattr(self.append_error, "reason", "")

    def check_online(self) -> None:
        """Raise LogDirectoryOffline after a disk error."""
        if self.is_offline:
            raise self._copy_of_error()

    def check_writable(self) -> None:
        """Raise LogDirectoryOffline or DiskFull when appends are rejected."""
        if self.append_error is not None:
            raise self._copy_of_error()

    def _copy_of_error(self) -> StorageError:
        # A new exception each time: an exception that is raised repeatedly accumulates tracebacks.
        error = self.append_error
        assert isinstance(error, DiskFull | LogDirectoryOffline)
        return type(error)(self.path, error.reason)

    def note_identity(self) -> None:
        """Remember which directory it is, to know one that is mounted or put in its place. Raises
        OSError."""
        self._identity = self.fs.identity(self.path)

    def fail(self, error: OSError) -> LogDirectoryOffline:
        """Take the directory offline, unless only the directory of one log is gone. Returns the
        exception to raise."""
        gone = None if self.is_offline else self._gone_log(error)
        if gone is not None:
            self.suspects[gone] = None
            return LogGone(self.path, gone)
        if not self.is_offline:
            self.append_error = LogDirectoryOffline(self.path, str(error))
            logger.error(
                "Log dir %s is offline: %s; restart the broker after %s",
                self.path,
                error,
                "its user has access to that file"
                if error.errno in (errno.EACCES, errno.EPERM)
                else "the disk is repaired",
            )
        return LogDirectoryOffline(self.path, str(error))

    def note_unusable(self, path: str, error: OSError) -> bool:
        """Whether the log at `path` cannot be opened because of its directory or one of its files,
        which says nothing about the disk: another user owns it, or it is a link to a disk that is
        not mounted.

        Nothing of it is changed, and its partition is offline until the broker is started again.
        """
        if error.errno not in UNUSABLE_FILE or not isinstance(error.filename, str):
            return False
        if error.filename != path and (
            os.path.dirname(error.filename) != path or not self.fs.exists(path)
        ):
            return False
        self.unusable[path] = f"{error.filename}: {error.strerror or error}"
        logger.error(
            "Log %s cannot be opened, its replica is offline: %s. Repair the file or its rights,"
            " and restart the broker; the other logs of the disk are served",
            path,
            self.unusable[path],
        )
        return True

    def exhausted(self, error: OSError) -> ResourceExhausted:
        """Descriptors or memory are lacking (`is_exhausted`). Returns the exception to raise.

        The directory stays online. Logged once, until nothing was lacking for a while.
        """
        assert error.errno is not None
        reason = f"{error.strerror or error}: {_EXHAUSTED[error.errno]}"
        if not self._exhausted_logged:
            logger.error("Log dir %s stays online, operations are retried: %s", self.path, reason)
        self._exhausted_lately = self._exhausted_logged = True
        return ResourceExhausted(self.path, reason)

    def read_failed(self, error: OSError) -> StorageError:
        """A read failed. Returns the exception to raise.

        Takes the directory offline as `fail` does, unless descriptors or memory are lacking.
        """
        return self.exhausted(error) if is_exhausted(error) else self.fail(error)

    def write_failed(self, error: OSError) -> StorageError:
        """A write failed without an effect. Returns the exception to raise.

        Without disk space appends are rejected until there is space again; without descriptors or
        memory only this one is. Any other error takes the directory offline as `fail` does.
        """
        if is_exhausted(error) and not self.is_offline:
            return self.exhausted(error)
        if error.errno in NO_SPACE and not self.is_offline:
            self._refused_write = True
            return self.mark_full(error.strerror or str(error))
        return self.fail(error)

    def _gone_log(self, error: OSError) -> str | None:
        """The path of the log that somebody has deleted or moved, if that is the reason for
        `error`: it says nothing about the disk. Kafka takes the log directory offline."""
        if error.errno not in _GONE or not isinstance(error.filename, str):
            return None
        path = error.filename
        if os.path.dirname(path) != self.path:
            path = os.path.dirname(path)
        if os.path.dirname(path) != self.path or not self.lacks(path):
            return None
        return path

    def _is_there(self) -> bool:
        """Whether its path is the same directory still: the disk may be away, or another one."""
        try:
            found = self.fs.identity(self.path)
        except OSError:
            return False
        return self._identity in (None, found)

    def lacks(self, path: str) -> bool:
        """Whether the directory of a log is gone, and this one is there."""
        return not self.fs.exists(path) and self._is_there()

    def find_suspects(self, paths: Iterable[str]) -> None:
        """Add those of `paths`, logs of this directory, that are not there. May run in a worker
        thread. A directory that cannot be read is offline."""
        if self.is_offline:
            return
        try:
            names = set(self.fs.list_directories(self.path))
        except OSError as error:
            self.read_failed(error)
            return
        for path in paths:
            if os.path.basename(path) not in names and path not in self.gone:
                self.suspects[path] = None

    def mark_full(self, reason: str) -> DiskFull:
        """Reject appends until there is space again. Returns the exception to raise."""
        if self.append_error is None:
            self.append_error = DiskFull(self.path, reason)
            logger.error(
                "Log dir %s is full, appends are rejected: %s;"
                " free some space, no restart is needed",
                self.path,
                reason,
            )
        return DiskFull(self.path, reason)

    def note_set_aside(self, items: Iterable[SetAside]) -> None:
        """Add logs and files that were set aside, for the faults that the broker reports."""
        with self._set_aside_lock:
            known = {item.path for item in self.set_aside}
            self.set_aside = [*self.set_aside, *(each for each in items if each.path not in known)]

    def find_restored(self) -> set[str]:
        """The paths of what `ottla log set-aside` has taken back or discarded.

        May run in a worker thread. Raises OSError.
        """
        if self.is_offline or not self.fs.exists(self.path):
            return set()  # the disk is away, not what was set aside on it
        return {item.path for item in tuple(self.set_aside) if not self.fs.exists(item.path)}

    def forget_restored(self, gone: set[str] | None = None) -> None:
        """Drop what `find_restored` has found, or finds now. Raises OSError."""
        if gone is None:
            gone = self.find_restored()
        if gone:
            with self._set_aside_lock:
                self.set_aside = [item for item in self.set_aside if item.path not in gone]

    def free_bytes(self) -> int | OSError:
        """The free bytes of the disk, or the error of reading them. May run in a worker thread."""
        try:
            if self._refused_write:
                self._refused_write = not self._takes_writes()
            return self.fs.free_bytes(self.path)
        except OSError as error:
            return error

    def _takes_writes(self) -> bool:
        path = f"{self.path}/{PROBE_FILE}"
        try:
            descriptor = self.fs.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            try:
                write_fully(self.fs, descriptor, bytes(_PROBE_BYTES), 0)
            finally:
                self.fs.close(descriptor)
                self.fs.remove(path)
        except OSError as error:
            if error.errno in NO_SPACE:
                return False
            raise
        return True

    def update_free_bytes(self, free: int | OSError, min_free_bytes: int) -> None:
        """Reject appends when less than `min_free_bytes` are free, resume them when more are.

        `free` is the result of `free_bytes`; an error takes the directory offline. Called
        periodically: a lack of descriptors is logged again when there was none in between.
        """
        self.last_free_bytes = None
        if self.is_offline:
            return
        if not isinstance(free, OSError):
            self.last_free_bytes = free
        self._exhausted_logged, self._exhausted_lately = self._exhausted_lately, False
        if isinstance(free, OSError):
            self.read_failed(free)
        elif free < min_free_bytes:
            self.mark_full(f"{free} bytes are free, the minimum is {min_free_bytes}")
        elif self.is_full and not self._refused_write and free >= min_free_bytes * _HYSTERESIS:
            logger.info("Log dir %s accepts appends again, %d bytes are free", self.path, free)
            self.append_error = None

    def check_free_bytes(self, min_free_bytes: int) -> None:
        """`free_bytes` and `update_free_bytes` on this thread."""
        self.update_free_bytes(self.free_bytes(), min_free_bytes)
