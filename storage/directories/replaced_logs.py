"""A log that moves to another log directory: the renames at its end, and what a crash leaves.

The future log gets the name of the current log first, then the current log is deleted. Between the
two, the partition has a log in two directories. Kafka refuses to start then. The same is found when
somebody has copied a directory, or when a disk comes back that was not mounted for a while. So a
second log is deleted only when its records are proven to be in the first one; else it is set aside.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import zip_longest

from ottla.protocol.records.errors import RecordsError
from ottla.storage.errors import InconsistentMetadata, LogDirectoryOffline, StorageError
from ottla.storage.files.layout import partition_directory_name
from ottla.storage.files.set_aside import Note, Reason
from ottla.storage.log.batch_scan import CorruptLog
from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.storage")

# So many bytes at the end of two logs are compared, and always those of an active segment: a second
# or two of reading. What is before them has the same leader epochs, of one topic.
_COMPARED_BYTES = 64 << 20


def rename_to_current(future: Log) -> None:
    """Give the future log the directory name of a current log. Durable when it returns.

    Raises LogDirectoryOffline, DiskFull, ResourceExhausted. After the latter two it may be
    called again. Raises InconsistentMetadata if somebody has moved or deleted the directory.
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
    except FileNotFoundError as error:
        raise InconsistentMetadata(f"{future.path} is gone; it was moved or deleted") from error
    except OSError as error:
        raise directory.write_failed(error) from error


def note_of_parts(log: Log, moved_to: str) -> Note | None:
    """Why a log that was moved to another directory stays: parts of it are set aside beside it."""
    prefix = f"{log.path}/"
    if not any(item.path.startswith(prefix) for item in log.log_directory.set_aside):
        return None
    return Note(Reason.REPLACED, f"moved to {moved_to}; it has parts that were set aside before")


def is_of_other_topic(one: Log, other: Log) -> bool:
    """Whether both logs have a topic id, and not the same one."""
    return one.topic_id != other.topic_id and None not in (one.topic_id, other.topic_id)


def choose_current(one: Log, other: Log) -> tuple[Log, Log, Note | None]:
    """(the log to keep, the other one, why to set that aside) of a partition with one topic id.

    No note: the other one has no record that is not in the first one on disk, and can be deleted.
    A leader epoch has one leader, so of two logs with a common history the one with the higher last
    leader epoch has all committed records of the other one, and of two with the same the longer
    one. Where that is not so, the longer one is kept: an empty log that was created while the disk
    with the records was not mounted has the higher leader epoch.
    """
    kept, rest = (one, other) if _end(one) >= _end(other) else (other, one)
    common_end = end_of_common_history(kept, rest)
    if kept.log_end_offset < rest.log_end_offset and (
        common_end is None or rest.high_watermark > common_end
    ):
        kept, rest = rest, kept
    is_contained = has_all_records(kept, rest)
    note: Note | None = Note(
        Reason.SECOND_COPY,
        f"{kept.path} is another log of the partition ({_ends(kept)}; this one: {_ends(rest)}), and"
        f" {'has' if is_contained else 'does not have'} all records of this one",
        needs_attention=not is_contained,
    )
    if is_contained and _end(kept) == _end(rest) and kept.topic_id == rest.topic_id is not None:
        with suppress(StorageError):
            _make_durable(kept)
            note = None
    logger.warning(
        "%s is in two log directories, %s (%s) and %s (%s): the end of a move was interrupted, or a"
        " directory was copied. Keeping the former, %s the latter",
        kept.name,
        kept.path,
        _ends(kept),
        rest.path,
        _ends(rest),
        "deleting" if note is None else "setting aside as -stray",
    )
    if common_end is not None:
        # Both were current, the one after the other.
        kept.update_high_watermark(max(kept.high_watermark, min(common_end, rest.high_watermark)))
        with suppress(LogDirectoryOffline):  # the next operation finds that, too
            kept.truncator.delete_records_before(min(rest.log_start_offset, kept.high_watermark))
    return kept, rest, note


def _make_durable(log: Log) -> None:
    """A power failure must not take back the records of a log, or its name. Raises StorageError."""
    log.flusher.flush()
    directory = log.log_directory
    try:
        directory.fs.sync_directory(directory.path)
    except OSError as error:
        raise directory.write_failed(error) from error


def note_of_other_topic(kept: Log, rest: Log) -> Note:
    """The reason to set aside a log whose topic id differs from the one that is kept."""
    return Note(
        Reason.SECOND_COPY,
        f"{kept.path} is another log of the partition, of topic id {_hex(kept)}; this one has topic"
        f" id {_hex(rest)}",
    )


def check_future(current: Log, future: Log, other: Log | None) -> Note | None:
    """Why a future log that was found at the start cannot be continued; None if it can be.

    `other` is another future log of the partition. The note needs no attention if `future` has no
    record that is not in the current log.
    """
    if not is_of_other_topic(current, future):
        is_second = other is not None or future.log_directory is current.log_directory
        if not is_second and _continues(current, future):
            return None
        if has_all_records(current, future):
            return Note(
                Reason.INCOMPLETE_MOVE, f"its records are in {current.path}", needs_attention=False
            )
    return Note(
        Reason.INCOMPLETE_MOVE,
        f"it is a copy for another log directory ({_ends(future)}) and has records that"
        f" {current.path} does not have ({_ends(current)})",
    )


def note_without_current(future: Log) -> Note:
    """Why a future log is set aside whose partition has no other log on this broker."""
    return Note(
        Reason.INCOMPLETE_MOVE,
        "it is a copy for another log directory, and the log that it was copied from is in none of"
        f" log.dirs: it may be the only copy ({_ends(future)})",
        needs_attention=not is_empty(future),
    )


def is_empty(log: Log) -> bool:
    """Whether a log has no records on this disk, also none that were set aside."""
    return log.local_log_start_offset >= log.log_end_offset and not _has_parts_set_aside(log)


def _has_parts_set_aside(log: Log) -> bool:
    prefix = f"{log.path}/"
    return any(item.path.startswith(prefix) for item in log.log_directory.set_aside)


def _continues(current: Log, future: Log) -> bool:
    """Whether a future log is a part of the current log, or was until that was truncated by a
    leader. Otherwise to continue it would truncate the only copy of its records."""
    if is_empty(future):
        return True
    if future.log_end_offset <= current.local_log_start_offset:  # retention went on
        return future.leader_epochs.latest_epoch <= current.leader_epochs.latest_epoch
    common_end = end_of_common_history(current, future)
    if common_end is None:
        return False
    return common_end >= future.log_end_offset or _end(current)[0] > _end(future)[0]


def end_of_common_history(one: Log, other: Log) -> int | None:
    """Where the logs diverge, at the latest at the end of one; None if they have nothing in common.

    That is told by the first batch and by the leader epochs of the offsets that both have.
    """
    start = max(one.local_log_start_offset, other.local_log_start_offset)
    end = min(one.log_end_offset, other.log_end_offset)
    if start >= end:
        return None
    epochs, others = one.leader_epochs, other.leader_epochs
    if epochs.epoch_for_offset(start) != others.epoch_for_offset(start):
        return None
    try:
        first, first_of_other = (
            bytes(next(log.batches(start, start + 1), b"")) for log in (one, other)
        )
    except (StorageError, RecordsError, CorruptLog):
        return None
    # Compaction removes batches of one of the logs, and records of them.
    if first != first_of_other and not (one.config.compact or other.config.compact):
        return None
    starts = {offset for _, offset in (*epochs.entries, *others.entries) if start < offset < end}
    for offset in sorted(starts):
        if epochs.epoch_for_offset(offset) != others.epoch_for_offset(offset):
            return offset
    return end


def has_all_records(log: Log, part: Log) -> bool:
    """Whether every record of `part` is proven to be in `log`.

    They have the same leader epochs, and the same bytes at the end (`_COMPARED_BYTES`). Reads those
    of both.
    """
    if is_empty(part):
        return part.log_end_offset <= log.log_end_offset
    if _has_parts_set_aside(part):
        return False
    start, end = part.log_start_offset, part.log_end_offset
    if start < log.log_start_offset or end_of_common_history(log, part) != end:
        return False
    compared = max(start, _start_of_compared(log), _start_of_compared(part))
    try:
        ours, theirs = (map(bytes, each.batches(compared, end)) for each in (log, part))
        return all(one == other for one, other in zip_longest(ours, theirs))
    except (StorageError, RecordsError, CorruptLog):
        return False


def _start_of_compared(log: Log) -> int:
    """The base offset of the first segment that is compared."""
    left, start = _COMPARED_BYTES, log.log_end_offset
    for segment in reversed(list(log.segments)):
        if left <= 0:
            break
        left -= segment.size
        start = segment.base_offset
    return start


def _end(log: Log) -> tuple[int, int]:
    return log.leader_epochs.latest_epoch, log.log_end_offset


def _ends(log: Log) -> str:
    return "leader epoch {}, log end offset {}".format(*_end(log))


def _hex(log: Log) -> str:
    return "none" if log.topic_id is None else log.topic_id.hex()
