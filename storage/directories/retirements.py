"""Renames the directories of logs that are deleted or set aside."""

from __future__ import annotations

import logging
from contextlib import suppress
from threading import Lock

from ottla.storage.errors import DiskFull, LogDirectoryOffline, ResourceExhausted, StorageError
from ottla.storage.files.deletions import Deletions
from ottla.storage.files.fs import FileSystem
from ottla.storage.files.layout import (
    DELETE_DIRECTORY_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    UniqueName,
    unique_directory_name,
)
from ottla.storage.files.set_aside import Note, SetAside, write_note
from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.storage")


class Retirements:
    """Gives the directories of released logs the suffix `-delete`, or `-stray` with a note.

    A new name needs space in the log directory, and memory. While these are lacking the log is
    deleted already, and its directory is renamed later; Kafka takes the log directory offline.
    After a crash in between the next start finds the log again, as a stray.
    """

    __slots__ = ("_deletions", "_fs", "_lock", "_unique_name", "_waiting")

    def __init__(self, fs: FileSystem, deletions: Deletions, unique_name: UniqueName) -> None:
        self._fs = fs
        self._deletions = deletions
        self._unique_name = unique_name
        # For a rename: free space may be checked in a worker thread while a log is deleted.
        self._lock = Lock()
        # By the path as it is now: bounded by the directories that are there.
        self._waiting: dict[str, tuple[Log, int, Note | None]] = {}

    def retire(self, log: Log, now_ms: int, note: Note | None = None) -> None:
        """Releases the log and renames its directory, now or later. Raises LogDirectoryOffline.

        With a note the log is set aside and stays; without one it is deleted after
        `file.delete.delay.ms`.
        """
        log.release()
        path = log.path
        try:
            with self._lock:
                self._waiting[path] = (log, now_ms, note)
                self._finish(path)
        except (DiskFull, ResourceExhausted) as error:
            done = "deleted" if note is None else "set aside"
            logger.warning("Failed to rename %s, which is %s, retrying: %s", path, done, error)

    def finish_all_of(self, topic: str, partition: int) -> None:
        """Renames what waits of a partition: the next start must not find two logs of it.

        Raises DiskFull, ResourceExhausted; it can be retried then.
        """
        with self._lock:
            for path, (log, _, _) in list(self._waiting.items()):
                if (log.topic, log.partition) == (topic, partition):
                    with suppress(LogDirectoryOffline):
                        self._finish(path)

    def _finish(self, path: str) -> None:
        log, now_ms, note = self._waiting[path]
        directory = log.log_directory
        suffix = DELETE_DIRECTORY_SUFFIX if note is None else STRAY_DIRECTORY_SUFFIX
        name = unique_directory_name(log.topic, log.partition, self._unique_name(), suffix)
        renamed = f"{directory.path}/{name}"
        try:
            directory.check_online()
            if note is not None:
                write_note(self._fs, path, note, (log.topic, log.partition))
            self._fs.replace(path, renamed)
        except OSError as error:
            raise directory.write_failed(error) from error
        finally:
            if directory.is_offline:
                del self._waiting[path]
        del self._waiting[path]
        log.move_to(renamed)
        if note is None:
            due_ms = now_ms + log.config.file_delete_delay_ms
            self._deletions.add(renamed, due_ms, is_directory=True)
        else:
            log.log_directory.note_set_aside(
                [SetAside(renamed, log.topic, log.partition, *note[:3], note.set_aside_ms, None)]
            )

    def retry(self) -> None:
        """Renames what could not be renamed before."""
        for path in list(self._waiting):
            try:
                with self._lock:
                    if path in self._waiting:
                        self._finish(path)
            except StorageError as error:
                logger.debug("Failed to rename %s again: %s", path, error)
