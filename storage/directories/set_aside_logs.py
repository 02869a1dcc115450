"""Takes a log back into service that was set aside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from ottla.storage.errors import CorruptFile, StorageError
from ottla.storage.files.checkpoints import read_partition_metadata
from ottla.storage.files.layout import PARTITION_METADATA
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.files.set_aside import NOTE_FILE, Reason
from ottla.storage.log.batch_scan import CorruptLog
from ottla.storage.log.log import Log
from ottla.storage.log.partition_directory import PartitionDirectory

logger = logging.getLogger("ottla.storage")

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
    """Opens the log with this topic id that has the newest leader epoch and the most records.

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
                best.release()
            raise
        if best is not None and _end(best) >= _end(log):
            log, best = best, log
        if best is not None:
            best.release()
        best = log
    return best


def _end(log: Log) -> tuple[int, int]:
    return log.leader_epochs.latest_epoch, log.log_end_offset


def forget_note(log: Log, set_aside_path: str) -> None:
    """The log, which had that path, is in service again."""
    with suppress(OSError):
        log.log_directory.fs.remove(f"{log.path}/{NOTE_FILE}")
    log.log_directory.forget_restored({set_aside_path})
