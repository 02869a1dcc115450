"""Files and directories that are to go, each at its time (`file.delete.delay.ms`)."""

from __future__ import annotations

import logging

from ottla.storage.files.fs import FileSystem

logger = logging.getLogger("ottla.storage")


class Deletions:
    """A list of what to delete and when. Whatever is lost of it is found again at the next start:
    the names say that they are to be deleted.

    `add` is for the thread that owns the logs, `purge` may run in a worker thread at the same time.
    """

    __slots__ = ("_due", "_fs")

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._due: list[tuple[int, str, bool]] = []

    def __len__(self) -> int:
        return len(self._due)

    def add(self, path: str, due_ms: int, *, is_directory: bool = False) -> None:
        """Deletes `path` when it is `due_ms` or later."""
        self._due.append((due_ms, path, is_directory))

    def forget_under(self, directory: str) -> None:
        """Leaves alone what is in a directory that goes as a whole, or has another name now."""
        prefix = directory + "/"
        self._due = [entry for entry in self._due if not entry[1].startswith(prefix)]

    def purge(self, now_ms: int) -> int:
        """Deletes what is due; gives the number. Deleting a large file can take a while."""
        due = [entry for entry in tuple(self._due) if entry[0] <= now_ms]
        for entry in due:
            _, path, is_directory = entry
            try:
                if is_directory:
                    self._fs.remove_tree(path)
                else:
                    self._fs.remove(path)
            except FileNotFoundError:
                pass  # it went with its directory
            except OSError as error:
                logger.warning("%s could not be deleted: %s", path, error)
            if entry in self._due:
                self._due.remove(entry)
        return len(due)
