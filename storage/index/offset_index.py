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
from struct import Struct

from ottla.storage.errors import CorruptIndex
from ottla.storage.index.index_file import BLOCK_BYTES, IndexFile

_ENTRY = Struct(">ii")
_KEY = Struct(">i")
_pack = _ENTRY.pack
_unpack = _ENTRY.unpack_from
_unpack_key = _KEY.unpack_from

OFFSET_ENTRY_BYTES = 8


def _floor(buffer: bytearray, low: int, high: int, key: int) -> int:
    """The number of the last entry in [low, high) whose key is at most `key`, or low - 1."""
    while low < high:
        middle = (low + high) >> 1
        if _unpack_key(buffer, middle << 3)[0] <= key:
            low = middle + 1
        else:
            high = middle
    return low - 1


def _floor_position(buffer: bytearray, high: int, position: int) -> int:
    """The last position among the first `high` entries that is at most `position`, or 0."""
    low = 0
    while low < high:
        middle = (low + high) >> 1
        if _unpack_key(buffer, (middle << 3) + 4)[0] <= position:
            low = middle + 1
        else:
            high = middle
    return int(_unpack_key(buffer, (low << 3) - 4)[0]) if low else 0


class OffsetIndex(IndexFile):
    """The `.index` file of a segment. Offsets are strictly ascending."""

    __slots__ = ()

    ENTRY_BYTES = OFFSET_ENTRY_BYTES

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
            number = _floor(tail, 0, len(tail) >> 3, key)
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
        at = bisect_right(keys, key) - 1
        return self.base_offset + keys[at], blocks.hot_values[at]

    def _make_hot(self, number: int) -> None:
        block = self._blocks.block(number, self._stored_bytes)
        numbers = array("i", block[: len(block) & -OFFSET_ENTRY_BYTES])
        if sys.byteorder == "little":
            numbers.byteswap()
        self._blocks.hot_keys, self._blocks.hot_values = numbers[::2], numbers[1::2]

    def floor_position(self, position: int) -> int:
        """The position of the last indexed batch that begins at or before `position`, or 0."""
        tail = self._tail
        if tail and _unpack_key(tail, 4)[0] <= position:
            return _floor_position(tail, len(tail) >> 3, position)
        blocks = self._blocks
        positions = blocks.hot_values
        if not positions or not positions[0] <= position <= positions[-1]:
            number = blocks.floor(_unpack_key, 4, position, self._stored_bytes)
            if number < 0:
                return 0
            self._make_hot(number)
            positions = blocks.hot_values
        return positions[bisect_right(positions, position) - 1]

    def truncate_to(self, offset: int) -> None:
        """Removes the entries at and above `offset`."""
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
        """Removes the entries at and above `offset`, and all from the first one out of order.

        A crash may leave an arbitrary end of the file.
        """
        keep, previous = 0, -1
        limit = offset - self.base_offset
        for relative, _ in self._unpacked(_ENTRY):
            if not previous < relative < limit:
                break
            keep, previous = keep + 1, relative
        self._keep(keep)

    def check(self) -> None:
        """Raises CorruptIndex when the length or the last entry is invalid.

        An index that was preallocated and not trimmed ends with zeros.
        """
        super().check()
        entries = self.entries
        if entries > 1 and self.entry(entries - 1)[0] <= self.base_offset:
            raise CorruptIndex(
                self.path, f"the last offset is not above the base offset {self.base_offset}"
            )
