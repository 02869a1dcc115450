"""The times and offsets of the records in a batch of a log: what a search by time looks at.

A batch may unpack to a hundred megabytes. A search on the broker's loop has an allowance; where
that ends, it raises `TooLongToRead` with the batch, which is then read in a worker thread
(`read_times`) and given to the next try (`know`). So no search waits in the middle of a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.records.batch import read_header, read_magic
from ottla.protocol.records.errors import DecompressedTooLargeError
from ottla.protocol.records.reader import read_records
from ottla.storage.records.validation import MAX_DECOMPRESSED_BYTES
from ottla.storage.records.validation_budget import (
    KIB_DECOMPRESSED,
    MESSAGE_BYTES,
    RECORD_REBUILT,
    TooMuchAtOnce,
    ValidationBudget,
)

if TYPE_CHECKING:
    from ottla.storage.log.batch_scan import Place
    from ottla.storage.log.segment import Segment

Times = list[tuple[int, int]]
_Key = tuple[str, int, int]


class TooLongToRead(Exception):
    """This batch takes longer to read than there is time for."""

    def __init__(self, key: _Key, content: bytes) -> None:
        super().__init__(f"{key[0]} at {key[1]}")
        self.key = key
        self.content = content


def read_times(content: bytes, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> Times:
    """(timestamp, offset) of each record, markers too. Raises RecordsError."""
    records = read_records(
        content, include_control=True, max_decompressed_bytes=max_decompressed_bytes
    )
    return [(record.timestamp, record.offset) for record in records]


class BatchTimes:
    """Reads batches for one search, or several tries of one."""

    __slots__ = ("_known", "budget")

    def __init__(self, budget: ValidationBudget | None = None) -> None:
        self.budget = budget
        self._known: dict[_Key, Times] = {}

    def know(self, key: _Key, times: Times) -> None:
        """What `read_times` has found for a `TooLongToRead`."""
        self._known[key] = times

    def of(self, segment: Segment, place: Place, from_offset: int) -> Times:
        """Those of the batch at `place`, from `from_offset` on. Raises TooLongToRead."""
        key = (segment.log.path, place.position, place.size)
        times = self._known.get(key)
        if times is None:
            times = self._read(key, segment.log.read(place.position, place.size))
            if self.budget is not None:
                self._known[key] = times
        return [each for each in times if each[1] >= from_offset]

    def _read(self, key: _Key, content: bytes) -> Times:
        budget = self.budget
        if budget is None:
            return read_times(content)
        try:
            room = budget.decompressed_bytes
            if read_magic(content) == 2:
                budget.spend(read_header(content).record_count * RECORD_REBUILT)
            else:
                # How many records an old message holds is known when it is unpacked.
                budget.spend(len(content) // MESSAGE_BYTES * RECORD_REBUILT)
                room = budget.left // RECORD_REBUILT * MESSAGE_BYTES
            budget.spend((len(content) >> 10) * KIB_DECOMPRESSED)
            times = read_times(content, min(MAX_DECOMPRESSED_BYTES, room))
        except (TooMuchAtOnce, DecompressedTooLargeError):
            raise TooLongToRead(key, content) from None
        return times
