"""Objects of a store in a folder as open files, so that chunks are sent from the page cache.

A chunk is read once to verify its checksum, in pieces, into memory that is used again. Nothing
is kept of it but that it is valid: what is sent comes from the same pages of the file. It is
verified again when the page cache has lost these pages, so that the disk is read again, when the
file was written to, and when the file was closed meanwhile. That needs a file system that reports
what is in its page cache (`page_cache`); on others chunks are in memory.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ottla.protocol.records.crc32c import crc32c
from ottla.storage.files.open_files import FileSlice, drop_cached, is_cached, knows_what_is_cached
from ottla.storage.remote.chunk_cache import ChunkCache
from ottla.storage.remote.remote_storage import RemoteObjectCorruptError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.files.open_files import OpenFile
    from ottla.storage.remote.local_object_store import LocalObjectStore
    from ottla.storage.remote.manifest import SegmentManifest

#: One for each segment that a consumer reads. A file that was deleted meanwhile by another broker
#: takes room on the disk until it is closed.
_MAX_OPEN = 64
#: Chunks of an open object that are known to be valid, at 250 bytes of memory each: those of a
#: segment of 2 GiB with chunks of 512 KiB.
_MAX_VALID = 4096
#: Read at once for a checksum. Between two calls the thread needs the interpreter, for which the
#: event loop waits: calls of this size are four for a chunk of the recommended size, and cost the
#: least processor time for each byte.
_PIECE_BYTES = 1 << 20
#: Buffers that are kept for the next chunk: new memory costs more than a copy into it. More
#: threads verify at the same time only when consumers are faster than the read-ahead.
_MAX_BUFFERS = 2
#: A fault on the way from the disk is gone with the next read of it.
_READ_ATTEMPTS = 2


class _ValidChunk:
    """A chunk whose checksum was verified."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1


_VALID = _ValidChunk()


class _OpenObject:
    """The file of an object, and the chunks that were verified since it was opened."""

    __slots__ = ("_state", "file", "sent", "valid")

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self.valid: ChunkCache[_ValidChunk] = ChunkCache(_MAX_VALID)
        self._state = _state(file.descriptor)
        #: The chunks that the event loop sent from last.
        self.sent = range(0)

    def is_as_opened(self) -> bool:
        """Whether nothing was written to the file since. Objects never change: something is wrong
        with one that did, and what was verified says nothing about it."""
        return _state(self.file.descriptor) == self._state

    def is_cached(self, start: int, end: int) -> bool:
        """Whether the page cache has all these bytes."""
        return is_cached(self.file.descriptor, start, end - start)


def _state(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns


class ObjectFiles:
    """Thread-safe. `key` belongs to a log object, `start` and `end` are positions in a segment."""

    def __init__(self, store: LocalObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _OpenObject] = OrderedDict()
        self._is_supported = True
        self._buffers: list[bytearray] = []

    def part(self, key: str, manifest: SegmentManifest, start: int, end: int) -> FileSlice | None:
        """These bytes of the segment, verified; None if they cannot be sent from the object.

        Raises RemoteResourceNotFoundError, RemoteObjectCorruptError, RemoteStorageError.
        """
        if not _is_as_the_segment(manifest):
            return None
        opened = self._opened(key)
        if opened is None:
            return None
        if not opened.is_cached(start, end):
            # What is read from the disk again is verified again.
            for number in manifest.chunk_index.chunk_numbers(start, end):
                opened.valid.forget((key, number))
        for number in manifest.chunk_index.chunk_numbers(start, end):
            self._verify(key, opened, manifest, number)
        return FileSlice(opened.file, start, end - start)

    def part_if_valid(self, key: str, numbers: range, start: int, end: int) -> FileSlice | None:
        """As `part`, of the chunks with these numbers. None if something is to be read for it. Does
        not block.

        The caller reads from these bytes by `read_if_cached`, and if the page cache has lost them,
        comes back in a thread, for `part`.
        """
        with self._lock:
            opened = self._open.get(key)
            if opened is None:
                return None
            self._open.move_to_end(key)
        if opened.sent != numbers:
            # A scan comes to the next chunk: a system call for each fetch would cost more.
            if not opened.is_as_opened():
                self._forget(key, opened)
                return None
            opened.sent = numbers
        for number in numbers:
            if not opened.valid.keeps((key, number)):
                return None
        return FileSlice(opened.file, start, end - start)

    def opened(self, key: str) -> _OpenObject | None:
        """The file of an object that is open. Does not count as its use."""
        return self._open.get(key)

    def read_ahead(self, key: str, manifest: SegmentManifest, number: int) -> None:
        """Verify one chunk. Raises as `part`."""
        opened = self._opened(key)
        if opened is not None:
            self._verify(key, opened, manifest, number)

    def has(self, chunk: tuple[str, int]) -> bool:
        """Whether the chunk (key, number) was verified, or is being verified."""
        with self._lock:
            opened = self._open.get(chunk[0])
        return opened is not None and opened.valid.has(chunk)

    def drop(self, key: str) -> None:
        """Forget an object that is deleted."""
        with self._lock:
            self._open.pop(key, None)

    def _opened(self, key: str) -> _OpenObject | None:
        opened = self._open_already(key)
        if opened is not None or not self._is_supported:
            return opened
        file = self._store.open(key)
        if not knows_what_is_cached(file.descriptor):
            self._is_supported = False
            return None
        opened = _OpenObject(file)
        with self._lock:
            # Another thread may have opened it meanwhile, and verifies its chunks there.
            opened = self._open.setdefault(key, opened)
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        return opened

    def _open_already(self, key: str) -> _OpenObject | None:
        with self._lock:
            opened = self._open.get(key)
            if opened is not None:
                self._open.move_to_end(key)
        if opened is None or opened.is_as_opened():
            return opened
        self._forget(key, opened)
        return None

    def _forget(self, key: str, opened: _OpenObject) -> None:
        with self._lock:
            if self._open.get(key) is opened:
                del self._open[key]

    def _verify(
        self, key: str, opened: _OpenObject, manifest: SegmentManifest, number: int
    ) -> None:
        try:
            opened.valid.get((key, number), lambda: self._read(key, opened.file, manifest, number))
        except RemoteObjectCorruptError:
            # It is opened again for the next read: an operator may put a good copy in its place.
            self._forget(key, opened)
            raise

    def _read(
        self, key: str, file: OpenFile, manifest: SegmentManifest, number: int
    ) -> _ValidChunk:
        chunk, checksums = manifest.chunk_index.chunk(number), manifest.checksums
        checksum = None if checksums is None else checksums.chunks[number]
        start, end = chunk.position, chunk.position + chunk.size
        buffer = self._buffer()
        for attempt in range(_READ_ATTEMPTS):
            if attempt:
                drop_cached(file.descriptor, start, chunk.size)
            value = 0
            for position in range(start, end, _PIECE_BYTES):
                piece = memoryview(buffer)[: end - position]
                self._store.read_into(key, file.descriptor, position, piece)
                value = crc32c(piece, value)
            if checksum in (None, value):
                if len(self._buffers) < _MAX_BUFFERS:
                    self._buffers.append(buffer)
                return _VALID
        raise RemoteObjectCorruptError(
            f"The object {key} has a wrong checksum from {start} to {end}"
        )

    def _buffer(self) -> bytearray:
        try:
            return self._buffers.pop()
        except IndexError:  # other threads have them
            return bytearray(_PIECE_BYTES)


class ObjectSegmentFile:
    """A `SegmentFile`. It looks up less than `ObjectFiles`: a scan has several requests for each
    chunk. For the event loop."""

    __slots__ = ("_chunk_size", "_files", "_first", "_key", "_last", "_read_ahead")

    def __init__(
        self,
        files: ObjectFiles,
        key: str,
        manifest: SegmentManifest,
        read_ahead: Callable[[range], None],
    ) -> None:
        """`read_ahead` is called with the numbers of the chunks that a request comes to."""
        self._files = files
        self._key = key
        self._chunk_size = manifest.chunk_index.original_chunk_size
        self._read_ahead = read_ahead
        self._first = self._last = -1

    def part_if_valid(self, start: int, end: int) -> FileSlice | None:
        """As `ObjectFiles.part_if_valid`."""
        first, last = start // self._chunk_size, (end - 1) // self._chunk_size
        if first != self._first or last != self._last:
            numbers = range(first, last + 1)
            part = self._files.part_if_valid(self._key, numbers, start, end)
            if part is not None:
                self._first, self._last = first, last
                self._read_ahead(numbers)
            return part
        opened = self._files.opened(self._key)
        if opened is None:
            return None
        for number in range(first, last + 1):
            if not opened.valid.keeps((self._key, number)):
                return None
        return FileSlice(opened.file, start, end - start)


def _is_as_the_segment(manifest: SegmentManifest) -> bool:
    """Whether each byte of the segment file is at the same position in the object."""
    index = manifest.chunk_index
    return (
        not manifest.compression
        and index.object_size == index.original_file_size
        and (len(index) == 1 or index.fixed_size == index.original_chunk_size)
    )
