"""The remote storage over an object store, in the layout of Aiven's tiered storage plugin.

Mirrors its KafkaRemoteStorageManager. A segment is three objects: the log, the indexes, and last
the manifest, without which nothing is read. A deletion removes the manifest first.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from ottla.protocol.records.crc32c import crc32c
from ottla.storage.files.fs import FileSystem
from ottla.storage.files.open_files import FileSlice
from ottla.storage.remote.chunk_cache import ChunkCache
from ottla.storage.remote.chunk_index import Chunk, decompress
from ottla.storage.remote.custom_metadata import CustomMetadata
from ottla.storage.remote.manifest import MAX_MANIFEST_BYTES, Checksums, SegmentManifest
from ottla.storage.remote.object_files import ObjectFiles, ObjectSegmentFile
from ottla.storage.remote.object_keys import ObjectKeys, main_path
from ottla.storage.remote.object_store import ObjectStore, StoreIdentity, StoreNotProvenError
from ottla.storage.remote.read_ahead import Background, ReadAhead
from ottla.storage.remote.remote_storage import (
    NoRemoteIndexError,
    RemoteIndexType,
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from ottla.storage.remote.segment_source import IndexSource, RateLimit, SegmentSource
from ottla.storage.remote.segments import LogSegmentData, RemoteLogSegmentMetadata
from ottla.storage.remote.store_settings import StoreSettings

logger = logging.getLogger("ottla.remote")

# Of a read whose bytes are wrong: a fault on the way is gone with the next one.
_READ_ATTEMPTS = 2
# The chunks of all manifests in memory, at about 100 bytes each.
_MAX_CACHED_CHUNKS = 1_000_000


class ObjectRemoteStorage:
    """A RemoteStorage. `fs` reads the local segments; `background` is for the read-ahead, which
    there is none of without it. With `files`, segments that are not compressed are read there."""

    def __init__(
        self,
        store: ObjectStore,
        settings: StoreSettings,
        fs: FileSystem,
        rate_limit: RateLimit | None = None,
        background: Background | None = None,
        files: ObjectFiles | None = None,
        identity: StoreIdentity | None = None,
    ) -> None:
        self.store = store
        self._identity = identity
        #: Written by the threads of copies and deletions; each checks the store itself.
        self.is_proven = identity is None
        self.keys = ObjectKeys(settings.key_prefix)
        self.cache: ChunkCache[bytes | memoryview] = ChunkCache(settings.cache_bytes)
        self._files = files
        self._settings = settings
        self._fs = fs
        self._acquire = rate_limit.acquire if rate_limit is not None else _no_limit
        self._manifests = _ManifestCache(settings.manifest_cache_size)
        self._read_ahead = self._verify_ahead = None
        if settings.prefetch_bytes:
            self._read_ahead = ReadAhead(background)
            # Several threads would only take processor time from the ones that send.
            self._verify_ahead = ReadAhead(background, at_once=1)

    def prove(self, known: Sequence[RemoteLogSegmentMetadata], *, is_unused: bool) -> None:
        identity = self._identity
        if identity is None:
            return
        try:
            identity.check()
        except StoreNotProvenError:
            if not is_unused and not any(map(self.has_manifest, known)):
                raise
            self.adopt()
            logger.info(
                "Remote storage: %s is the store of this cluster from now on", identity.where
            )
        self.is_proven = True

    def adopt(self) -> None:
        """Mark the store as the cluster's. Raises RemoteStorageError."""
        if self._identity is not None:
            self._identity.write()
            self._identity.check()

    def has_manifest(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Whether the store has a segment. Raises RemoteStorageError if it fails."""
        try:
            self.store.size(self.keys.of(metadata).manifest)
        except RemoteResourceNotFoundError:
            return False
        return True

    def _check_identity(self) -> None:
        if self._identity is None:
            return
        try:
            self._identity.check()
        except StoreNotProvenError:
            self.is_proven = False
            raise

    def copy_log_segment(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        self._check_identity()
        try:
            custom = self._copy(metadata, data)
            # A file system that was unmounted meanwhile: the objects are on the disk below it.
            self._check_identity()
            return custom
        except BaseException:
            # What stays after a failure here is found by `ottla tiered gc`.
            with contextlib.suppress(RemoteStorageError):
                self.store.delete(self.keys.of(metadata))
            raise

    def _copy(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        log = SegmentSource(
            self._fs, data.segment, metadata, self._settings.chunk_size, self._acquire
        )
        compressed = self._settings.compression and not (
            self._settings.compression_heuristic and log.is_compressed()
        )
        keys = self.keys.of(metadata)
        size = self.store.put(keys.log, log.chunks(compressed=compressed))
        chunk_index = log.chunk_index(compressed=compressed)
        if size != chunk_index.object_size:
            raise RemoteStorageError(
                f"The object {keys.log} has {size} bytes after its copy, expected"
                f" {chunk_index.object_size}"
            )
        indexes = IndexSource(self._fs, data)
        indexes_size = self.store.put(keys.indexes, indexes.contents)
        # The local segment is deleted when this has succeeded, so the store is asked.
        for key, expected in ((keys.log, size), (keys.indexes, indexes_size)):
            stored = self.store.size(key)
            if stored != expected:
                raise RemoteStorageError(
                    f"The object {key} has {stored} bytes after its copy, expected {expected}"
                )
        size += indexes_size
        checksums = Checksums(log.checksums, indexes.checksums)
        manifest = SegmentManifest(chunk_index, indexes.ranges, compressed, checksums)
        size += self.store.put(keys.manifest, [manifest.encode(metadata)])
        custom = CustomMetadata(size, self.keys.prefix, main_path(metadata))
        return custom.encode(self._settings.custom_metadata_fields)

    def manifest(self, metadata: RemoteLogSegmentMetadata) -> SegmentManifest:
        """Raise RemoteResourceNotFoundError and RemoteObjectCorruptError."""
        key = self.keys.of(metadata).manifest
        manifest = self._manifests.get(key)
        if manifest is None:
            manifest = self.read_manifest(metadata)
            self._manifests.put(key, manifest)
        return manifest

    def read_manifest(self, metadata: RemoteLogSegmentMetadata) -> SegmentManifest:
        """As `manifest`, always from the store."""
        key = self.keys.of(metadata).manifest
        return SegmentManifest.decode(self.store.get(key, MAX_MANIFEST_BYTES), key)

    @property
    def read_ahead_bytes(self) -> int:
        return self._settings.prefetch_bytes

    def fetch_log_segment_file(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> FileSlice | None:
        if self._files is None:
            return None
        manifest = self.manifest(metadata)
        numbers = manifest.chunk_index.chunk_numbers(start_position, end_position)
        if not numbers:
            return None
        key = self.keys.of(metadata).log
        end_position = min(end_position, manifest.chunk_index.original_file_size)
        part = self._files.part(key, manifest, start_position, end_position)
        if part is not None:
            self._start_read_ahead(key, manifest, numbers, self._files)
        return part

    def fetch_log_segment_file_if_cached(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> FileSlice | None:
        keys = self.keys.of(metadata)
        manifest = self._manifests.get(keys.manifest)
        if self._files is None or manifest is None:
            return None
        numbers = manifest.chunk_index.chunk_numbers(start_position, end_position)
        if not numbers:
            return None
        end_position = min(end_position, manifest.chunk_index.original_file_size)
        part = self._files.part_if_valid(keys.log, numbers, start_position, end_position)
        if part is not None:
            self._start_read_ahead(keys.log, manifest, numbers, self._files)
        return part

    def segment_file(self, metadata: RemoteLogSegmentMetadata) -> ObjectSegmentFile | None:
        keys = self.keys.of(metadata)
        manifest = self._manifests.get(keys.manifest)
        if self._files is None or manifest is None:
            return None
        read_ahead = partial(self._start_read_ahead, keys.log, manifest, files=self._files)
        return ObjectSegmentFile(self._files, keys.log, manifest, read_ahead)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes | memoryview:
        part = self.fetch_log_segment_file(metadata, start_position, end_position)
        if part is not None:
            return part.read()
        manifest = self.manifest(metadata)
        index = manifest.chunk_index
        key = self.keys.of(metadata).log
        numbers = index.chunk_numbers(start_position, end_position)
        contents = [self._cached_chunk(key, manifest, index.chunk(number)) for number in numbers]
        self._start_read_ahead(key, manifest, numbers)
        return _part(contents, start_position, end_position, numbers, index.original_chunk_size)

    def fetch_log_segment_if_cached(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes | memoryview | None:
        part = self.fetch_log_segment_file_if_cached(metadata, start_position, end_position)
        if part is not None:
            cached = part.read_if_cached()
            return None if cached is None else memoryview(cached)
        keys = self.keys.of(metadata)
        manifest, key = self._manifests.get(keys.manifest), keys.log
        if manifest is None:
            return None
        index = manifest.chunk_index
        numbers = index.chunk_numbers(start_position, end_position)
        contents = []
        for number in numbers:
            content = self.cache.get_if_cached((key, number))
            if content is None:
                return None
            contents.append(content)
        self._start_read_ahead(key, manifest, numbers)
        return _part(contents, start_position, end_position, numbers, index.original_chunk_size)

    def fetch_unchecked(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes | None:
        """As `fetch_log_segment`, without checksums and chunks: for a caller that verifies the CRC
        of each batch. Any range is one request. None if the segment is compressed."""
        manifest = self.manifest(metadata)
        if manifest.compression:
            return None
        end = min(end_position, manifest.chunk_index.original_file_size)
        if start_position >= end:
            return b""
        key = self.keys.of(metadata).log
        return bytes(self.store.get_range(key, start_position, end - start_position))

    def _start_read_ahead(
        self,
        key: str,
        manifest: SegmentManifest,
        numbers: range,
        files: ObjectFiles | None = None,
    ) -> None:
        read_ahead = self._read_ahead if files is None else self._verify_ahead
        if read_ahead is None or not numbers or not read_ahead.continues(key, numbers):
            return
        index = manifest.chunk_index
        count = max(1, self._settings.prefetch_bytes // index.original_chunk_size)
        ahead = range(numbers.stop, min(numbers.stop + count, len(index)))
        has = self.cache.has if files is None else files.has
        for number in read_ahead.wanted(key, ahead, has):
            load: Callable[[], object]
            if files is None:
                load = partial(self._cached_chunk, key, manifest, index.chunk(number))
            else:
                load = partial(files.read_ahead, key, manifest, number)
            read_ahead.start(key, number, load)

    def _cached_chunk(
        self, key: str, manifest: SegmentManifest, chunk: Chunk
    ) -> bytes | memoryview:
        load = partial(self.read_chunk, key, manifest, chunk)
        return self.cache.get((key, chunk.number), load)

    def read_chunk(self, key: str, manifest: SegmentManifest, chunk: Chunk) -> bytes | memoryview:
        """A chunk from the store, checked and decompressed. Raises RemoteObjectCorruptError."""
        if chunk.size == 0:
            return b""
        checksums = manifest.checksums
        checksum = None if checksums is None else checksums.chunks[chunk.number]
        content = self._checked_range(key, chunk.position, chunk.size, checksum)
        if manifest.compression:
            try:
                content = decompress(content, chunk.original_size)
            except ValueError as error:
                raise RemoteObjectCorruptError(
                    f"Chunk {chunk.number} of the object {key} is invalid: {error}"
                ) from None
        if len(content) != chunk.original_size:
            raise RemoteObjectCorruptError(
                f"Chunk {chunk.number} of the object {key} has {len(content)} bytes, expected"
                f" {chunk.original_size}"
            )
        return content

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType) -> bytes:
        manifest = self.manifest(metadata)
        key = self.keys.of(metadata).indexes
        index = manifest.indexes.get(index_type)
        # The format has no way to say that there is no snapshot; Kafka's snapshots are never empty.
        if index is None or (index_type is RemoteIndexType.PRODUCER_SNAPSHOT and index.size == 0):
            raise NoRemoteIndexError(f"The object {key} has no index {index_type.value}")
        if index.size == 0:
            return b""
        checksum = None if manifest.checksums is None else manifest.checksums.indexes[index_type]
        return bytes(self._checked_range(key, index.position, index.size, checksum))

    def _checked_range(
        self, key: str, position: int, size: int, checksum: int | None
    ) -> bytes | memoryview:
        for _ in range(_READ_ATTEMPTS):
            content = self.store.get_range(key, position, size)
            if checksum is None or crc32c(content) == checksum:
                return content
        raise RemoteObjectCorruptError(
            f"The object {key} has a wrong checksum from {position} to {position + size}"
        )

    def delete_log_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        # Before: in the wrong store nothing may be deleted. After: what was not found there says
        # something only if it was the right one all the time.
        self._check_identity()
        self._manifests.drop(self.keys.of(metadata).manifest)
        self.store.delete(self.keys.of(metadata))
        self._check_identity()
        key = self.keys.of(metadata).log
        self.cache.drop(key)
        if self._files is not None:
            self._files.drop(key)

    def close(self) -> None:
        self.store.close()


def _no_limit(_size: int) -> None:
    return


def _part(
    contents: Sequence[bytes | memoryview], start: int, end: int, numbers: range, chunk_size: int
) -> bytes | memoryview:
    """The bytes of a segment from `start` to before `end`, of its chunks with these numbers.

    Copied only if they are of several chunks.
    """
    if not contents:
        return b""
    views = [memoryview(content) for content in contents]
    views[-1] = views[-1][: max(end - numbers[-1] * chunk_size, 0)]
    views[0] = views[0][max(start - numbers[0] * chunk_size, 0) :]
    return views[0] if len(views) == 1 else b"".join(views)


class _ManifestCache:
    """The least recently used manifest is dropped first. Thread-safe."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._lock = threading.Lock()
        self._manifests: OrderedDict[str, SegmentManifest] = OrderedDict()
        self._chunks = 0

    def get(self, key: str) -> SegmentManifest | None:
        with self._lock:
            manifest = self._manifests.get(key)
            if manifest is not None:
                self._manifests.move_to_end(key)
            return manifest

    def put(self, key: str, manifest: SegmentManifest) -> None:
        self.drop(key)
        with self._lock:
            self._manifests[key] = manifest
            self._chunks += len(manifest.chunk_index)
            while len(self._manifests) > self._max_count or (
                self._chunks > _MAX_CACHED_CHUNKS and len(self._manifests) > 1
            ):
                _, dropped = self._manifests.popitem(last=False)
                self._chunks -= len(dropped.chunk_index)

    def drop(self, key: str) -> None:
        with self._lock:
            manifest = self._manifests.pop(key, None)
            if manifest is not None:
                self._chunks -= len(manifest.chunk_index)
