"""Objects of a store in a folder as open files, so that chunks are sent from the page cache.

A chunk is read once to verify its checksum, in pieces that stay in the processor's cache. Nothing
is kept of it but that it is valid: what is sent comes from the same pages of the file. That needs a
file system that reports what is in its page cache (`page_cache`); on others chunks are in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ottla.protocol.records.crc32c import crc32c
from ottla.storage.files.open_files import FileSlice
from ottla.storage.files.page_cache import knows_what_is_cached
from ottla.storage.remote.chunk_cache import ChunkCache
from ottla.storage.remote.remote_storage import RemoteObjectCorruptError

if TYPE_CHECKING:
    from ottla.storage.files.open_files import OpenFile
    from ottla.storage.remote.local_object_store import LocalObjectStore
    from ottla.storage.remote.manifest import SegmentManifest

#: One for each segment that a consumer reads. A file that was deleted meanwhile by another broker
#: takes room on the disk until it is closed.
_MAX_OPEN = 64
#: Read at once for a checksum: less than the second level cache of a core.
_PIECE_BYTES = 256 << 10
#: A fault on the way is gone with the next read.
_READ_ATTEMPTS = 2


class ValidChunk:
    """A chunk whose checksum was verified."""

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


class ObjectFiles:
    """Thread-safe. `key` is that of a log object, `start` and `end` are positions in the segment.

    The chunks that are known to be valid have at most `max_bytes` together.
    """

    def __init__(self, store: LocalObjectStore, max_bytes: int) -> None:
        self.valid: ChunkCache[ValidChunk] = ChunkCache(max_bytes)
        self._store = store
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenFile] = OrderedDict()
        self._is_supported = True

    def part(self, key: str, manifest: SegmentManifest, start: int, end: int) -> FileSlice | None:
        """These bytes, verified. None if there are none, or if they cannot be sent from the object.

        Raises RemoteResourceNotFoundError, RemoteObjectCorruptError, RemoteStorageError.
        """
        end = min(end, manifest.chunk_index.original_file_size)
        if start >= end or not _is_as_the_segment(manifest):
            return None
        file = self._opened(key)
        if file is None:
            return None
        for number in manifest.chunk_index.chunk_numbers(start, end):
            self._verify(key, file, manifest, number)
        return FileSlice(file, start, end - start)

    def part_if_valid(
        self, key: str, manifest: SegmentManifest, start: int, end: int
    ) -> FileSlice | None:
        """As `part`, None if something is to be read for it. Does not block."""
        end = min(end, manifest.chunk_index.original_file_size)
        file = self._open_already(key)
        if start >= end or file is None:
            return None
        for number in manifest.chunk_index.chunk_numbers(start, end):
            if self.valid.get_if_cached((key, number)) is None:
                return None
        return FileSlice(file, start, end - start)

    def read_ahead(self, key: str, manifest: SegmentManifest, number: int) -> None:
        """Verifies one chunk. Raises as `part`."""
        file = self._opened(key)
        if file is not None:
            self._verify(key, file, manifest, number)

    def drop(self, key: str) -> None:
        """Forgets an object that is deleted."""
        with self._lock:
            self._open.pop(key, None)
        self.valid.drop(key)

    def _opened(self, key: str) -> OpenFile | None:
        file = self._open_already(key)
        if file is not None or not self._is_supported:
            return file
        file = self._store.open(key)
        if not knows_what_is_cached(file.descriptor):
            self._is_supported = False
            return None
        with self._lock:
            self._open[key] = file
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        return file

    def _open_already(self, key: str) -> OpenFile | None:
        with self._lock:
            file = self._open.get(key)
            if file is not None:
                self._open.move_to_end(key)
            return file

    def _verify(self, key: str, file: OpenFile, manifest: SegmentManifest, number: int) -> None:
        self.valid.get((key, number), lambda: self._read(key, file, manifest, number))

    def _read(self, key: str, file: OpenFile, manifest: SegmentManifest, number: int) -> ValidChunk:
        chunk, checksums = manifest.chunk_index.chunk(number), manifest.checksums
        checksum = None if checksums is None else checksums.chunks[number]
        start, end = chunk.position, chunk.position + chunk.size
        for _ in range(_READ_ATTEMPTS):
            value = 0
            for position in range(start, end, _PIECE_BYTES):
                size = min(_PIECE_BYTES, end - position)
                value = crc32c(self._store.read(key, file.descriptor, position, size), value)
            if checksum in (None, value):
                return ValidChunk(chunk.size)
        raise RemoteObjectCorruptError(
            f"The object {key} has a wrong checksum from {start} to {end}"
        )


def _is_as_the_segment(manifest: SegmentManifest) -> bool:
    """Whether each byte of the segment file is at the same position in the object."""
    index = manifest.chunk_index
    return (
        not manifest.compression
        and index.object_size == index.original_file_size
        and (len(index) == 1 or index.fixed_size == index.original_chunk_size)
    )
