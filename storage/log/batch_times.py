"""Lookups of records by timestamp, and the timestamps and offsets of the records in a batch.

A batch may decompress to a hundred megabytes. A lookup on the event loop has a budget. A batch that
exceeds it raises `ReadBudgetExceeded`; the caller reads the batch in a worker thread
(`read_times`), adds the result (`add`) and retries the lookup. So no lookup blocks the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.records.batch import read_header, read_magic
from ottla.protocol.records.errors import DecompressedTooLargeError
from ottla.protocol.records.reader import read_records
from ottla.storage.log.batch_scan import Place, walk
from ottla.storage.records.batch_content import MAX_DECOMPRESSED_BYTES
from ottla.storage.records.validation_budget import (
    KIB_DECOMPRESSED,
    MESSAGE_BYTES,
    RECORD_REBUILT,
    ValidationBudget,
    ValidationBudgetExceeded,
)

if TYPE_CHECKING:
    from ottla.storage.log.local_log import SegmentList
    from ottla.storage.log.segment import Segment

Times = list[tuple[int, int]]
#: (timestamp, offset, leader epoch) of a record.
Found = tuple[int, int, int]
_Key = tuple[str, int, int]


class ReadBudgetExceeded(Exception):
    """Reading this batch exceeds the budget. `content` is the batch, for `read_times`."""

    def __init__(self, key: _Key, content: bytes) -> None:
        super().__init__(f"{key[0]} at {key[1]}")
        self.key = key
        self.content = content


def read_times(content: bytes, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> Times:
    """(timestamp, offset) of each record, control records too. Raises RecordsError."""
    records = read_records(
        content, include_control=True, max_decompressed_bytes=max_decompressed_bytes
    )
    return [(record.timestamp, record.offset) for record in records]


class BatchTimes:
    """Reads batches for one lookup and its retries."""

    __slots__ = ("_cached", "budget")

    def __init__(self, budget: ValidationBudget | None = None) -> None:
        self.budget = budget
        self._cached: dict[_Key, Times] = {}

    def add(self, key: _Key, times: Times) -> None:
        """Store the result of `read_times` for a `ReadBudgetExceeded`, for the retry."""
        self._cached[key] = times

    def of(self, segment: Segment, place: Place, from_offset: int) -> Times:
        """The times of the batch at `place`, from `from_offset` on. Raises ReadBudgetExceeded."""
        key = (segment.log.path, place.position, place.size)
        times = self._cached.get(key)
        if times is None:
            times = self._read(key, segment.log.read(place.position, place.size))
            if self.budget is not None:
                self._cached[key] = times
        return [each for each in times if each[1] >= from_offset]

    def _read(self, key: _Key, content: bytes) -> Times:
        budget = self.budget
        if budget is None:
            return read_times(content)
        try:
            limit = budget.decompressed_bytes
            if read_magic(content) == 2:
                budget.spend(read_header(content).record_count * RECORD_REBUILT)
            else:
                # The number of records of an old message is known only after decompression.
                budget.spend(len(content) // MESSAGE_BYTES * RECORD_REBUILT)
                limit = budget.left // RECORD_REBUILT * MESSAGE_BYTES
            budget.spend((len(content) >> 10) * KIB_DECOMPRESSED)
            times = read_times(content, min(MAX_DECOMPRESSED_BYTES, limit))
        except (ValidationBudgetExceeded, DecompressedTooLargeError):
            raise ReadBudgetExceeded(key, content) from None
        return times


def find_timestamp(
    segments: SegmentList, start: int, timestamp: int, times: BatchTimes
) -> Found | None:
    """The first record at or above offset `start` with at least this timestamp.

    Raises ReadBudgetExceeded, CorruptLog, CorruptIndex, RecordsError, OSError.
    """
    for segment in segments.from_offset(start):
        if segment.size and segment.newest()[0] >= timestamp:
            found = _find_in(segment, start, timestamp, times)
            if found is not None:
                return found
    return None


def find_newest(segments: SegmentList, start: int, times: BatchTimes) -> Found | None:
    """The first record at or above offset `start` with the newest timestamp. Raises as
    `find_timestamp`."""
    newest = -1
    holder: Segment | None = None
    for segment in segments.from_offset(start):
        timestamp = _newest_in(segment, start, times)
        if timestamp > newest:
            newest, holder = timestamp, segment
    if holder is None:
        return None
    found = _find_in(holder, start, newest, times)
    return found if found is not None else _newest_record(segments, start, times)


def _newest_record(segments: SegmentList, start: int, times: BatchTimes) -> Found | None:
    """The record with the newest timestamp, by the records and not by the batch headers.

    Compaction keeps the last batch of a producer as a header without records, with the max
    timestamp that it had.
    """
    best: Found | None = None
    # From the end, where the newest record usually is. Batches that cannot have a newer one
    # are not read.
    for segment in reversed(list(segments.from_offset(start))):
        if best is not None and segment.newest()[0] < best[0]:
            continue
        for place in reversed(list(walk(segment.log, 0, segment.size))):
            if place.last_offset < start:
                break
            if best is not None and place.max_timestamp < best[0]:
                continue
            for timestamp, offset in reversed(times.of(segment, place, start)):
                if best is None or timestamp >= best[0]:
                    best = timestamp, offset, place.leader_epoch
    return best


def _newest_in(segment: Segment, start: int, times: BatchTimes) -> int:
    """The newest timestamp of the segment at or above the log start, or -1."""
    if segment.base_offset >= start:
        return segment.newest()[0] if segment.size else -1
    # The log starts inside this segment: its indexes include deleted records.
    newest, at = segment.newest()
    holder = segment.find_batch(at) if at >= start else None
    if holder is not None and holder.base_offset >= start:
        return newest  # as nearly always: timestamps ascend
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


def _find_in(segment: Segment, from_offset: int, timestamp: int, times: BatchTimes) -> Found | None:
    while True:
        place = segment.find_timestamp(timestamp, from_offset)
        if place is None:
            return None
        for found, offset in times.of(segment, place, from_offset):
            if found >= timestamp:
                return found, offset, place.leader_epoch
        # Compaction removed the record that had the max timestamp of the batch header.
        from_offset = place.last_offset + 1
