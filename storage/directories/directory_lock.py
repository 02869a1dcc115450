"""`.lock`: one broker per log directory. Kafka uses the same lock, and excludes this broker by it.

The lock on the file is one of POSIX, as Java's. It belongs to the process: a second one of the same
process succeeds, and the process loses it when it closes any descriptor of the file. So what this
process has locked is known here, by device and inode of the directory, and the file is not opened
again. Java keeps such a table too. A lock of the directory itself (`flock`) excludes another broker
when somebody has deleted the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from threading import Lock

from ottla.storage.errors import DirectoryInUse
from ottla.storage.files.fs import CREATE, FILE_MODE
from ottla.storage.files.layout import LOCK_FILE

# The process and the name that it used, by device and inode. A forked process inherits this table,
# but none of the locks.
_held: dict[tuple[int, int], tuple[int, str]] = {}
_guard = Lock()


class DirectoryLock:
    """The lock of one log directory, held until `release` or the end of the process."""

    __slots__ = ("_descriptors", "_key")

    def __init__(self, directory: str) -> None:
        """Raises DirectoryInUse when another broker holds the lock, in this process or another
        one, and OSError."""
        status = os.stat(directory)
        self._key = (status.st_dev, status.st_ino)
        self._descriptors: list[int] = []
        with _guard:
            process, name = _held.get(self._key, (-1, ""))
            if process == os.getpid():
                raise DirectoryInUse(
                    f"log dir {directory} is used by this process already, as {name}; "
                    "stop that broker, or give this one another log.dirs"
                )
            try:
                self._lock(directory)
            except BaseException:
                self._close()
                raise
            _held[self._key] = (os.getpid(), directory)

    def _lock(self, directory: str) -> None:
        path = f"{directory}/{LOCK_FILE}"
        in_use = DirectoryInUse(
            f"log dir {directory} is locked by another broker process ({path}); "
            "stop that one, or give this broker another log.dirs"
        )
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._descriptors.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network file systems have no such lock.
            if error.errno == errno.EWOULDBLOCK:
                raise in_use from None
        descriptor = os.open(path, CREATE, FILE_MODE)
        self._descriptors.append(descriptor)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise in_use from None

    def release(self) -> None:
        with _guard:
            if self._descriptors and _held.get(self._key, (-1, ""))[0] == os.getpid():
                del _held[self._key]
                with suppress(OSError):
                    # A forked process may have the descriptor, and the lock with it.
                    fcntl.flock(self._descriptors[0], fcntl.LOCK_UN)
            self._close()

    def _close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())
