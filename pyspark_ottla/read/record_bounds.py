"""Where the records of a batch begin.

A record begins after the one before it, whose length is a varint in front of it: a chain, of which
each link needs the one before. Two ways go along it:

- Records of equal length, one after the other, are found with numpy: as long as the same length is
  found at a fixed distance, the next record begins at that distance, too.
- A loop over the lengths finds all others. It does nothing else; `columns` reads the fields.

After each attempt that found no run of equal lengths, the loop does twice as many records before the
next attempt.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ottla.protocol.records.errors import InvalidRecordError

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


def count_equal(raw: npt.NDArray[np.uint8], position: int, size: int, width: int, most: int) -> int:
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
    """Finds records, and remembers from batch to batch whether equal lengths are to be expected."""

    def __init__(self) -> None:
        self._loop_next = RUN_MIN

    def find(
        self,
        data: bytes | bytearray,
        raw: npt.NDArray[np.uint8],
        position: int,
        end: int,
        count: int,
    ) -> npt.NDArray[np.int64]:
        """Where each of `count` records begins, with its length, and the end of the last one.

        `raw` are the bytes of `data`. Raises InvalidRecordError unless the records fill the bytes
        from `position` to `end` exactly; that no length is negative is left to the caller.
        """
        parts: list[npt.NDArray[np.int64]] = []
        left = count
        try:
            while left:
                position, found = self._find_some(data, raw, position, end, left)
                parts.append(found)
                left -= len(found)
        except IndexError:
            position = -1
        if position != end:
            raise InvalidRecordError(f"its {count} records do not fill it exactly")
        parts.append(np.array([end], np.int64))
        return np.concatenate(parts)

    def _find_some(
        self,
        data: bytes | bytearray,
        raw: npt.NDArray[np.uint8],
        position: int,
        end: int,
        left: int,
    ) -> tuple[int, npt.NDArray[np.int64]]:
        begins: list[int] = []
        if left < 2 * RUN_MIN:
            position = follow(data, position, left, begins)
            return position, np.array(begins, np.int64)
        following = follow(data, position, 1, [])
        size, width = following - position, 1
        while data[position + width - 1] > 127:
            width += 1
        # Not beyond the batch: what follows it may have the same bytes by chance.
        run = count_equal(raw[:end], position, size, width, left)
        if run >= RUN_MIN:
            self._loop_next = RUN_MIN
            return position + run * size, position + np.arange(run, dtype=np.int64) * size
        position = follow(data, position, min(self._loop_next, left), begins)
        self._loop_next = min(self._loop_next * 2, LOOP_MAX)
        return position, np.array(begins, np.int64)
