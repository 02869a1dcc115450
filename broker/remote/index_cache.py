"""Indexes of remote segments in memory, so that a read costs one request to the store.

Mirrors Kafka's RemoteIndexCache, which keeps them in files on the local disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.storage.producer.producer_snapshot import decode_snapshot
from ottla.storage.remote.chunk_cache import ChunkCache
from ottla.storage.remote.remote_storage import NoRemoteIndexError, RemoteIndexType

if TYPE_CHECKING:
    from ottla.storage.files.open_files import FileSlice
    from ottla.storage.remote.remote_storage import RemoteStorage, SegmentFile
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata

#: Memory for indexes, if `remote.log.index.file.cache.total.size.bytes` is not lower: that setting
#: is for files on disk, and its default would be too much memory. Enough for the offset indexes of
#: 30 segments of 1 GiB, each of which a consumer needs until it has read the segment.
MAX_CACHED_BYTES = 64 << 20
#: Segments of which the first open transaction is known: 100 bytes each.
_MAX_KNOWN_SEGMENTS = 10_000
_UNKNOWN, _NONE_OPEN = -1, -2
_NUMBERS = {index_type: number for number, index_type in enumerate(RemoteIndexType)}


class CachedIndexes:
    """The reads of a RemoteStorage, with the indexes that were read last in memory. Thread-safe.

    Segments never change and their ids are never used again, so nothing has to be invalidated.
    """

    def __init__(self, storage: RemoteStorage, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._storage = storage
        self._cache: ChunkCache[bytes] = ChunkCache(min(max_bytes, MAX_CACHED_BYTES))
        self._open_offsets: dict[str, int] = {}
        self._without_aborts: set[str] = set()

    @property
    def size_bytes(self) -> int:
        return self._cache.size_bytes

    def set_max_bytes(self, max_bytes: int) -> None:
        """Another `remote.log.index.file.cache.total.size.bytes`; what exceeds it is dropped."""
        self._cache.set_max_bytes(min(max_bytes, MAX_CACHED_BYTES))

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes | memoryview:
        """`RemoteStorage.fetch_log_segment`."""
        return self._storage.fetch_log_segment(metadata, start_position, end_position)

    def fetch_log_segment_file(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> FileSlice | None:
        """`RemoteStorage.fetch_log_segment_file`."""
        return self._storage.fetch_log_segment_file(metadata, start_position, end_position)

    def fetch_log_segment_file_if_cached(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> FileSlice | None:
        """`RemoteStorage.fetch_log_segment_file_if_cached`."""
        return self._storage.fetch_log_segment_file_if_cached(
            metadata, start_position, end_position
        )

    def segment_file(self, metadata: RemoteLogSegmentMetadata) -> SegmentFile | None:
        """`RemoteStorage.segment_file`."""
        return self._storage.segment_file(metadata)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType) -> bytes:
        """`RemoteStorage.fetch_index`."""
        key = (str(metadata.segment_id.id), _NUMBERS[index_type])
        try:
            return self._cache.get(key, lambda: self._storage.fetch_index(metadata, index_type))
        except NoRemoteIndexError:
            if index_type is RemoteIndexType.TRANSACTION:  # as most segments
                if len(self._without_aborts) >= _MAX_KNOWN_SEGMENTS:
                    self._without_aborts.clear()
                self._without_aborts.add(key[0])
            raise

    def fetch_log_segment_if_cached(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes | memoryview | None:
        """`RemoteStorage.fetch_log_segment_if_cached`."""
        return self._storage.fetch_log_segment_if_cached(metadata, start_position, end_position)

    def index_if_cached(
        self, metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType
    ) -> bytes | None:
        """As `fetch_index`, None if it would be read from the store, also in order to know that
        there is none. A transaction index that is not there is empty. Does not block."""
        key = (str(metadata.segment_id.id), _NUMBERS[index_type])
        if index_type is RemoteIndexType.TRANSACTION and key[0] in self._without_aborts:
            return b""
        return self._cache.get_if_cached(key)

    def has_no_open_transaction(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Whether `first_open_offset` is None, and that is known. Does not block."""
        return self._open_offsets.get(str(metadata.segment_id.id)) == _NONE_OPEN

    def first_open_offset(self, metadata: RemoteLogSegmentMetadata) -> int | None:
        """The first offset of the oldest transaction that is open at the end of the segment.

        -1 if that is unknown, because the segment has no producer snapshot; None if no transaction
        is open. Raises RemoteStorageError, CorruptFile.
        """
        key = str(metadata.segment_id.id)
        # Other threads may clear it at any time: it is looked up once.
        found = self._open_offsets.get(key)
        if found is None:
            found = self._read_first_open_offset(metadata)
            if len(self._open_offsets) >= _MAX_KNOWN_SEGMENTS:
                self._open_offsets.clear()
            self._open_offsets[key] = found
        return None if found == _NONE_OPEN else found

    def _read_first_open_offset(self, metadata: RemoteLogSegmentMetadata) -> int:
        try:
            content = self._storage.fetch_index(metadata, RemoteIndexType.PRODUCER_SNAPSHOT)
        except NoRemoteIndexError:
            return _UNKNOWN
        name = f"producer snapshot of segment {metadata.segment_id.id}"
        offsets = [each.transaction_first_offset for each in decode_snapshot(name, content)]
        return min((offset for offset in offsets if offset >= 0), default=_NONE_OPEN)
