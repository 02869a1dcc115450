"""`.index`: offset -> position in the log, 8 bytes per entry, about one entry per 4 KiB of log.

    relative offset int32 (offset - base offset of the segment) | position int32

The batch that ends with the offset of an entry starts at its position. Offsets are relative, so
that four bytes are enough; a segment is rolled before its offsets exceed them.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable
from itertools import islice
from struct import Struct

from ottla.storage.errors import CorruptIndex
from ottla.storage.index.index_file import BLOCK_BYTES, IndexFile

_ENTRY = Struct(">ii")
_KEY = Struct(">i")
_pack = _ENTRY.pack
_unpack = _ENTRY.unpack_from
_unpack_key = _KEY.unpack_from

OFFSET_ENTRY_BYTES = 8


def _numbers(block: bytes) -> array[int]:
    """Relative offset and position of each complete entry, in turns."""
    numbers = array("i", block[: len(block) & -OFFSET_ENTRY_BYTES])
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _floor(buffer: bytearray, high: int, key: int, at: int = 0) -> int:
    """The number of the last of `high` entries whose key is at most `key`, or -1.

    The key is `at` bytes behind the start of an entry: the offset, or the position.
    """
    low = 0
    while low < high:
        middle = (low + high) >> 1
        if _unpack_key(buffer, (middle << 3) + at)[0] <= key:
            low = middle + 1
        else:
            high = middle
    return low - 1


class OffsetIndex(IndexFile):
    """The `.index` file of a segment. Offsets are strictly ascending."""

    __slots__ = ()

    ENTRY_BYTES = OFFSET_ENTRY_BYTES

    @staticmethod
    def _reason(block: bytes) -> str:
        numbers = _numbers(block)
        for name, column in (("offsets", numbers[::2]), ("positions", numbers[1::2])):
            found = column.tolist()
            if found and found[0] < 0:
                return f"{name} begin with {found[0]}"
            # Equal ones only if all are: what the disk lost is zeros. Three times as quick as to
            # compare each with the next.
            if found != sorted(found) or (len(found) > 1 and found[0] == found[-1]):
                at = next(n for n in range(1, len(found)) if found[n - 1] >= found[n])
                return f"{name} do not ascend: entry {at} has {found[at]} after {found[at - 1]}"
        return ""

    def append(self, offset: int, position: int) -> None:
        """The batch that ends with `offset`, above all others, starts at `position`."""
        tail = self._tail
        tail += _pack(offset - self.base_offset, position)
        if len(tail) >= BLOCK_BYTES:
            self.write()

    def entry(self, number: int) -> tuple[int, int]:
        """(offset, position) of the entry with this number."""
        buffer, at = self._bytes_of(number)
        relative, position = _unpack(buffer, at)
        return self.base_offset + relative, position

    def last(self) -> tuple[int, int]:
        """The last entry, or (base offset, 0) if there is none."""
        entries = self.entries
        return self.entry(entries - 1) if entries else (self.base_offset, 0)

    def lookup(self, offset: int) -> tuple[int, int]:
        """The last entry at or below `offset`, or (base offset, 0) when all are above it."""
        key = offset - self.base_offset
        tail = self._tail
        if tail and _unpack_key(tail, 0)[0] <= key:
            number = _floor(tail, len(tail) >> 3, key)
            relative, position = _unpack(tail, number << 3)
            return self.base_offset + relative, position
        blocks = self._blocks
        keys = blocks.hot_keys
        if not keys or not keys[0] <= key <= keys[-1]:
            number = blocks.floor(_unpack_key, 0, key, self._stored_bytes)
            if number < 0:
                return self.base_offset, 0
            self._make_hot(number)
            keys = blocks.hot_keys
            if not keys or keys[0] > key:
                raise CorruptIndex(self.path, f"block {number} has changed while it was read")
        at = bisect_right(keys, key) - 1
        return self.base_offset + keys[at], blocks.hot_values[at]

    def _make_hot(self, number: int) -> None:
        numbers = _numbers(self._blocks.block(number, self._stored_bytes))
        self._blocks.hot_keys, self._blocks.hot_values = numbers[::2], numbers[1::2]

    def unchecked_entries(self, log_bytes: int) -> list[tuple[int, int]]:
        """The entries as they are in the file, without those beyond the length of the log, which
        has a longer batch for each. Raises CorruptIndex if the file is too short."""
        entries = islice(self._unpacked(_ENTRY), log_bytes // OFFSET_ENTRY_BYTES)
        return [(self.base_offset + key, position) for key, position in entries]

    def floor_by_position(self, position: int) -> tuple[int, int]:
        """The last entry whose position is at most `position`, or (base offset, 0)."""
        tail = self._tail
        if tail and _unpack_key(tail, 4)[0] <= position:
            number = _floor(tail, len(tail) >> 3, position, 4)
            relative, found = _unpack(tail, number << 3)
            return self.base_offset + relative, found
        blocks = self._blocks
        positions = blocks.hot_values
        if not positions or not positions[0] <= position <= positions[-1]:
            number = blocks.floor(_unpack_key, 4, position, self._stored_bytes)
            if number < 0:
                return self.base_offset, 0
            self._make_hot(number)
            positions = blocks.hot_values
            if not positions or positions[0] > position:
                raise CorruptIndex(self.path, f"block {number} has changed while it was read")
        at = bisect_right(positions, position) - 1
        return self.base_offset + blocks.hot_keys[at], positions[at]

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at and above `offset`."""
        self.truncation(offset)()

    def truncation(self, offset: int) -> Callable[[], None]:
        """The function that removes the entries at and above `offset`; it needs no descriptor."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) >> 1
            if self.entry(middle)[0] < offset:
                low = middle + 1
            else:
                high = middle
        return self._truncation(low)

    def keep_valid(self, offset: int) -> None:
        """Remove the entries at and above `offset`, and all from the first one out of order.

        A crash may leave an arbitrary end of the file.
        """
        keep, previous, previous_position = 0, -1, -1
        limit = offset - self.base_offset
        for relative, position in self._unpacked(_ENTRY):
            if not (previous < relative < limit and previous_position < position):
                break
            keep, previous, previous_position = keep + 1, relative, position
        self._keep(keep)
