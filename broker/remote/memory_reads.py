"""Reads of what is in memory, for the event loop: a scan finds most chunks read ahead.

A worker thread would cost a scan two changes of threads for each fetch, more than the read itself.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

from ottla.broker.remote.segment_reader import (
    NeedsThreadError,
    RemoteRead,
    aborted_transactions,
    read_segment,
)
from ottla.protocol.records.batch import BATCH_OVERHEAD, read_header
from ottla.protocol.records.errors import RecordsError
from ottla.storage.remote.remote_storage import RemoteIndexType

if TYPE_CHECKING:
    from ottla.broker.remote.index_cache import CachedIndexes
    from ottla.storage.files.open_files import FileSlice
    from ottla.storage.index.txn_index import AbortedTransaction
    from ottla.storage.remote.remote_storage import SegmentFile
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata

#: The records of several chunks are copied: at most this number of bytes in a turn, 1 ms.
_MAX_BYTES = 4 << 20
#: Headers of batches, at 1.5 us each. By default an offset index has an entry every 4096 bytes.
_MAX_BATCHES = 64
#: Headers of small batches are read at once, as far as the next entry of the offset index.
_WINDOW_BYTES = 4096 + BATCH_OVERHEAD
#: A transaction index: 120 aborted transactions.
_MAX_INDEX_BYTES = 4096
#: Ends of reads, at 200 bytes each: those of more scans than connections read at the same time.
_MAX_POSITIONS = 4096
#: Positions of an offset index, those of a segment of 1 GiB, which take 0.5 ms to make. And for
#: how many segments they are kept: 16 MiB at most.
_MAX_INDEXED = 1 << 18
_MAX_SCANS = 16


class MemoryReads:
    """A `SegmentStorage` that raises NeedsThreadError rather than block. Loop only."""

    def __init__(self, indexes: CachedIndexes) -> None:
        self._indexes = indexes
        # By the number of the segment's id: its hash needs no call of a Python function.
        self._positions: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._indexed: OrderedDict[int, array[int]] = OrderedDict()

    def remember(self, metadata: RemoteLogSegmentMetadata, read: RemoteRead) -> None:
        """Where the read ended: a scan continues there."""
        self._positions[metadata.segment_id.id.int, read.next_offset] = read.end_position
        if len(self._positions) > _MAX_POSITIONS:
            self._positions.popitem(last=False)

    def position(self, metadata: RemoteLogSegmentMetadata, offset: int) -> int | None:
        """The position of the batch with `offset`, if a read ended there. Segments never change."""
        return self._positions.get((metadata.segment_id.id.int, offset))

    def read(
        self,
        metadata: RemoteLogSegmentMetadata,
        offset: int,
        max_bytes: int,
        *,
        up_to: int,
        min_one_batch: bool,
    ) -> RemoteRead | None:
        """As `read_segment`; None if a worker thread is needed, such as for an error."""
        position = self.position(metadata, offset)
        if position is not None and up_to > metadata.end_offset:
            continued = self._read_on(metadata, position, offset, max_bytes)
            if continued is not None:
                self.remember(metadata, continued)
                return continued
        try:
            found = read_segment(
                self,
                metadata,
                offset,
                max_bytes,
                up_to=up_to,
                min_one_batch=min_one_batch,
                max_batches=_MAX_BATCHES,
                may_block=False,
                begin=position,
            )
        except NeedsThreadError:
            return None
        if found.records:
            self.remember(metadata, found)
        return found

    def _read_on(
        self, metadata: RemoteLogSegmentMetadata, position: int, offset: int, max_bytes: int
    ) -> RemoteRead | None:
        """As `read` of a scan that continues: the batch with `offset` is at `position`, and all
        that follow are wanted. None if the records are not in a file, and in unusual cases.

        The offset index has the position of a batch near the end of what is read, so that the
        headers of one batch or a few are all that is read.
        """
        limit = min(position + max_bytes, metadata.size_bytes)
        part = self.fetch_log_segment_file(metadata, position, limit)
        if part is None or len(part) != limit - position:
            return None
        return self.continued(metadata, part, limit)

    def continued(
        self, metadata: RemoteLogSegmentMetadata, part: FileSlice, limit: int
    ) -> RemoteRead | None:
        """The whole batches in a part of the file, which begins with a batch and ends at the
        position `limit`; None if more is to be read to know them."""
        positions = self._batch_positions(metadata)
        if positions is None:
            return None
        size, position = metadata.size_bytes, part.position
        if limit == size:
            if part.part(0, 1).read_if_cached() is None:
                return None
            return RemoteRead(part, metadata.end_offset + 1, end_position=size)
        place = bisect_right(positions, limit)
        at = max(positions[place - 1], position) if place else position
        window, start = bytearray(), at
        for _ in range(_MAX_BATCHES):
            if at + BATCH_OVERHEAD > start + len(window):
                length, start = min(_WINDOW_BYTES, limit - at), at
                content = part.part(at - position, length).read_if_cached()
                if content is None or length < BATCH_OVERHEAD:
                    return None
                window = content
            try:
                header = read_header(window, at - start)
            except RecordsError:
                return None  # it is met again in a thread, and reported
            if at + header.size_in_bytes > limit:
                if at == position:
                    return None
                return RemoteRead(part.part(0, at - position), header.base_offset, end_position=at)
            at += header.size_in_bytes
        return None

    def _batch_positions(self, metadata: RemoteLogSegmentMetadata) -> array[int] | None:
        """The positions in the offset index, if that is in memory and not too large."""
        segment_id = metadata.segment_id.id.int
        found = self._indexed.get(segment_id)
        if found is not None:
            return found
        content = self._indexes.index_if_cached(metadata, RemoteIndexType.OFFSET)
        if content is None or not 0 < len(content) // 8 <= _MAX_INDEXED:
            return None
        entries = array("i", content[: len(content) // 8 * 8])
        if sys.byteorder == "little":
            entries.byteswap()
        found = entries[1::2]
        if len(self._indexed) >= _MAX_SCANS:
            self._indexed.popitem(last=False)
        self._indexed[segment_id] = found
        return found

    def aborted(
        self, metadata: RemoteLogSegmentMetadata, offset: int, end: int
    ) -> list[AbortedTransaction] | None:
        """All aborted transactions that overlap [offset, end), which is in the segment.

        None if a worker thread is needed, or later segments.
        """
        try:
            found, is_complete = aborted_transactions(self, [metadata], offset, end)
        except NeedsThreadError:
            return None
        is_complete = is_complete or self._indexes.has_no_open_transaction(metadata)
        return found if is_complete else None

    def segment_file(self, metadata: RemoteLogSegmentMetadata) -> SegmentFile | None:
        """The file of a segment that is being read; None if there is none, or if the position of
        its batches is not known."""
        if self._batch_positions(metadata) is None:
            return None
        return self._indexes.segment_file(metadata)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes | memoryview:
        content = None
        if end_position - start_position <= _MAX_BYTES:
            content = self._indexes.fetch_log_segment_if_cached(
                metadata, start_position, end_position
            )
        if content is None:
            raise NeedsThreadError
        return content

    def fetch_log_segment_file(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> FileSlice | None:
        return self._indexes.fetch_log_segment_file_if_cached(
            metadata, start_position, end_position
        )

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType) -> bytes:
        content = self._indexes.index_if_cached(metadata, index_type)
        if content is None:
            raise NeedsThreadError
        if index_type is RemoteIndexType.TRANSACTION and len(content) > _MAX_INDEX_BYTES:
            raise NeedsThreadError
        return content
