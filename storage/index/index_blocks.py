"""Reading an index file in blocks, of which a few are kept in memory.

Not in a memory map: a page of a map that cannot be read, because of a bad sector or because the
file was cut short, ends the process with SIGBUS. A read raises OSError, which takes one log
directory offline, or returns too few bytes, and the index is rebuilt.

What a block contains is checked when it is read, so no other code gets an entry that cannot be
right: see `Check`.

Memory of an open index: at most `BLOCKS_MAX` blocks, 32 KiB of an offset index and 48 KiB of a time
index, the block of the last lookup again (4 KiB), and the first entry of each block, a 512th of the
file. The number of open indexes is limited by `OpenFiles`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from ottla.storage.errors import CorruptIndex
from ottla.storage.files.fs import READ_ONLY, UNUSABLE_FILE, Buffer, FileSystem
from ottla.storage.files.open_files import OpenFile, OpenFiles

BLOCK_ENTRIES = 512
BLOCKS_MAX = 8
# No entry begins with this byte: it would be negative.
_NOT_READ = 0xFF

#: Says why the entries of a block cannot be right, with the number of one of them in the block; ""
#: if they can. They cannot if they do not ascend, or if an offset or a position is negative.
Check = Callable[[bytes], str]


class IndexBlocks:
    """The blocks of one index file, which may grow. The file is opened on first use.

    `hot_keys` and `hot_values` are the entries of the block of the last lookup, for the index that
    uses them; empty after a truncation.
    """

    __slots__ = (
        "_blocks",
        "_check",
        "_checked",
        "_entry_bytes",
        "_file",
        "_files",
        "_firsts",
        "_fs",
        "hot_keys",
        "hot_values",
        "path",
        "recently_used",
    )

    def __init__(
        self, fs: FileSystem, path: str, entry_bytes: int, files: OpenFiles, check: Check
    ) -> None:
        self._fs = fs
        self._check = check
        self._files = files
        self._file: OpenFile | None = None
        self._entry_bytes = entry_bytes
        self._blocks: dict[int, bytes] = {}
        # How many bytes of a block were checked.
        self._checked: dict[int, int] = {}
        # The first entry of each block, or `_NOT_READ` bytes.
        self._firsts = bytearray()
        self.hot_keys = array("i")
        self.hot_values = array("i")
        self.path = path
        self.recently_used = False

    def block(self, number: int, stored_bytes: int) -> bytes:
        """The entries of block `number` of a file of `stored_bytes` bytes.

        Raises OSError, or CorruptIndex when the file is shorter than that, cannot be opened, or
        has entries that cannot be right.
        """
        start = number * BLOCK_ENTRIES * self._entry_bytes
        length = min(BLOCK_ENTRIES * self._entry_bytes, stored_bytes - start)
        block = self._blocks.get(number)
        if block is not None and len(block) >= length:
            self.recently_used = True
            return block
        block = self._read(start, length)
        # Once, unless the file is opened again: what a lookup finds is compared with the log.
        if self._checked.get(number, 0) < length:
            if reason := self._check(block):
                first = number * BLOCK_ENTRIES
                raise CorruptIndex(self.path, f"from entry {first} on, {reason}")
            self._checked[number] = length
        self._blocks.pop(number, None)
        if len(self._blocks) >= BLOCKS_MAX:
            del self._blocks[next(iter(self._blocks))]
        self._blocks[number] = block
        return block

    def unchecked(self, number: int, stored_bytes: int) -> bytes:
        """As `block`, for code that checks the entries itself."""
        start = number * BLOCK_ENTRIES * self._entry_bytes
        return self._read(start, min(BLOCK_ENTRIES * self._entry_bytes, stored_bytes - start))

    def floor(
        self, unpack: Callable[[Buffer, int], tuple[int]], at: int, key: int, stored_bytes: int
    ) -> int:
        """The number of the last block whose first entry has at most `key`, or -1.

        `unpack` reads the key of an entry, `at` bytes after its start. Raises as `block`.
        """
        size = self._entry_bytes
        firsts = self._firsts
        high = (stored_bytes // size + BLOCK_ENTRIES - 1) // BLOCK_ENTRIES
        if len(firsts) < high * size:
            firsts.extend(bytes((_NOT_READ,)) * (high * size - len(firsts)))
        low = 0
        while low < high:
            middle = (low + high) >> 1
            position = middle * size
            if firsts[position] == _NOT_READ:
                start = position * BLOCK_ENTRIES
                firsts[position : position + size] = self._read(start, size)
            if unpack(firsts, position + at)[0] <= key:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _read(self, position: int, length: int) -> bytes:
        self.recently_used = True
        file = self._file
        if file is None:
            try:
                file = self._file = OpenFile(self._fs, self.path, READ_ONLY)
            except OSError as error:
                if error.errno not in UNUSABLE_FILE:
                    raise
                raise CorruptIndex(self.path, error.strerror or str(error)) from error
            self._files.admit(self)
        try:
            content = self._fs.pread(file.descriptor, length, position)
        except IsADirectoryError as error:
            raise CorruptIndex(self.path, error.strerror or str(error)) from error
        if len(content) < length:
            end = position + len(content)
            raise CorruptIndex(self.path, f"the file ends at {end}, not at {position + length}")
        return content

    def forget(self) -> None:
        """The file was truncated: its blocks are read again."""
        self._blocks.clear()
        self._checked.clear()
        self.hot_keys, self.hot_values = array("i"), array("i")
        self._firsts.clear()

    def release(self) -> None:
        """Drop the descriptor and the blocks, for `OpenFiles`. The next use reads them again."""
        self._file = None
        self.forget()

    def close(self) -> None:
        self.forget()
        if self._file is not None:
            self._file = None
            self._files.forget(self)
