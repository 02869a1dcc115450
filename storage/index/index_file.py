"""What the offset index and the time index have in common: fixed-size entries in ascending order.

New entries gather in memory and go to the file in blocks. That makes an append cheap, keeps the
file always as long as its entries (Kafka sets 10 MB aside instead, and cuts the rest off when the
segment is closed: the closed files are the same), and loses nothing that counts: entries of a
segment that was not flushed are built again from its log after a crash, and `flush` writes them.

Look-ups at the young end, where nearly all of them are, are answered from memory. Older entries are
searched in a read-only map of the file, first in its last 8 KiB and only then in the whole, so that
a hot index touches few pages (Kafka calls this the warm section).

No checksum: an index can always be made again from its log. A wrong answer from a damaged index is
noticed by the segment, which looks at the batch it was sent to.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from struct import Struct

from ottla.storage.errors import CorruptIndex
from ottla.storage.files.fs import CREATE, CREATE_EMPTY, READ_WRITE, FileSystem, write_fully
from ottla.storage.files.open_files import MappedFile, OpenFiles

# Entries wait in memory until they fill a page: then one small write, without a sync.
BLOCK_BYTES = 4096
WARM_BYTES = 8192


class IndexFile:
    """A file of `ENTRY_BYTES` long entries; subclasses know what is in one."""

    __slots__ = ("_fs", "_map", "_stored_bytes", "_tail", "base_offset", "max_bytes")

    ENTRY_BYTES: int

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        base_offset: int,
        stored_bytes: int,
        max_bytes: int,
        files: OpenFiles,
    ) -> None:
        self._fs = fs
        self._map = MappedFile(fs, path, files)
        self._stored_bytes = stored_bytes
        self._tail = bytearray()
        self.base_offset = base_offset
        self.max_bytes = max_bytes - max_bytes % self.ENTRY_BYTES

    @property
    def path(self) -> str:
        return self._map.path

    @path.setter
    def path(self, path: str) -> None:
        # The file moved with its directory: an open map goes on showing the same file.
        self._map.path = path

    @property
    def size_in_bytes(self) -> int:
        return self._stored_bytes + len(self._tail)

    @property
    def entries(self) -> int:
        return (self._stored_bytes + len(self._tail)) // self.ENTRY_BYTES

    @property
    def room(self) -> int:
        """How many more entries fit."""
        return (self.max_bytes - self._stored_bytes - len(self._tail)) // self.ENTRY_BYTES

    def check(self) -> None:
        """Raises CorruptIndex when the length is not a whole number of entries."""
        if self._stored_bytes % self.ENTRY_BYTES:
            raise CorruptIndex(
                self.path,
                f"{self._stored_bytes} bytes is not a multiple of {self.ENTRY_BYTES}",
            )

    def write(self) -> None:
        """Writes waiting entries to the file, without a sync. Raises OSError."""
        if not self._tail:
            return
        descriptor = self._fs.open(self.path, CREATE)
        try:
            write_fully(self._fs, descriptor, self._tail, self._stored_bytes)
        finally:
            self._fs.close(descriptor)
        self._stored_bytes += len(self._tail)
        self._tail = bytearray()

    def create(self) -> None:
        """Makes the file, or empties the one of that name."""
        self.discard()
        self._fs.close(self._fs.open(self.path, CREATE_EMPTY))
        self._stored_bytes = 0

    def _stored(self) -> mmap.mmap:
        return self._map.map(self._stored_bytes)

    def _bytes_of(self, number: int) -> tuple[mmap.mmap | bytearray, int]:
        """(buffer, position) of the entry with this number."""
        position = number * self.ENTRY_BYTES
        if position >= self._stored_bytes:
            return self._tail, position - self._stored_bytes
        return self._stored(), position

    def _unpacked(self, entry: Struct) -> Iterator[tuple[int, ...]]:
        """All whole entries, taken apart."""
        whole = self._stored_bytes - self._stored_bytes % self.ENTRY_BYTES
        if whole:
            yield from entry.iter_unpack(memoryview(self._stored())[:whole])
        yield from entry.iter_unpack(self._tail)

    def _keep(self, entries: int) -> None:
        """Drops every entry from number `entries` on."""
        size = entries * self.ENTRY_BYTES
        if size >= self._stored_bytes:
            del self._tail[size - self._stored_bytes :]
            return
        self._tail = bytearray()
        self._map.close()
        descriptor = self._fs.open(self.path, READ_WRITE)
        try:
            self._fs.truncate(descriptor, size)
        finally:
            self._fs.close(descriptor)
        self._stored_bytes = size

    def reset(self) -> None:
        """Drops all entries, and whatever else is in the file."""
        self._tail = bytearray()
        self._map.close()
        descriptor = self._fs.open(self.path, CREATE)
        try:
            self._fs.truncate(descriptor, 0)
        finally:
            self._fs.close(descriptor)
        self._stored_bytes = 0

    def close(self) -> None:
        """Writes what waits and lets go of the map."""
        self.write()
        self._map.close()

    def discard(self) -> None:
        """Lets go of the map and of what waits: the file is about to be deleted."""
        self._tail = bytearray()
        self._map.close()
