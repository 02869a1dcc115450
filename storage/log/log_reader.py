"""Reading from a log: slices for consumers and followers, offsets by timestamp."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ottla.protocol.records.errors import CorruptRecordError, RecordsError
from ottla.storage.errors import (
    CorruptIndex,
    LogClosed,
    OffsetInRemoteStorage,
    OffsetOutOfRange,
    StorageError,
)
from ottla.storage.files.fs import UNUSABLE_FILE
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.batch_scan import CorruptLog, Place, find, walk, walk_batches
from ottla.storage.log.batch_times import BatchTimes
from ottla.storage.log.local_log import PartitionDirectory, SegmentList
from ottla.storage.log.log_info import ReadInfo
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.log.segment import Segment

logger = logging.getLogger("ottla.storage")


class LogReader:
    """Finds batches by offset and by timestamp. Changes nothing but damaged indexes."""

    __slots__ = ("_directory", "_offsets", "_segments")

    def __init__(
        self, directory: PartitionDirectory, segments: SegmentList, offsets: LogOffsets
    ) -> None:
        self._directory = directory
        self._segments = segments
        self._offsets = offsets

    # --- by offset ---------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, up_to: int, min_one_batch: bool, read_committed: bool
    ) -> ReadInfo:
        """`Log.read`."""
        offsets = self._offsets
        end = offsets.log_end_offset
        start = offsets.log_start_offset
        stable, high_watermark = offsets.last_stable_offset, offsets.high_watermark
        info = ReadInfo(None, offset, start, stable, high_watermark, end)
        if offset > end or offset < offsets.local_log_start_offset:
            raise self._out_of_range(offset)
        if offset >= up_to or offset == end:
            return info
        with _TranslatedErrors(self._directory):
            limit = min(up_to, end)
            self._read_slice(info, offset, max_bytes, limit, min_one_batch, read_committed)
        return info

    def _read_slice(
        self,
        info: ReadInfo,
        offset: int,
        max_bytes: int,
        up_to: int,
        min_one_batch: bool,
        read_committed: bool,
    ) -> None:
        segment: Segment | None = self._segments.floor(offset)
        if segment is not None and up_to == info.log_end_offset and not read_committed:
            last = segment.find_last_batch(offset)
            if last is not None:
                position, base_offset = last
                length = segment.size - position
                if min_one_batch or length <= max_bytes:
                    info.first_batch_base_offset = base_offset
                    info.slice = segment.log.slice(position, length)
                    return
        place: Place | None = None
        while segment is not None:
            place = segment.find_batch(offset)
            if place is not None:
                break
            # Compaction may have removed everything above `offset` from this segment.
            segment = self._segments.after(segment)
        if segment is None or place is None:
            return
        position = place.position
        end = self._end_position(segment, up_to)
        room = max(max_bytes, place.size) if min_one_batch else max_bytes
        length = end - position
        if length > room:
            # The slice ends with a whole batch: clients discard a partial one.
            length = _boundary(segment, place, position + room) - position
        if length <= 0:
            return
        info.slice = segment.log.slice(position, length)
        info.first_batch_base_offset = place.base_offset
        if read_committed:
            bound = self._end_offset(segment, position + length, end, up_to)
            info.aborted_transactions = self._aborted(segment, offset, bound)

    def _end_position(self, segment: Segment, up_to: int) -> int:
        if up_to >= self._offsets.log_end_offset:
            return segment.size
        if segment.base_offset >= up_to:
            return 0
        following = self._segments.after(segment)
        if following is not None and up_to >= following.base_offset:
            return segment.size
        return segment.position_of(up_to)

    def _end_offset(self, segment: Segment, position: int, end: int, up_to: int) -> int:
        """The offset at which a slice that ends at `position` stops."""
        if position >= end:
            following = self._segments.after(segment)
            return up_to if following is None else min(up_to, following.base_offset)
        place = next(walk(segment.log, position, segment.size), None)
        return up_to if place is None else place.base_offset

    def aborted_transactions(self, offset: int, end: int) -> list[AbortedTransaction]:
        """`Log.aborted_transactions`."""
        with _TranslatedErrors(self._directory):
            return self._collect_aborted(self._segments.first, offset, end)

    def _collect_aborted(
        self, segment: Segment, offset: int, bound: int
    ) -> list[AbortedTransaction]:
        found: list[AbortedTransaction] = []
        for later in self._segments.from_offset(segment.base_offset):
            if later.txn_index.exists and later.txn_index.collect(offset, bound, found):
                break
        return found

    def _aborted(self, segment: Segment, offset: int, bound: int) -> list[tuple[int, int]]:
        found = self._collect_aborted(segment, offset, bound)
        return sorted(((t.producer_id, t.first_offset) for t in found), key=lambda pair: pair[1])

    def batches(self, from_offset: int, to_offset: int) -> Iterator[memoryview]:
        """`Log.batches`."""
        # Anything may happen at a yield: retention and compaction remove segments, so the next one
        # is looked up when it is reached, and the file of this one is held open.
        offset = max(from_offset, 0)
        truncations = self._offsets.truncations
        segment: Segment | None = self._segments.floor(offset) or self._segments.first
        while segment is not None and segment.base_offset < to_offset:
            with _TranslatedErrors(self._directory):
                start = segment.find_batch(offset)
                if start is not None:
                    file = segment.log.pinned()
                    for place, content in walk_batches(file, start.position, segment.size):
                        if place.base_offset >= to_offset:
                            return
                        yield content
                        offset = place.last_offset + 1
                        if self._offsets.truncations != truncations:
                            raise self._out_of_range(offset)
            following = self._segments.floor(offset)
            if following is None or following is segment or start is None:
                following = self._segments.after(segment)
            segment = following

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        start, end = self._offsets.log_start_offset, self._offsets.log_end_offset
        is_remote = start <= offset < self._offsets.local_log_start_offset
        kind = OffsetInRemoteStorage if is_remote else OffsetOutOfRange
        return kind(self._directory.name, offset, start, end)

    # --- by timestamp ------------------------------------------------------------------------

    def offset_for_timestamp(
        self, timestamp: int, times: BatchTimes
    ) -> tuple[int, int, int] | None:
        """`Log.offset_for_timestamp`."""
        with _TranslatedErrors(self._directory):
            for segment in self._segments.from_offset(self._offsets.log_start_offset):
                if segment.size and segment.newest()[0] >= timestamp:
                    found = self._find_in(segment, timestamp, times)
                    if found is not None:
                        return found
        return None

    def max_timestamp_offset(self, times: BatchTimes) -> tuple[int, int, int] | None:
        """`Log.max_timestamp_offset`."""
        with _TranslatedErrors(self._directory):
            newest = -1
            holder: Segment | None = None
            for segment in self._segments.from_offset(self._offsets.log_start_offset):
                timestamp = self._newest_in(segment, times)
                if timestamp > newest:
                    newest, holder = timestamp, segment
            if holder is None:
                return None
            found = self._find_in(holder, newest, times)
            return found if found is not None else self._newest_record(times)

    def _newest_record(self, times: BatchTimes) -> tuple[int, int, int] | None:
        """The record with the newest timestamp, by the records and not by the batch headers.

        Compaction keeps the last batch of a producer as a header without records, with the max
        timestamp that it had.
        """
        start = self._offsets.log_start_offset
        best: tuple[int, int, int] | None = None
        # From the end, where the newest record usually is. Batches that cannot have a newer one
        # are not read.
        for segment in reversed(list(self._segments.from_offset(start))):
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

    def _newest_in(self, segment: Segment, times: BatchTimes) -> int:
        """The newest timestamp of the segment at or above the log start, or -1."""
        start = self._offsets.log_start_offset
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

    def _find_in(
        self, segment: Segment, timestamp: int, times: BatchTimes
    ) -> tuple[int, int, int] | None:
        from_offset = self._offsets.log_start_offset
        while True:
            place = segment.find_timestamp(timestamp, from_offset)
            if place is None:
                return None
            for found, offset in times.of(segment, place, from_offset):
                if found >= timestamp:
                    return found, offset, place.leader_epoch
            # Compaction removed the record that had the max timestamp of the batch header.
            from_offset = place.last_offset + 1


def _boundary(segment: Segment, first: Place, limit: int) -> int:
    """The last position at or below `limit` where a batch begins, searched from `first` on.

    Or that of a damaged batch before it: what is in front of it is served.
    """
    position = max(segment.indexed_boundary(limit), first.position)
    while True:
        try:
            place = find(segment.log, position, segment.size, -1)
        except CorruptLog as damage:
            if position > first.position:
                logger.error("Reading up to a damaged batch: %s", damage)
                return position
            raise
        if place is None or position + place.size > limit:
            return position
        position += place.size


class _TranslatedErrors:
    """Raises the exceptions that reads promise for the errors inside the block."""

    __slots__ = ("_directory",)

    def __init__(self, directory: PartitionDirectory) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, CorruptLog | CorruptIndex):
            raise CorruptRecordError(f"{self._directory.name}: {error}") from error
        if isinstance(error, OSError):
            raise self._read_failed(error) from error

    def _read_failed(self, error: OSError) -> StorageError | RecordsError:
        directory = self._directory
        if isinstance(error, FileNotFoundError) and not directory.fs.exists(directory.path):
            return LogClosed(f"{directory.name} was deleted")
        if error.errno in UNUSABLE_FILE:
            # Of one file, which the error names: the others can be read.
            logger.error("%s: A file cannot be read: %s", directory.name, error)
            return CorruptRecordError(f"{directory.name}: {error}")
        return directory.log_directory.read_failed(error)
