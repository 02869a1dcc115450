"""Delayed deletion of files and directories (`file.delete.delay.ms`)."""

from __future__ import annotations

import logging
import os
from threading import Lock

from ottla.storage.files.fs import FileSystem
from ottla.storage.files.log_directory import is_exhausted

logger = logging.getLogger("ottla.storage")


class Deletions:
    """The files to delete, and when.

    Kept in memory only: the suffix `.deleted` or `-delete` marks the files for the next start.

    `add` runs on the thread that owns the logs, `purge` may run in a worker thread meanwhile.
    """

    __slots__ = ("_due", "_fs", "_lock")

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        # By directory and name: thousands of logs may be deleted at once, and a rename concerns
        # one directory. The lock is held for a moment only, never while something is deleted.
        self._due: dict[str, dict[str, tuple[int, bool]]] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._due.values()))

    def add(self, path: str, due_ms: int, *, is_directory: bool = False) -> None:
        """`purge` deletes `path` from `due_ms` on."""
        parent, name = os.path.split(path)
        with self._lock:
            self._due.setdefault(parent, {})[name] = (due_ms, is_directory)

    def rename_under(self, old: str, new: str) -> None:
        """The directory `old` was renamed: `purge` finds what is in it at its new place.

        What `purge` deletes at this moment may stay in the list; the next `purge` drops it.
        """
        with self._lock:
            found = self._due.pop(old, None)
            if found is not None:
                self._due.setdefault(new, {}).update(found)

    def purge(self, now_ms: int) -> int:
        """Delete what is due and return the number. Deleting large files can take long.

        To delete a directory needs descriptors: what lacks them is retried by the next call.
        """
        lacking: list[OSError] = []
        with self._lock:
            due = [
                (parent, name, entry)
                for parent, names in self._due.items()
                for name, entry in names.items()
                if entry[0] <= now_ms
            ]
        for parent, name, entry in due:
            path = os.path.join(parent, name)
            try:
                if entry[1]:
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
            self._drop(parent, name, entry)
        if lacking:
            logger.warning("Could not delete %d paths, retrying: %s", len(lacking), lacking[0])
        return len(due) - len(lacking)

    def _drop(self, parent: str, name: str, entry: tuple[int, bool]) -> None:
        with self._lock:
            names = self._due.get(parent)
            # Another one: `add` was called meanwhile, for a new file of that name.
            if names is None or names.get(name) is not entry:
                return
            del names[name]
            if not names:
                del self._due[parent]
