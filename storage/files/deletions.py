"""Delayed deletion of files and directories (`file.delete.delay.ms`)."""

from __future__ import annotations

import logging

from ottla.storage.files.fs import FileSystem
from ottla.storage.files.log_directory import is_exhausted

logger = logging.getLogger("ottla.storage")


class Deletions:
    """The files to delete, and when.

    Kept in memory only: the suffix `.deleted` or `-delete` marks the files for the next start.

    `add` runs on the thread that owns the logs, `purge` may run in a worker thread meanwhile.
    """

    __slots__ = ("_due", "_fs")

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._due: list[tuple[int, str, bool]] = []

    def __len__(self) -> int:
        return len(self._due)

    def add(self, path: str, due_ms: int, *, is_directory: bool = False) -> None:
        """`purge` deletes `path` from `due_ms` on."""
        self._due.append((due_ms, path, is_directory))

    def rename_under(self, old: str, new: str) -> None:
        """The directory `old` was renamed: `purge` finds what is below it at its new place.

        What `purge` deletes at this moment may stay in the list; the next `purge` drops it.
        """
        prefix = old + "/"
        self._due = [
            (due_ms, new + path[len(old) :] if path.startswith(prefix) else path, is_directory)
            for due_ms, path, is_directory in self._due
        ]

    def purge(self, now_ms: int) -> int:
        """Delete what is due and return the number. Deleting large files can take long.

        To delete a directory needs descriptors: what lacks them is retried by the next call.
        """
        lacking: list[OSError] = []
        due = [entry for entry in tuple(self._due) if entry[0] <= now_ms]
        for entry in due:
            _, path, is_directory = entry
            try:
                if is_directory:
                    self._fs.remove_tree(path)
                else:
                    self._fs.remove(path)
            except FileNotFoundError:
                pass  # deleted with its directory
            except OSError as error:
                if is_exhausted(error):
                    lacking.append(error)
                    continue
                logger.warning("Could not delete %s, the next start deletes it: %s", path, error)
            if entry in self._due:
                self._due.remove(entry)
        if lacking:
            logger.warning("Could not delete %d paths, retrying: %s", len(lacking), lacking[0])
        return len(due) - len(lacking)
