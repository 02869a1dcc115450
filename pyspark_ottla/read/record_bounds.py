"""Where the records of a batch begin.

A record begins after the one before it, whose length is a varint in front of it: a chain, of which
each link needs the one before. Two ways go along it:

- Records of equal length, one after the other, are found with numpy: as long as the same length is
  found at a fixed distance, the next record begins at that distance, too.
- A loop over the lengths finds all others. It does nothing else; `columns` reads the fields.

After each attempt that found no run of equal lengths, the loop does twice as many records before
the next attempt.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ottla.protocol.records.errors import InvalidRecordError

Longs: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

# An attempt costs as much as some fifty records of the loop.
RUN_MIN = 64
LOOP_MAX = 8192


def follow(data: bytes | bytearray, position: int, count: int, begins: list[int]) -> int:
    """Appends where each of `count` records begins; the position after the last one.

    Raises IndexError beyond the data.
    """
    add = begins.append
    for _ in range(count):
        add(position)
        length = data[position]
        if length < 128:
            position += (length >> 1) + 1
            continue
        byte = data[position + 1]
        if byte < 128:
            position += ((length & 127 | byte << 7) >> 1) + 2
            continue
        length = length & 127 | (byte & 127) << 7
        position += 2
        shift = 14
        while byte > 127:
            byte = data[position]
            position += 1
            length |= (byte & 127) << shift
            shift += 7
        position += length >> 1
    return position


def count_equal(raw: Bytes, position: int, size: int, width: int, most: int) -> int:
    """How many records, at most `most`, begin `size` bytes apart from `position` on with the same
    `width` bytes of length; all of these bytes are within the data."""
    most = min(most, (raw.size - width - position) // size + 1)
    found, tried = 0, RUN_MIN
    while found < most:
        until = min(found + tried, most)
        first = position + found * size
        beyond = position + (until - 1) * size + 1
        equal = raw[first:beyond:size] == raw[position]
        for byte in range(1, width):
            equal &= raw[first + byte : beyond + byte : size] == raw[position + byte]
        different = int(np.argmin(equal))
        if not equal[different]:
            return found + different
        found = until
        tried *= 8
    return found


class RecordBounds:
    """Gathers the bounds of the records of several batches.

    Remembers from batch to batch whether equal lengths are to be expected.
    """

    def __init__(self) -> None:
        self._loop_next = RUN_MIN
        self._counts: list[int] = []
        self._shifts: list[int] = []
        # By batch where its records begin, with their lengths, and where the last one ends.
        self._parts: list[Longs] = []
        # What comes after `_parts`: many batches have so few records that an array is not worth it.
        self._last: list[int] = []

    def add(
        self,
        data: bytes | bytearray,
        raw: Bytes,
        position: int,
        end: int,
        count: int,
        shift: int = 0,
    ) -> None:
        """Finds `count` records between `position` and `end`; `shift` is added to their bounds.

        `raw` are the bytes of `data`. Raises InvalidRecordError unless the records fill these bytes
        exactly; whether a length is negative is left to the caller.
        """
        left = count
        try:
            while left >= 2 * RUN_MIN:
                position, found = self._add_some(data, raw, position, end, left)
                left -= found
            position = follow(data, position, left, self._last)
        except IndexError:
            position = -1
        if position != end:
            raise InvalidRecordError(f"its {count} records do not fill it exactly")
        self._last.append(end)
        self._counts.append(count)
        self._shifts.append(shift)

    def _add_some(
        self, data: bytes | bytearray, raw: Bytes, position: int, end: int, left: int
    ) -> tuple[int, int]:
        """Adds a run of equal lengths, or what the loop finds; the position after them, and how
        many they are."""
        size, width = follow(data, position, 1, []) - position, 1
        while data[position + width - 1] > 127:
            width += 1
        # Not beyond the batch: what follows it may have the same bytes by chance.
        run = count_equal(raw[:end], position, size, width, left)
        if run >= RUN_MIN:
            self._loop_next = RUN_MIN
            self._flush()
            self._parts.append(position + np.arange(run, dtype=np.int64) * size)
            return position + run * size, run
        found = min(self._loop_next, left)
        self._loop_next = min(self._loop_next * 2, LOOP_MAX)
        return follow(data, position, found, self._last), found

    def _flush(self) -> None:
        if self._last:
            self._parts.append(np.array(self._last, np.int64))
            self._last = []

    def starts_and_ends(self) -> tuple[Longs, Longs]:
        """Where each record begins, with its length, and where it ends, of all batches."""
        self._flush()
        counts = np.array(self._counts, np.int64)
        bounds = np.concatenate(self._parts)
        if any(self._shifts):
            bounds += np.repeat(np.array(self._shifts, np.int64), counts + 1)
        last = np.cumsum(counts + 1) - 1  # the end of each batch
        return np.delete(bounds, last), np.delete(bounds, last - counts)
