"""The record batches of one tiered segment, straight from the store, as fetch responses have them.

Reads forward, by the offset index in pieces of whole batches. Whatever the store returns is checked
before it is handed on: the CRC of each batch, sizes, and the offsets of batches. A piece that is
wrong is read once more, then with the checksums of its chunks. After an error nothing is missing of
what was yielded before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.records.batch import BATCH_OVERHEAD, BatchHeader, check_crc, read_header
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries
from ottla.storage.errors import CorruptFile, StorageError
from ottla.storage.producer.producer_snapshot import decode_snapshot
from ottla.storage.remote.remote_storage import (
    NoRemoteIndexError,
    RemoteIndexType,
    RemoteObjectCorruptError,
)
from pyspark_ottla.offsets import OFFSET_MAX
from pyspark_ottla.read.fetch import FetchedData
from pyspark_ottla.remote.segment import PlannedSegment, metadata_of

if TYPE_CHECKING:
    from ottla.storage.remote.chunk_index import ChunkIndex
    from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage

_INDEX_ENTRY = Struct(">ii")
_TRANSACTION = Struct(">hqqqq")

#: (first offset, producer id) of the aborted transactions that have an offset and may end later.
AbortedAt = Callable[[int], list[tuple[int, int]]]


class Aborted(NamedTuple):
    """An aborted transaction; `last` is the offset of its marker, or beyond what is read."""

    first: int
    last: int
    producer_id: int


class SegmentStream:
    """One walk over the offsets [start, end) of a segment; used once."""

    def __init__(
        self,
        storage: ObjectRemoteStorage,
        segment: PlannedSegment,
        fetch_bytes: int,
        aborted_at: AbortedAt | None,
    ) -> None:
        """`aborted_at` asks the broker, and is None unless aborted transactions are skipped."""
        self._storage = storage
        self._segment = segment
        self._metadata = metadata_of(segment)
        self._fetch_bytes = fetch_bytes
        self._aborted_at = aborted_at

    def responses(self, start: int, end: int) -> Iterator[FetchedData]:
        """Raises RemoteStorageError; ConnectorError from the request to the broker."""
        segment = self._segment
        end = min(end, segment.end)
        manifest = self._storage.manifest(self._metadata)
        chunks = manifest.chunk_index
        if chunks.original_file_size != segment.size_bytes:
            raise self._corrupt(
                f"it has {chunks.original_file_size} bytes, its metadata {segment.size_bytes}"
            )
        aborted = self._aborted(start, end)
        position = self._position_before(start)
        # Of a compressed segment each chunk is read once, whole.
        boundaries = [] if manifest.compression else self._boundaries()
        content: bytes | memoryview = b""
        following = segment.start if position == 0 else -1
        yielded, is_done = start, False
        while not is_done and position + len(content) < segment.size_bytes:
            begin = position + len(content)
            stop = min(self._stop(boundaries, begin, chunks), segment.size_bytes)
            wanted = (yielded, end)
            try:
                more = self._fetch_unchecked(begin, stop)
                joined = b"".join((content, more)) if content else more
                walked = self._whole_batches(joined, position, wanted, following)
            except RemoteObjectCorruptError:
                # A fault on the way is gone with the next read; otherwise this says what is wrong.
                joined = self._fetch(position, stop)
                walked = self._whole_batches(joined, position, wanted, following)
            content = joined
            first, length, following, is_done = walked
            if length > first and following > yielded:
                data = FetchedData(
                    yielded,
                    memoryview(content)[first:length],
                    [
                        (each.first, each.producer_id)
                        for each in aborted
                        if each.last >= yielded and each.first < following
                    ],
                    is_verified=True,
                )
                yielded = following
                yield data
            position += length
            content = content[length:]
        if content and not is_done:
            raise self._corrupt(f"it ends within a batch at position {position}")

    def _stop(self, boundaries: Sequence[int], begin: int, chunks: ChunkIndex) -> int:
        """Where the next piece ends: between two batches, if the index says where that is."""
        stop = begin + max(1, self._fetch_bytes)
        place = bisect_right(boundaries, stop) - 1
        if place >= 0 and begin < boundaries[place]:
            return boundaries[place]
        return -(-stop // chunks.original_chunk_size) * chunks.original_chunk_size

    def _boundaries(self) -> list[int]:
        """Positions of batches, by the offset index; none if it cannot be read, or is of no use."""
        try:
            index = self._storage.fetch_index(self._metadata, RemoteIndexType.OFFSET)
        except StorageError:
            return []
        whole = len(index) - len(index) % _INDEX_ENTRY.size
        return [position for _, position in _INDEX_ENTRY.iter_unpack(memoryview(index)[:whole])]

    def _whole_batches(
        self,
        content: bytes | memoryview,
        position: int,
        wanted: tuple[int, int],
        following: int,
    ) -> tuple[int, int, int, bool]:
        """Where the first batch with wanted offsets begins, where the last one ends, the offset
        after it, and whether there are no more of them."""
        start, end = wanted
        first, length, is_done = -1, 0, following >= end
        try:
            if len(content) >= BATCH_OVERHEAD:
                size = read_header(content).size_in_bytes
                if position + size > self._segment.size_bytes:
                    raise self._corrupt(f"a batch of {size} bytes at position {position}")
            for at, header in iterate_entries(content):
                if not isinstance(header, BatchHeader):
                    raise self._corrupt(f"records of an old format at position {position + at}")
                if header.base_offset >= end:
                    is_done = True
                    break
                if header.base_offset < following or header.next_offset > self._segment.end:
                    raise self._corrupt(
                        f"a batch with offset {header.base_offset} at position {position + at}"
                    )
                check_crc(content, at, header)
                length, following = at + header.size_in_bytes, header.next_offset
                if first < 0 and following > start:
                    first = at
                is_done = following >= end
        except RecordsError as error:
            raise self._corrupt(f"{error} (at position {position + length})") from None
        return (length if first < 0 else first), length, following, is_done

    def _position_before(self, offset: int) -> int:
        """The position of a batch at or before the offset, by the offset index."""
        relative = offset - self._segment.start
        if relative <= 0:
            return 0
        index = self._storage.fetch_index(self._metadata, RemoteIndexType.OFFSET)

        def relative_at(number: int) -> int:
            return int(_INDEX_ENTRY.unpack_from(index, 8 * number)[0])

        place = bisect_right(range(len(index) // 8), relative, key=relative_at)
        found = int(_INDEX_ENTRY.unpack_from(index, 8 * (place - 1))[1]) if place else 0
        if not 0 <= found < self._segment.size_bytes:
            raise self._corrupt(f"its offset index has the position {found}")
        return found

    def _fetch_unchecked(self, start: int, end: int) -> bytes | memoryview:
        content = self._storage.fetch_unchecked(self._metadata, start, end)
        return self._fetch(start, end) if content is None else content

    def _fetch(self, start: int, end: int) -> bytes | memoryview:
        content = self._storage.fetch_log_segment(self._metadata, start, end)
        if len(content) != end - start:
            raise self._corrupt(f"{len(content)} bytes instead of {end - start} at {start}")
        return content

    def _aborted(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions with offsets in [start, end)."""
        if self._aborted_at is None:
            return []
        found = self._transaction_index()
        if self._has_open_transactions():
            last = end - 1
            found += [Aborted(first, OFFSET_MAX, who) for first, who in self._aborted_at(last)]
        return found

    def _transaction_index(self) -> list[Aborted]:
        """Those whose markers are in the segment."""
        try:
            content = self._storage.fetch_index(self._metadata, RemoteIndexType.TRANSACTION)
        except NoRemoteIndexError:
            return []
        if len(content) % _TRANSACTION.size:
            raise self._corrupt(f"its transaction index has {len(content)} bytes")
        return [
            Aborted(first, last, producer_id)
            for _, producer_id, first, last, _ in _TRANSACTION.iter_unpack(content)
        ]

    def _has_open_transactions(self) -> bool:
        """Whether a transaction begins in or before the segment and ends after it, by the producer
        snapshot of its end. Then the marker is elsewhere, and the broker knows the outcome."""
        try:
            content = self._storage.fetch_index(self._metadata, RemoteIndexType.PRODUCER_SNAPSHOT)
            producers = decode_snapshot(self._segment.segment_id, content)
        except (NoRemoteIndexError, CorruptFile):
            return True
        return any(each.transaction_first_offset >= 0 for each in producers)

    def _corrupt(self, problem: str) -> RemoteObjectCorruptError:
        key = self._storage.keys.of(self._metadata).log
        return RemoteObjectCorruptError(f"The object {key} is corrupt: {problem}")
