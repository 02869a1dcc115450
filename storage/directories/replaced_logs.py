"""A log that moves to another log directory: the renames at its end, and what a crash leaves.

The future log gets the name of the current log first, then the current log is deleted. Between the
two, the partition has a log in two directories. Kafka refuses to start then; this broker keeps the
log that has all records of the other one.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from ottla.storage.errors import InconsistentMetadata, LogDirectoryOffline
from ottla.storage.files.layout import partition_directory_name
from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.storage")


def rename_to_current(future: Log) -> None:
    """Gives the future log the directory name of a current log. Durable when it returns.

    Raises LogDirectoryOffline, DiskFull, ResourceExhausted. After the latter two it may be
    called again.
    """
    directory = future.log_directory
    path = f"{directory.path}/{partition_directory_name(future.topic, future.partition)}"
    try:
        if future.path != path:
            directory.fs.replace(future.path, path)
            future.move_to(path)
        # Before the current log is renamed, maybe on another disk: after a power failure neither
        # of the two might have the name of a current log.
        directory.fs.sync_directory(directory.path)
    except OSError as error:
        raise directory.write_failed(error) from error


def choose_current(one: Log, other: Log) -> tuple[Log, Log, bool]:
    """(the log to keep, the other one, whether both have the same records) of a partition.

    A leader epoch has one leader, so of two copies the one with the higher last leader epoch has
    all committed records of the other, and of two with the same the longer one. Raises
    InconsistentMetadata when they are logs of different topics.
    """
    if one.topic_id != other.topic_id and None not in (one.topic_id, other.topic_id):
        raise InconsistentMetadata(
            f"{one.name} is in two log directories with different topic ids: {one.path} and"
            f" {other.path}; remove the one whose topic was deleted"
        )
    end_of_one, end_of_other = _end(one), _end(other)
    kept, rest = (one, other) if end_of_one >= end_of_other else (other, one)
    are_equal = end_of_one == end_of_other
    logger.warning(
        "%s is in two log directories, %s (leader epoch %d, log end offset %d) and %s (leader"
        " epoch %d, log end offset %d): the end of a move was interrupted. Keeping the former, %s"
        " the latter",
        kept.name,
        kept.path,
        *_end(kept),
        rest.path,
        *_end(rest),
        "deleting" if are_equal else "setting aside as -stray",
    )
    # Both were current, the one after the other.
    kept.update_high_watermark(max(kept.high_watermark, rest.high_watermark))
    with suppress(LogDirectoryOffline):  # the next operation finds that, too
        kept.delete_records_before(min(rest.log_start_offset, kept.high_watermark))
    return kept, rest, are_equal


def _end(log: Log) -> tuple[int, int]:
    return log.leader_epochs.latest_epoch, log.log_end_offset
