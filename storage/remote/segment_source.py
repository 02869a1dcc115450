"""Reads the local files of a segment for a copy: in chunks, with checksums, at a limited rate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ottla.protocol.records.crc32c import crc32c
from ottla.storage.errors import CorruptFile
from ottla.storage.files.fs import READ_ONLY, FileSystem, read_file
from ottla.storage.remote.chunk_index import MAX_INT32, ChunkIndex, compress
from ottla.storage.remote.manifest import IndexRange
from ottla.storage.remote.remote_storage import RemoteIndexType, RemoteStorageError
from ottla.storage.remote.segments import LogSegmentData, RemoteLogSegmentMetadata

# A batch has its magic at 16 and its attributes at 21, which have the codec in three bits.
_BATCH_HEADER_BYTES = 23
_CODEC_MASK = 0x07


class SegmentSource:
    """The chunks of one segment file. After the last chunk `chunk_index` and `checksums` hold."""

    def __init__(
        self,
        fs: FileSystem,
        path: Path,
        metadata: RemoteLogSegmentMetadata,
        chunk_size: int,
        acquire: Callable[[int], None],
    ) -> None:
        """`acquire` waits until this number of bytes may be sent."""
        self._fs = fs
        self._path = path
        self._size = metadata.size_bytes
        self._chunk_size = chunk_size
        self._acquire = acquire
        self._sizes: list[int] = []
        self.checksums: list[int] = []

    def is_compressed(self) -> bool:
        """Whether the first batch of the segment is compressed. Mirrors the plugin's heuristic."""
        try:
            descriptor = self._fs.open(str(self._path), READ_ONLY)
            try:
                header = self._fs.pread(descriptor, _BATCH_HEADER_BYTES, 0)
            finally:
                self._fs.close(descriptor)
        except OSError as error:
            raise RemoteStorageError(f"Cannot read the segment {self._path}: {error}") from error
        complete = len(header) == _BATCH_HEADER_BYTES and header[16] >= 2
        return complete and header[22] & _CODEC_MASK != 0

    def chunks(self, *, compressed: bool) -> Iterator[bytes]:
        """The chunks as they are stored. Raises RemoteStorageError."""
        self._sizes = []
        self.checksums = []
        try:
            descriptor = self._fs.open(str(self._path), READ_ONLY)
            try:
                size = self._fs.size(descriptor)
                if size != self._size:
                    raise RemoteStorageError(
                        f"The segment {self._path} has {size} bytes, its metadata {self._size}"
                    )
                for position in range(0, max(size, 1), self._chunk_size):
                    length = min(self._chunk_size, size - position)
                    yield self._stored(self._read(descriptor, length, position), compressed)
            finally:
                self._fs.close(descriptor)
        except OSError as error:
            raise RemoteStorageError(f"Cannot read the segment {self._path}: {error}") from error

    def _read(self, descriptor: int, length: int, position: int) -> bytes:
        content = self._fs.pread(descriptor, length, position)
        while len(content) < length:  # a signal may end a read
            more = self._fs.pread(descriptor, length - len(content), position + len(content))
            if not more:
                raise RemoteStorageError(f"The segment {self._path} was truncated during its copy")
            content += more
        return content

    def _stored(self, content: bytes, compressed: bool) -> bytes:
        if compressed:
            content = compress(content)
        self._sizes.append(len(content))
        self.checksums.append(crc32c(content))
        self._acquire(len(content))
        return content

    def chunk_index(self, *, compressed: bool) -> ChunkIndex:
        fixed_size = None if compressed else self._chunk_size
        return ChunkIndex(self._chunk_size, self._size, self._sizes, fixed_size)


class IndexSource:
    """The indexes of one segment, one after the other in the order of the format."""

    def __init__(self, fs: FileSystem, data: LogSegmentData) -> None:
        """Read all of them: the indexes of a segment have some MB. Raises RemoteStorageError."""
        files = {
            RemoteIndexType.OFFSET: data.offset_index,
            RemoteIndexType.TIMESTAMP: data.time_index,
            RemoteIndexType.PRODUCER_SNAPSHOT: data.producer_snapshot,
            RemoteIndexType.LEADER_EPOCH: None,
            RemoteIndexType.TRANSACTION: data.transaction_index,
        }
        self.contents: list[bytes] = []
        self.ranges: dict[RemoteIndexType, IndexRange] = {}
        self.checksums: dict[RemoteIndexType, int] = {}
        position = 0
        for index_type, path in files.items():
            if index_type is RemoteIndexType.TRANSACTION and path is None:
                continue
            content = b""
            if index_type is RemoteIndexType.LEADER_EPOCH:
                content = data.leader_epoch_checkpoint
            elif path is not None:
                content = _read_index(fs, path)
            self.contents.append(content)
            self.ranges[index_type] = IndexRange(position, len(content))
            self.checksums[index_type] = crc32c(content)
            position += len(content)


def _read_index(fs: FileSystem, path: Path) -> bytes:
    try:
        return read_file(fs, str(path), MAX_INT32)
    except (OSError, CorruptFile) as error:
        raise RemoteStorageError(f"Cannot read the index {path}: {error}") from error


class RateLimit:
    """`clock` returns seconds that only grow, `sleep` waits for a number of seconds. Storage has no
    clock of its own."""

    def __init__(
        self, bytes_per_second: int, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    def acquire(self, size: int) -> None:
        """Return when the bytes before these have had their time. The first part is free, so a
        part of a copy waits for at most its share of the limit."""
        with self._lock:
            now = self._clock()
            wait_seconds = max(0.0, self._free_at - now)
            self._free_at = max(self._free_at, now) + size / self._bytes_per_second
        if wait_seconds > 0:
            self._sleep(wait_seconds)
