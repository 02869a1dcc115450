"""The common part of the offset index and the time index: fixed-size entries in ascending order.

New entries are collected in memory and written in blocks. That makes an append cheap, and the file
is never longer than its entries (Kafka preallocates 10 MB and trims the file when the segment is
closed; the closed files are the same). Nothing is lost: a flush writes the entries, and recovery
rebuilds those of a segment that was not flushed.

Most lookups are near the end and use the entries in memory. Older entries are searched in blocks of
the file that are read when they are needed (`index_blocks`).

No checksum: an index can be rebuilt from its log. Entries that cannot be right in any log are found
when their block is read (`_reason`). The segment finds those that are not of this log: the batch at
the position is not the expected one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct

from ottla.storage.errors import CorruptIndex
from ottla.storage.files.fs import (
    READ_WRITE,
    UNUSABLE_FILE,
    FileSystem,
    open_replacing,
    write_fully,
)
from ottla.storage.files.open_files import OpenFile, OpenFiles
from ottla.storage.index.index_blocks import BLOCK_ENTRIES, IndexBlocks

# Entries are kept in memory until they fill a page. Then they are written, without a sync.
BLOCK_BYTES = 4096


class IndexFile:
    """A file of entries of `ENTRY_BYTES` bytes, whose content subclasses define."""

    __slots__ = (
        "_blocks",
        "_fs",
        "_stored_bytes",
        "_tail",
        "base_offset",
        "changes",
        "max_bytes",
        "synced_changes",
    )

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
        self._blocks = IndexBlocks(fs, path, self.ENTRY_BYTES, files, self._reason)
        self._stored_bytes = stored_bytes
        self._tail = bytearray()
        # Of the file: what an earlier process wrote may not be on disk.
        self.changes = 1
        self.synced_changes = 0
        self.base_offset = base_offset
        self.max_bytes = max_bytes - max_bytes % self.ENTRY_BYTES

    @staticmethod
    def _reason(block: bytes) -> str:
        """Why these entries cannot be right, "" if they can."""
        raise NotImplementedError

    @property
    def path(self) -> str:
        return self._blocks.path

    @path.setter
    def path(self, path: str) -> None:
        # The directory was renamed: the open file stays valid.
        self._blocks.path = path

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

    def check_length(self) -> None:
        """Raise CorruptIndex when the length is not a whole number of entries."""
        if self._stored_bytes % self.ENTRY_BYTES:
            raise CorruptIndex(
                self.path,
                f"{self._stored_bytes} bytes is not a multiple of {self.ENTRY_BYTES}",
            )

    def check(self) -> None:
        """Raise CorruptIndex when the length or an entry of the last block is invalid.

        An index that was preallocated and not trimmed ends with zeros.
        """
        self.check_length()
        if self.entries:
            self._bytes_of(self.entries - 1)

    def check_all(self) -> None:
        """Raise CorruptIndex when the length or any entry is invalid. 10 ms for 1 GiB of log."""
        self.check_length()
        for number in range(0, self._stored_bytes // self.ENTRY_BYTES, BLOCK_ENTRIES):
            self._bytes_of(number)

    def write(self) -> None:
        """Write pending entries to the file, without a sync. Raises OSError."""
        if not self._tail:
            return
        self.changes += 1
        # If somebody has removed it, zeros precede these entries, which no read takes for entries.
        descriptor = open_replacing(self._fs, self.path)
        try:
            # A copy: the traceback of a failed write may keep a view of what it wrote, and the
            # bytearray of a view cannot take more entries.
            write_fully(self._fs, descriptor, bytes(self._tail), self._stored_bytes)
        finally:
            self._fs.close(descriptor)
        self._stored_bytes += len(self._tail)
        self._tail = bytearray()

    def create(self) -> None:
        """Create the file, or empty an existing one."""
        self.discard()
        self.changes += 1
        self._empty()

    def _empty(self) -> None:
        descriptor = open_replacing(self._fs, self.path)
        try:
            self._fs.truncate(descriptor, 0)
        finally:
            self._fs.close(descriptor)
        self._stored_bytes = 0

    def _bytes_of(self, number: int) -> tuple[bytes | bytearray, int]:
        """(buffer, position) of the entry with this number."""
        position = number * self.ENTRY_BYTES
        if position >= self._stored_bytes:
            return self._tail, position - self._stored_bytes
        block, at = divmod(number, BLOCK_ENTRIES)
        return self._blocks.block(block, self._stored_bytes), at * self.ENTRY_BYTES

    def _unpacked(self, entry: Struct) -> Iterator[tuple[int, ...]]:
        """All complete entries, unpacked. Those of the file are not checked."""
        stored = self._stored_bytes // self.ENTRY_BYTES
        for number in range((stored + BLOCK_ENTRIES - 1) // BLOCK_ENTRIES):
            block = memoryview(self._blocks.unchecked(number, self._stored_bytes))
            yield from entry.iter_unpack(block[: len(block) - len(block) % self.ENTRY_BYTES])
        yield from entry.iter_unpack(self._tail)

    def _keep(self, entries: int) -> None:
        """Remove every entry from number `entries` on."""
        self._truncation(entries)()

    def _truncation(self, entries: int) -> Callable[[], None]:
        """The function that removes every entry from number `entries` on.

        Opens what it needs now: the function itself needs no descriptor. Both raise OSError, this
        CorruptIndex if the file cannot be used.
        """
        size = entries * self.ENTRY_BYTES
        needs_file = size < self._stored_bytes
        try:
            file = OpenFile(self._fs, self.path, READ_WRITE) if needs_file else None
        except OSError as error:
            if error.errno not in UNUSABLE_FILE:
                raise
            raise CorruptIndex(self.path, error.strerror or str(error)) from error
        return partial(self._truncate, file, size)

    def _truncate(self, file: OpenFile | None, size: int) -> None:
        if file is None:
            del self._tail[size - self._stored_bytes :]
            return
        self._tail = bytearray()
        self._blocks.close()
        self.changes += 1
        self._fs.truncate(file.descriptor, size)
        self._stored_bytes = size

    def reset(self) -> None:
        """Truncate the file to no entries."""
        self._tail = bytearray()
        self._blocks.close()
        self.changes += 1
        self._empty()

    def close(self) -> None:
        """Write pending entries and close the file."""
        self.write()
        self._blocks.close()

    def discard(self) -> None:
        """Close the file without writing pending entries."""
        self._tail = bytearray()
        self._blocks.close()
