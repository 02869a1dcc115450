"""Reads of what is in memory, for the event loop: a scan finds most chunks read ahead.

A worker thread would cost a scan two changes of threads for each fetch, more than the read itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.remote.segment_reader import (
    NeedsThreadError,
    RemoteRead,
    aborted_transactions,
    read_segment,
)
from ottla.storage.remote.remote_storage import RemoteIndexType

if TYPE_CHECKING:
    from ottla.broker.remote.index_cache import CachedIndexes
    from ottla.storage.files.open_files import FileSlice
    from ottla.storage.index.txn_index import AbortedTransaction
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata

#: The records of several chunks are copied: at most so many bytes in a turn, which takes 1 ms.
_MAX_BYTES = 4 << 20
#: Headers of batches, at 1.5 us each. By default an offset index has an entry every 4096 bytes.
_MAX_BATCHES = 64
#: A transaction index: 120 aborted transactions.
_MAX_INDEX_BYTES = 4096


class MemoryReads:
    """A `SegmentStorage` that raises NeedsThreadError rather than block. Loop only."""

    def __init__(self, indexes: CachedIndexes) -> None:
        self._indexes = indexes

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
        try:
            return read_segment(
                *(self, metadata, offset, max_bytes),
                up_to=up_to,
                min_one_batch=min_one_batch,
                max_batches=_MAX_BATCHES,
                may_block=False,
            )
        except NeedsThreadError:
            return None

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
