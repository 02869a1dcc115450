"""The common part of the offset index and the time index: fixed-size entries in ascending order.

New entries are collected in memory and written in blocks. That makes an append cheap, and the file
is never longer than its entries (Kafka preallocates 10 MB and trims the file when the segment is
closed; the closed files are the same). Nothing is lost: a flush writes the entries, and recovery
rebuilds those of a segment that was not flushed.

Most lookups are near the end and use the entries in memory. Older entries are searched in a
read-only map of the file, first in the last 8 KiB and then in the rest, so that a frequently used
index touches few pages (Kafka's warm section).

No checksum: an index can be rebuilt from its log. The segment detects a corrupt index when the
batch at the position is not the expected one.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from struct import Struct

from ottla.storage.errors import CorruptIndex
from ottla.storage.files.fs import CREATE, CREATE_EMPTY, READ_WRITE, FileSystem, write_fully
from ottla.storage.files.open_files import MappedFile, OpenFiles

# Entries are kept in memory until they fill a page. Then they are written, without a sync.
BLOCK_BYTES = 4096
WARM_BYTES = 8192


class IndexFile:
    """A file of entries of `ENTRY_BYTES` bytes, whose content subclasses define."""

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
        # The directory was renamed: an open map stays valid.
        self._map.path = path

    @property
    def size_in_bytes(self) -> int:
        return self._stored_bytes + len(self._tail)

    @property
    def entries(self) -> int:
        return (self._stored_bytes + len(self._tail)) // self.ENTRY_BYTES

    @property
    def entries_left(self) -> int:
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
        """Writes pending entries to the file, without a sync. Raises OSError."""
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
        """Creates the file, or empties an existing one."""
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
        """All complete entries, unpacked."""
        whole = self._stored_bytes - self._stored_bytes % self.ENTRY_BYTES
        if whole:
            yield from entry.iter_unpack(memoryview(self._stored())[:whole])
        yield from entry.iter_unpack(self._tail)

    def _keep(self, entries: int) -> None:
        """Removes every entry from number `entries` on."""
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
        """Truncates the file to no entries."""
        self._tail = bytearray()
        self._map.close()
        descriptor = self._fs.open(self.path, CREATE)
        try:
            self._fs.truncate(descriptor, 0)
        finally:
            self._fs.close(descriptor)
        self._stored_bytes = 0

    def close(self) -> None:
        """Writes pending entries and closes the map."""
        self.write()
        self._map.close()

    def discard(self) -> None:
        """Closes the map without writing pending entries."""
        self._tail = bytearray()
        self._map.close()
