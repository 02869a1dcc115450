"""`.timeindex`: timestamp -> offset, 12 bytes per entry.

    timestamp int64 | relative offset int32

An entry (t, o) means that no batch of the segment, up to and including the one that ends with
offset o, has a timestamp above t. Timestamps are strictly ascending, offsets never decrease.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from ottla.storage.errors import CorruptIndex
from ottla.storage.files.fs import FileSystem
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.index.index_file import BLOCK_BYTES, IndexFile

_ENTRY = Struct(">qi")
_pack = _ENTRY.pack
_unpack = _ENTRY.unpack_from
_unpack_key = Struct(">q").unpack_from

TIME_ENTRY_BYTES = 12
NO_TIMESTAMP = -1


class TimeIndex(IndexFile):
    """The `.timeindex` file of a segment."""

    ENTRY_BYTES = TIME_ENTRY_BYTES

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        base_offset: int,
        stored_bytes: int,
        max_bytes: int,
        files: OpenFiles,
    ) -> None:
        super().__init__(fs, path, base_offset, stored_bytes, max_bytes, files)
        # The timestamp of the last entry, None if it was not read yet.
        self._last_timestamp: int | None = None

    @property
    def entries_left(self) -> int:
        """How many more entries fit, not counting the one that `Segment.finish` appends."""
        return super().entries_left - 1

    @staticmethod
    def _reason(block: bytes) -> str:
        previous, previous_relative = NO_TIMESTAMP, 0
        complete = block[: len(block) - len(block) % TIME_ENTRY_BYTES]
        entries = list(_ENTRY.iter_unpack(complete))
        timestamps = [timestamp for timestamp, _ in entries]
        offsets = [relative for _, relative in entries]
        # The loop, which says what is wrong, takes longer.
        is_ascending = timestamps == sorted(set(timestamps)) and offsets == sorted(offsets)
        if is_ascending and (not entries or min(entries[0]) >= 0):
            return ""
        for at, (timestamp, relative) in enumerate(entries):
            if timestamp <= previous:
                return f"timestamps do not ascend: entry {at} has {timestamp} after {previous}"
            if relative < previous_relative:
                return f"offsets do not ascend: entry {at} has {relative} after {previous_relative}"
            previous, previous_relative = timestamp, relative
        return ""

    def entry(self, number: int) -> tuple[int, int]:
        """(timestamp, offset) of the entry with this number."""
        buffer, at = self._bytes_of(number)
        timestamp, relative = _unpack(buffer, at)
        return timestamp, self.base_offset + relative

    def unchecked_entries(self) -> list[tuple[int, int]]:
        """All entries as they are in the file. Raises CorruptIndex if it is too short."""
        return [(timestamp, self.base_offset + key) for timestamp, key in self._unpacked(_ENTRY)]

    def last(self) -> tuple[int, int]:
        """The last entry, or (-1, base offset) if there is none."""
        entries = self.entries
        return self.entry(entries - 1) if entries else (NO_TIMESTAMP, self.base_offset)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` is above that of all entries."""
        last = self._last_timestamp
        if last is None:
            last = self.last()[0]
        if timestamp > last:
            tail = self._tail
            tail += _pack(timestamp, offset - self.base_offset)
            self._last_timestamp = timestamp
            if len(tail) >= BLOCK_BYTES:
                self.write()

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry at or below `timestamp`, or (-1, base offset) when all are above it."""
        tail = self._tail
        if tail and _unpack(tail, 0)[0] <= timestamp:
            return self._floor(tail, timestamp)
        number = self._blocks.floor(_unpack_key, 0, timestamp, self._stored_bytes)
        if number < 0:
            return NO_TIMESTAMP, self.base_offset
        found = self._floor(self._blocks.block(number, self._stored_bytes), timestamp)
        if found[0] > timestamp:
            raise CorruptIndex(self.path, f"block {number} has changed while it was read")
        return found

    def _floor(self, buffer: bytes | bytearray, timestamp: int) -> tuple[int, int]:
        """The last entry of `buffer` at or below `timestamp`; the first one is."""
        low, high = 1, len(buffer) // TIME_ENTRY_BYTES
        while low < high:
            middle = (low + high) >> 1
            if _unpack_key(buffer, middle * TIME_ENTRY_BYTES)[0] <= timestamp:
                low = middle + 1
            else:
                high = middle
        found, relative = _unpack(buffer, (low - 1) * TIME_ENTRY_BYTES)
        return found, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at and above `offset`."""
        self.truncation(offset)()

    def truncation(self, offset: int) -> Callable[[], None]:
        """The function that removes the entries at and above `offset`; it needs no descriptor."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) >> 1
            if self.entry(middle)[1] < offset:
                low = middle + 1
            else:
                high = middle
        truncate = self._truncation(low)

        def run() -> None:
            truncate()
            self._last_timestamp = None

        return run

    def keep_valid(self, offset: int) -> None:
        """Remove the entries at and above `offset`, and all from the first one out of order.

        A crash may leave an arbitrary end of the file.
        """
        keep, previous = 0, NO_TIMESTAMP
        limit = offset - self.base_offset
        for timestamp, relative in self._unpacked(_ENTRY):
            if not (previous < timestamp and 0 <= relative < limit):
                break
            keep, previous = keep + 1, timestamp
        self._keep(keep)
        self._last_timestamp = None

    def reset(self) -> None:
        """Truncate the file to no entries."""
        super().reset()
        self._last_timestamp = None
