"""Reads records and aborted transactions from remote segments. Blocks: called in worker threads.

The event loop calls it with a storage that raises NeedsThreadError rather than block
(`memory_reads`). Mirrors `read` of Kafka's RemoteLogManager. What it returns for an offset is what
`Log.read` returned when the segment was on the local disk, byte for byte.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.protocol.records.batch import BATCH_OVERHEAD, BatchHeader, read_header
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries
from ottla.storage.index.txn_index import TXN_ENTRY_BYTES, AbortedTransaction
from ottla.storage.log.batch_times import read_times
from ottla.storage.remote.remote_storage import (
    RemoteIndexType,
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
)

if TYPE_CHECKING:
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

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType
    ) -> bytes: ...


class RemoteRead(NamedTuple):
    """Whole batches from the one with the offset on; empty if the segment has none."""

    records: bytes | memoryview
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
) -> RemoteRead:
    """Batches of the segment from the one with `offset` on and below `up_to`, at most `max_bytes`.

    `min_one_batch` returns the first batch whole even if it is larger than `max_bytes`. Reads the
    headers of the batches at both ends; the offset index covers those between them. Holds at most
    `max_bytes`, or one batch, and 16 KiB in memory, or the chunks that have them.

    Raises RemoteStorageError, and NeedsThreadError for more than `max_batches` headers at one end.
    """
    index = storage.fetch_index(metadata, RemoteIndexType.OFFSET)
    begin = floor_position(index, offset - metadata.start_offset)
    # The search for the first batch and the records, in one request.
    end = min(begin + _SEARCH_BYTES + max_bytes, metadata.size_bytes)
    content = _fetch(storage, metadata, begin, end)
    found = _find(storage, metadata, begin, offset, content, max_batches)
    if found is None:
        return RemoteRead(b"", offset, has_batch=False)
    position, size = found
    room = max(max_bytes, size) if min_one_batch else max_bytes
    stop = min(position + room, metadata.size_bytes)
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
    one that has `offset`. Raises RemoteStorageError.
    """
    found: list[AbortedTransaction] = []
    for metadata in segments:
        try:
            content = storage.fetch_index(metadata, RemoteIndexType.TRANSACTION)
        except RemoteResourceNotFoundError:
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
    storage: SegmentStorage,
    metadata: RemoteLogSegmentMetadata,
    position: int,
    offset: int,
    content: bytes | memoryview,
    max_batches: int,
) -> tuple[int, int] | None:
    """(position, size) of the first batch at or above `position` that ends above `offset`.

    `content` are the bytes from `position` on, as far as they were fetched.
    """
    for count, (at, header) in enumerate(_headers(storage, metadata, position, content)):
        if header.next_offset > offset:
            return at, header.size_in_bytes
        if count >= max_batches:
            raise NeedsThreadError
    return None


def _headers(
    storage: SegmentStorage,
    metadata: RemoteLogSegmentMetadata,
    position: int,
    window: bytes | memoryview = b"",
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches from `position` on, which is the begin of one.

    `window` are the bytes from there on that were fetched already.
    """
    window_start = position
    while position < metadata.size_bytes:
        if position + BATCH_OVERHEAD > window_start + len(window):
            end = min(position + _SEARCH_BYTES, metadata.size_bytes)
            window, window_start = _fetch(storage, metadata, position, end), position
        try:
            header = read_header(window, position - window_start)
        except RecordsError as error:
            raise _corrupt(metadata, position, str(error)) from error
        if position + header.size_in_bytes > metadata.size_bytes:
            raise _corrupt(metadata, position, f"a batch of {header.size_in_bytes} bytes")
        yield position, header
        position += header.size_in_bytes


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
    for at, header in _headers(storage, metadata, position):
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
