"""Renames the directories of logs that are deleted or set aside, and takes such logs back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock

from ottla.storage.errors import (
    CorruptFile,
    DiskFull,
    LogDirectoryOffline,
    LogGone,
    ResourceExhausted,
    StorageError,
)
from ottla.storage.files.checkpoints import read_partition_metadata
from ottla.storage.files.deletions import Deletions
from ottla.storage.files.fs import FileSystem
from ottla.storage.files.layout import (
    DELETE_DIRECTORY_SUFFIX,
    PARTITION_METADATA,
    STRAY_DIRECTORY_SUFFIX,
    UniqueName,
    unique_directory_name,
)
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.files.set_aside import NOTE_FILE, Note, Reason, SetAside, write_note
from ottla.storage.log.batch_scan import CorruptLog
from ottla.storage.log.local_log import PartitionDirectory
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
        """Release the log and rename its directory, now or later. Raises LogDirectoryOffline.

        With a note the log is set aside and stays; without one it is deleted after
        `file.delete.delay.ms`.
        """
        log.local.release()
        path = log.path
        try:
            with self._lock:
                self._waiting[path] = (log, now_ms, note)
                self._finish(path)
        except (DiskFull, ResourceExhausted) as error:
            done = "deleted" if note is None else "set aside"
            logger.warning("Failed to rename %s, which is %s, retrying: %s", path, done, error)

    def finish_all_of(self, topic: str, partition: int) -> None:
        """Rename what waits of a partition: the next start must not find two logs of it.

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
            failure = directory.write_failed(error)
            if isinstance(failure, LogGone):  # somebody has removed it already
                directory.gone.discard(path)
                del self._waiting[path]
                return
            raise failure from error
        finally:
            if directory.is_offline:
                del self._waiting[path]
        del self._waiting[path]
        directory.gone.discard(path)  # somebody has put it back
        log.move_to(renamed)
        if note is None:
            due_ms = now_ms + log.config.file_delete_delay_ms
            self._deletions.add(renamed, due_ms, is_directory=True)
        else:
            log.log_directory.note_set_aside(
                [SetAside(renamed, log.topic, log.partition, *note[:3], note.set_aside_ms, None)]
            )

    def retry(self) -> None:
        """Rename what could not be renamed before."""
        for path in list(self._waiting):
            try:
                with self._lock:
                    if path in self._waiting:
                        self._finish(path)
            except StorageError as error:
                logger.debug("Failed to rename %s again: %s", path, error)


# Of a log that is taken back. It has its own, as it is opened in a worker thread.
_OPEN_FILES = 16

#: The tree did not give these to this broker; it may do so again.
_OF_THE_TREE = (Reason.NOT_ASSIGNED, Reason.TOPIC_GONE, Reason.TOPIC_RECREATED, Reason.UNKNOWN)

OpenLog = Callable[[PartitionDirectory], Log]


def paths_set_aside(
    directories: Iterable[LogDirectory], topic: str, partition: int
) -> list[tuple[LogDirectory, str]]:
    """The logs of a partition that were set aside because the tree gave them to nobody here."""
    return [
        (directory, item.path)
        for directory in directories
        for item in tuple(directory.set_aside)
        if item.is_log
        and (item.topic, item.partition) == (topic, partition)
        and item.reason in _OF_THE_TREE
    ]


def open_best(
    directories: Iterable[LogDirectory],
    topic: str,
    partition: int,
    topic_id: bytes,
    open_log: OpenLog,
) -> Log | None:
    """Open the log with this topic id that has the newest leader epoch and the most records.

    May run in a worker thread. The log keeps its `-stray` path. Raises StorageError.
    """
    best: Log | None = None
    for directory, path in paths_set_aside(directories, topic, partition):
        try:
            if read_partition_metadata(directory.fs, f"{path}/{PARTITION_METADATA}") != topic_id:
                continue
            files = OpenFiles(_OPEN_FILES)
            log = open_log(PartitionDirectory(directory, path, topic, partition, files))
        except FileNotFoundError:
            continue  # `ottla log set-aside` has restored or discarded it
        except OSError as error:
            raise directory.read_failed(error) from error
        except (CorruptFile, CorruptLog) as damage:
            logger.error("Cannot take back %s: %s", path, damage)
            continue
        except StorageError:
            if best is not None:
                best.local.release()
            raise
        if best is not None and _end(best) >= _end(log):
            log, best = best, log
        if best is not None:
            best.local.release()
        best = log
    return best


def _end(log: Log) -> tuple[int, int]:
    return log.leader_epochs.latest_epoch, log.log_end_offset


def forget_note(log: Log, set_aside_path: str) -> None:
    """The log, which had that path, is in service again."""
    with suppress(OSError):
        log.log_directory.fs.remove(f"{log.path}/{NOTE_FILE}")
    log.log_directory.forget_restored({set_aside_path})
