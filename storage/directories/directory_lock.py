"""`.lock`: one process per log directory. Kafka uses the same lock."""

from __future__ import annotations

import fcntl
import os

from ottla.storage.errors import DirectoryInUse
from ottla.storage.files.fs import CREATE, FILE_MODE
from ottla.storage.files.layout import LOCK_FILE


class DirectoryLock:
    """The lock of one log directory, held until `release` or the end of the process."""

    __slots__ = ("_descriptor",)

    def __init__(self, directory: str) -> None:
        """Raises DirectoryInUse when another process holds the lock, OSError."""
        path = f"{directory}/{LOCK_FILE}"
        descriptor = os.open(path, CREATE, FILE_MODE)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise DirectoryInUse(
                f"log dir {directory} is locked by another broker process ({path}); "
                "stop that one, or give this broker another log.dirs"
            ) from None
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
