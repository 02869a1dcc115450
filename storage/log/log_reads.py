"""Reading from a log: slices for consumers and followers, offsets by time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.protocol.records.errors import CorruptRecordError
from ottla.storage.errors import CorruptIndex, LogClosed, OffsetOutOfRange, StorageError
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.batch_scan import DamagedLog, Place, find, walk, walk_batches
from ottla.storage.log.batch_times import BatchTimes
from ottla.storage.log.log_info import ReadInfo
from ottla.storage.log.segment import Segment

if TYPE_CHECKING:
    from ottla.storage.log.log_state import LogState


def read(
    log: LogState,
    offset: int,
    max_bytes: int,
    up_to: int,
    min_one_batch: bool,
    read_committed: bool,
) -> ReadInfo:
    """`Log.read`. See there."""
    end = log.log_end_offset
    start = log.log_start_offset
    info = ReadInfo(None, offset, start, log.last_stable_offset, log.high_watermark, end)
    if offset > end or offset < start:
        raise OffsetOutOfRange(log.name, offset, start, end)
    if offset >= up_to or offset == end:
        return info
    with _Reading(log):
        _read_slice(log, info, offset, max_bytes, min(up_to, end), min_one_batch, read_committed)
    return info


def read_failed(log: LogState, error: OSError) -> StorageError:
    """The exception for a failed read: the disk is at fault unless the log is gone."""
    if isinstance(error, FileNotFoundError) and not log.fs.exists(log.path):
        return LogClosed(f"{log.name} was deleted")
    return log.log_directory.fail(error)


def _read_slice(
    log: LogState,
    info: ReadInfo,
    offset: int,
    max_bytes: int,
    up_to: int,
    min_one_batch: bool,
    read_committed: bool,
) -> None:
    segment: Segment | None = log.segments.floor(offset)
    place: Place | None = None
    while segment is not None:
        place = segment.find_batch(offset)
        if place is not None:
            break
        # Compaction may have taken everything behind `offset` out of this segment.
        segment = log.segments.after(segment)
    if segment is None or place is None:
        return
    position = place.position
    end = _end_position(log, segment, up_to)
    room = max(max_bytes, place.size) if min_one_batch else max_bytes
    length = end - position
    if length > room:
        # What is asked for ends at a whole batch: half ones are sent for nothing.
        length = _boundary(segment, place, position + room) - position
    if length <= 0:
        return
    info.slice = segment.log.slice(position, length)
    info.first_batch_base_offset = place.base_offset
    if read_committed:
        bound = _end_offset(log, segment, position + length, end, up_to)
        info.aborted_transactions = _aborted(log, segment, offset, bound)


def _end_position(log: LogState, segment: Segment, up_to: int) -> int:
    if up_to >= log.log_end_offset:
        return segment.size
    if segment.base_offset >= up_to:
        return 0
    following = log.segments.after(segment)
    if following is not None and up_to >= following.base_offset:
        return segment.size
    return segment.position_of(up_to)


def _boundary(segment: Segment, first: Place, limit: int) -> int:
    """The last position at or below `limit` where a batch begins, searched from `first` on."""
    position = max(segment.offset_index.floor_position(limit), first.position)
    while True:
        place = find(segment.log, position, segment.size, -1)
        if place is None or position + place.size > limit:
            return position
        position += place.size


def _end_offset(log: LogState, segment: Segment, position: int, end: int, up_to: int) -> int:
    """The offset at which a slice that ends at `position` stops."""
    if position >= end:
        following = log.segments.after(segment)
        return up_to if following is None else min(up_to, following.base_offset)
    place = next(walk(segment.log, position, segment.size), None)
    return up_to if place is None else place.base_offset


def _aborted(log: LogState, segment: Segment, offset: int, bound: int) -> list[tuple[int, int]]:
    found: list[AbortedTransaction] = []
    for later in log.segments.from_offset(segment.base_offset):
        if later.txn_index.exists and later.txn_index.collect(offset, bound, found):
            break
    return sorted(((t.producer_id, t.first_offset) for t in found), key=lambda pair: pair[1])


class _Reading:
    """Turns what goes wrong inside of the block into the exceptions that reads promise."""

    __slots__ = ("_log",)

    def __init__(self, log: LogState) -> None:
        self._log = log

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, DamagedLog | CorruptIndex):
            raise CorruptRecordError(f"{self._log.name}: {error}") from error
        if isinstance(error, OSError):
            raise read_failed(self._log, error) from error


def batches(log: LogState, from_offset: int, to_offset: int) -> Iterator[memoryview]:
    """`Log.batches`. See there."""
    for segment in log.segments.between(max(from_offset, 0), to_offset):
        with _Reading(log):
            start = segment.find_batch(from_offset)
            if start is None:
                continue
            for place, content in walk_batches(segment.log, start.position, segment.size):
                if place.base_offset >= to_offset:
                    return
                yield content


def offset_for_timestamp(
    log: LogState, timestamp: int, times: BatchTimes
) -> tuple[int, int, int] | None:
    """`Log.offset_for_timestamp`. See there."""
    with _Reading(log):
        for segment in log.segments.from_offset(log.log_start_offset):
            if segment.size and segment.newest()[0] >= timestamp:
                found = _find_in(log, segment, timestamp, times)
                if found is not None:
                    return found
    return None


def max_timestamp_offset(log: LogState, times: BatchTimes) -> tuple[int, int, int] | None:
    """`Log.max_timestamp_offset`. See there."""
    with _Reading(log):
        newest = -1
        holder: Segment | None = None
        for segment in log.segments.from_offset(log.log_start_offset):
            timestamp = _newest_from(log, segment, times)
            if timestamp > newest:
                newest, holder = timestamp, segment
        if holder is None:
            return None
        found = _find_in(log, holder, newest, times)
        return found if found is not None else _newest_record(log, times)


def _newest_record(log: LogState, times: BatchTimes) -> tuple[int, int, int] | None:
    """The same by the records themselves, where the headers promise one that is gone.

    Compaction keeps the last batch of a producer as a header, with the timestamp it had.
    """
    best: tuple[int, int, int] | None = None
    # From the young end, where the newest nearly always is: what promises less is not read.
    for segment in reversed(list(log.segments.from_offset(log.log_start_offset))):
        if best is not None and segment.newest()[0] < best[0]:
            continue
        for place in reversed(list(walk(segment.log, 0, segment.size))):
            if place.last_offset < log.log_start_offset:
                break
            if best is not None and place.max_timestamp < best[0]:
                continue
            for timestamp, offset in reversed(times.of(segment, place, log.log_start_offset)):
                if best is None or timestamp >= best[0]:
                    best = timestamp, offset, place.leader_epoch
    return best


def _newest_from(log: LogState, segment: Segment, times: BatchTimes) -> int:
    """The newest timestamp of the segment at or above the log start, or -1."""
    start = log.log_start_offset
    if segment.base_offset >= start:
        return segment.newest()[0] if segment.size else -1
    # The log begins inside of this segment: what its indexes know includes what is gone.
    first = segment.find_batch(start)
    if first is None:
        return -1
    newest = -1
    for place in walk(segment.log, first.position, segment.size):
        timestamp = place.max_timestamp
        if place.base_offset < start:
            timestamp = max((each[0] for each in times.of(segment, place, start)), default=-1)
        newest = max(newest, timestamp)
    return newest


def _find_in(
    log: LogState, segment: Segment, timestamp: int, times: BatchTimes
) -> tuple[int, int, int] | None:
    from_offset = log.log_start_offset
    while True:
        place = segment.find_timestamp(timestamp, from_offset)
        if place is None:
            return None
        for found, offset in times.of(segment, place, from_offset):
            if found >= timestamp:
                return found, offset, place.leader_epoch
        # The header promises a timestamp that compaction has since taken out of the batch.
        from_offset = place.last_offset + 1
