"""Reads records and aborted transactions from remote segments. Blocks: called in worker threads.

The event loop calls it with a storage that raises NeedsThreadError rather than block
(`memory_reads`). Records that are a part of a file stay there, only headers of batches are read.
Mirrors `read` of Kafka's RemoteLogManager. What it returns for an offset is what `Log.read`
returned when the segment was on the local disk, byte for byte.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.broker.remote.lineage import end_of_common_history
from ottla.protocol.records.batch import BATCH_OVERHEAD, BatchHeader, read_header
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries
from ottla.storage.index.txn_index import TXN_ENTRY_BYTES, AbortedTransaction
from ottla.storage.log.batch_times import read_times
from ottla.storage.remote.remote_storage import (
    NoRemoteIndexError,
    RemoteIndexType,
    RemoteObjectCorruptError,
)
from ottla.storage.remote.segments import RemoteLogSegmentState

if TYPE_CHECKING:
    from ottla.storage.files.open_files import FileSlice
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata

_INDEX_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_TRANSACTION = Struct(">hqqqq")
#: Read at once in search of the batch that has an offset. The entry of the offset index before it
#: is `index.interval.bytes` away, by default 4096, and a batch.
_SEARCH_BYTES = 16_384
#: Records that are a smaller part of the bytes they are a view of are copied: a slow client would
#: keep these bytes in memory. A fetch of 1 MiB is a quarter of a chunk of the recommended size.
_VIEW_PART = 8


class NeedsThreadError(Exception):
    """The event loop cannot make this read: it would block, or take long."""


class SegmentStorage(Protocol):
    """The reads of a RemoteStorage."""

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes | memoryview: ...

    def fetch_log_segment_file(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> FileSlice | None: ...

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType
    ) -> bytes: ...


class RemoteRead(NamedTuple):
    """Whole batches from the one with the offset on; empty if the segment has none."""

    records: bytes | memoryview | FileSlice
    #: The offset after the last of them.
    next_offset: int
    #: Whether the segment has a batch at or above the offset, also if it is too large.
    has_batch: bool = True
    #: Where they end in the segment file.
    end_position: int = 0


def read_segment(
    storage: SegmentStorage,
    metadata: RemoteLogSegmentMetadata,
    offset: int,
    max_bytes: int,
    *,
    up_to: int,
    min_one_batch: bool = True,
    max_batches: int = sys.maxsize,
    may_block: bool = True,
    begin: int | None = None,
) -> RemoteRead:
    """Batches of the segment from the one with `offset` on and below `up_to`, at most `max_bytes`.

    `min_one_batch` returns the first batch whole even if it is larger than `max_bytes`. Reads the
    headers of the batches at both ends; the offset index covers those between them. Holds at most
    `max_bytes`, or one batch, and 16 KiB in memory, or the chunks that have them. `begin` is the
    position of the batch with `offset`, if it is known: the `end_position` of an earlier read.

    Raises RemoteStorageError, and NeedsThreadError for more than `max_batches` headers at one end.
    Without `may_block` also for headers of a file that are not in the page cache.
    """
    index = storage.fetch_index(metadata, RemoteIndexType.OFFSET)
    searched = 0
    if begin is None:
        begin, searched = floor_position(index, offset - metadata.start_offset), _SEARCH_BYTES
    # The search for the first batch and the records, in one request.
    end = min(begin + searched + max_bytes, metadata.size_bytes)
    part = storage.fetch_log_segment_file(metadata, begin, end)
    content = _fetch(storage, metadata, begin, end) if part is None else b""
    headers = _Headers(storage, metadata, begin, part, may_block=may_block)
    found = _find(headers, begin, offset, content, max_batches)
    if found is None:
        return RemoteRead(b"", offset, has_batch=False)
    position, size = found
    room = max(max_bytes, size) if min_one_batch else max_bytes
    stop = min(position + room, metadata.size_bytes)
    if part is not None:
        if stop > end:
            headers.extend(position, stop)
        skipped = _known_below(index, position, stop, up_to - metadata.start_offset)
        return _read_file(headers, offset, (position, stop), skipped, up_to, max_batches)
    first = position - begin
    if stop > end:
        content, first = _fetch(storage, metadata, position, stop), 0
    walked = memoryview(content)[first : first + stop - position]
    skipped = _known_below(index, position, stop, up_to - metadata.start_offset)
    length, next_offset = 0, offset
    try:
        for count, (at, header) in enumerate(iterate_entries(walked, skipped)):
            assert isinstance(header, BatchHeader)
            if header.next_offset > up_to:
                break
            if count >= max_batches:
                raise NeedsThreadError
            length, next_offset = at + header.size_in_bytes, header.next_offset
    except RecordsError as error:
        raise _corrupt(metadata, position + length, str(error)) from error
    records = content[first : first + length]
    if isinstance(records, memoryview) and len(records) * _VIEW_PART < len(records.obj):  # type: ignore[arg-type]
        records = bytes(records)
    return RemoteRead(records, next_offset, end_position=position + length)


def _read_file(
    headers: _Headers,
    offset: int,
    within: tuple[int, int],
    skipped: int,
    up_to: int,
    max_batches: int,
) -> RemoteRead:
    """As `read_segment`, of the batches in a range of positions of a file."""
    position, stop = within
    end, next_offset = position, offset
    for count, (at, header) in enumerate(headers.between(position + skipped, stop)):
        if at + header.size_in_bytes > stop or header.next_offset > up_to:
            break
        if count >= max_batches:
            raise NeedsThreadError
        end, next_offset = at + header.size_in_bytes, header.next_offset
    return RemoteRead(headers.records(position, end), next_offset, end_position=end)


def _known_below(index: bytes, position: int, stop: int, relative_up_to: int) -> int:
    """How many bytes from `position` on are batches that end before `stop` and below an offset.

    That is known without a look at them: an entry of the offset index has the position of a batch,
    and an offset that no batch before that position has. At least one more batch after these bytes
    is of that kind.
    """
    count = len(index) // 8

    def relative_offset_at(number: int) -> int:
        return int(_INDEX_ENTRY.unpack_from(index, 8 * number)[0])

    def position_at(number: int) -> int:
        return int(_INDEX_ENTRY.unpack_from(index, 8 * number)[1])

    before = bisect_left(range(count), stop, key=position_at)
    below = bisect_left(range(count), relative_up_to, key=relative_offset_at)
    # All batches before the last one of these entries are; those from the entry before it on are
    # left to the caller.
    last = min(before, below) - 2
    return max(position_at(last) - position, 0) if last >= 0 else 0


def floor_position(index: bytes, relative_offset: int) -> int:
    """The position of the last entry at or below an offset of the offset index, or 0."""

    def relative_offset_at(number: int) -> int:
        return int(_INDEX_ENTRY.unpack_from(index, 8 * number)[0])

    place = bisect_right(range(len(index) // 8), relative_offset, key=relative_offset_at)
    return int(_INDEX_ENTRY.unpack_from(index, 8 * (place - 1))[1]) if place else 0


def aborted_transactions(
    storage: SegmentStorage, segments: Iterable[RemoteLogSegmentMetadata], offset: int, end: int
) -> tuple[list[AbortedTransaction], bool]:
    """The aborted transactions that overlap [offset, end), by the indexes of these segments.

    True if later segments, also the local ones, cannot have more of them. `segments` begin with the
    one that has `offset`. Raises RemoteStorageError, also when an object is missing: what was
    aborted would pass for committed.
    """
    found: list[AbortedTransaction] = []
    for metadata in segments:
        try:
            content = storage.fetch_index(metadata, RemoteIndexType.TRANSACTION)
        except NoRemoteIndexError:
            continue  # no transaction was aborted in this segment
        if len(content) % TXN_ENTRY_BYTES:
            raise _corrupt(metadata, len(content), "a transaction index of this size")
        for _, *fields in _TRANSACTION.iter_unpack(content):
            entry = AbortedTransaction(*fields)
            if entry.last_offset >= offset and entry.first_offset < end:
                found.append(entry)
            if min(entry.last_stable_offset, entry.last_offset + 1) >= end:
                return found, True
    return found, False


def _fetch(
    storage: SegmentStorage, metadata: RemoteLogSegmentMetadata, start: int, end: int
) -> bytes | memoryview:
    if start >= end:
        return b""
    content = storage.fetch_log_segment(metadata, start, end)
    if len(content) != end - start:
        raise _corrupt(metadata, start, f"{len(content)} bytes instead of {end - start}")
    return content


def _find(
    headers: _Headers, position: int, offset: int, content: bytes | memoryview, max_batches: int
) -> tuple[int, int] | None:
    """(position, size) of the first batch at or above `position` that ends above `offset`.

    `content` are the bytes from `position` on, as far as they were fetched.
    """
    for count, (at, header) in enumerate(headers.between(position, window=content)):
        if header.next_offset > offset:
            return at, header.size_in_bytes
        if count >= max_batches:
            raise NeedsThreadError
    return None


class _Headers:
    """The headers of a segment's batches; `part` is what is known of its file, from `start` on."""

    def __init__(
        self,
        storage: SegmentStorage,
        metadata: RemoteLogSegmentMetadata,
        start: int = 0,
        part: FileSlice | None = None,
        *,
        may_block: bool = True,
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._start = start
        self._part = part
        self._may_block = may_block

    def between(
        self, position: int, stop: int = sys.maxsize, window: bytes | memoryview | bytearray = b""
    ) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position` on, which is the begin of one, up to
        the last header that ends at or before `stop`.

        `window` are the bytes from `position` on that were fetched already.
        """
        metadata, window_start = self._metadata, position
        stop = min(stop, metadata.size_bytes)
        while position < stop:
            if position + BATCH_OVERHEAD > window_start + len(window):
                if position + BATCH_OVERHEAD > stop < metadata.size_bytes:
                    return
                end = min(position + _SEARCH_BYTES, stop)
                window, window_start = self._read(position, end), position
            try:
                header = read_header(window, position - window_start)
            except RecordsError as error:
                raise _corrupt(metadata, position, str(error)) from error
            if position + header.size_in_bytes > metadata.size_bytes:
                raise _corrupt(metadata, position, f"a batch of {header.size_in_bytes} bytes")
            yield position, header
            position += header.size_in_bytes

    def extend(self, start: int, end: int) -> None:
        """These bytes are needed of the file."""
        self._part = self._storage.fetch_log_segment_file(self._metadata, start, end)
        self._start = start

    def records(self, start: int, end: int) -> bytes | memoryview | FileSlice:
        """Records of the file."""
        part = self._within(start, end)
        if part is None and start < end:
            part = self._storage.fetch_log_segment_file(self._metadata, start, end)
        return b"" if part is None else part

    def _within(self, start: int, end: int) -> FileSlice | None:
        part, first = self._part, start - self._start
        if part is None or start >= end or first < 0 or end - self._start > len(part):
            return None
        return part.part(first, end - start)

    def _read(self, start: int, end: int) -> bytes | memoryview | bytearray:
        part = self._within(start, end)
        if part is None:
            return _fetch(self._storage, self._metadata, start, end)
        content: bytes | bytearray | None = part.read_if_cached()
        if content is None:
            if not self._may_block:
                raise NeedsThreadError
            content = part.read()
            if len(content) != end - start:
                raise _corrupt(
                    self._metadata, start, f"a file with {len(content)} bytes from there"
                )
        return content


def find_timestamp(
    storage: SegmentStorage,
    metadata: RemoteLogSegmentMetadata,
    timestamp: int,
    *,
    from_offset: int,
    up_to: int,
) -> tuple[int, int, int] | None:
    """(timestamp, offset, leader epoch) of the first record that is not older than `timestamp`.

    Searches the offsets in [from_offset, up_to). None if all are older. Raises RemoteStorageError.
    """
    time_index = storage.fetch_index(metadata, RemoteIndexType.TIMESTAMP)
    relative_offset = max(
        floor_time(time_index, timestamp - 1), from_offset - metadata.start_offset
    )
    position = 0
    if relative_offset > 0:
        offset_index = storage.fetch_index(metadata, RemoteIndexType.OFFSET)
        position = floor_position(offset_index, relative_offset)
    for at, header in _Headers(storage, metadata).between(position):
        if header.base_offset >= up_to:
            break
        if header.max_timestamp < timestamp or header.next_offset <= from_offset:
            continue
        content = _fetch(storage, metadata, at, at + header.size_in_bytes)
        try:
            times = read_times(bytes(content))
        except RecordsError as error:
            raise _corrupt(metadata, at, str(error)) from error
        for found, offset in times:
            if found >= timestamp and from_offset <= offset < up_to:
                return found, offset, header.partition_leader_epoch
    return None


class TimestampSearch(NamedTuple):
    """A search by timestamp, in a worker thread, over [from_offset, end_offset) of one history."""

    epochs: list[tuple[int, int]]
    from_offset: int
    end_offset: int
    timestamp: int

    def segments(self, segments: list[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
        """Those of all segments of the partition that may have the record, in order."""
        return [
            each
            for each in sorted(segments, key=lambda each: each.start_offset)
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            and each.max_timestamp_ms >= self.timestamp
            and max(each.start_offset, self.from_offset) <= each.end_offset
            and each.start_offset < self.end_offset
        ]

    def find(
        self, storage: SegmentStorage, segment: RemoteLogSegmentMetadata
    ) -> tuple[int, int, int] | None:
        """In one of these segments. Raises RemoteStorageError, RecordsError."""
        start = max(segment.start_offset, self.from_offset)
        up_to = end_of_common_history(segment, self.epochs, self.end_offset, start)
        return find_timestamp(storage, segment, self.timestamp, from_offset=start, up_to=up_to)


def floor_time(index: bytes, timestamp: int) -> int:
    """The relative offset of the last entry at or before a time of the time index, or 0."""

    def timestamp_at(number: int) -> int:
        return int(_TIME_ENTRY.unpack_from(index, _TIME_ENTRY.size * number)[0])

    place = bisect_right(range(len(index) // _TIME_ENTRY.size), timestamp, key=timestamp_at)
    return int(_TIME_ENTRY.unpack_from(index, _TIME_ENTRY.size * (place - 1))[1]) if place else 0


def _corrupt(
    metadata: RemoteLogSegmentMetadata, position: int, problem: str
) -> RemoteObjectCorruptError:
    return RemoteObjectCorruptError(
        f"remote segment {metadata.segment_id.id} at position {position}: {problem}"
    )
