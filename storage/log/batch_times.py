"""The timestamps and offsets of the records in a batch, for lookups by timestamp.

A batch may decompress to a hundred megabytes. A lookup on the event loop has a budget. A batch that
exceeds it raises `ReadBudgetExceeded`; the caller reads the batch in a worker thread
(`read_times`), adds the result (`add`) and retries the lookup. So no lookup blocks the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.records.batch import read_header, read_magic
from ottla.protocol.records.errors import DecompressedTooLargeError
from ottla.protocol.records.reader import read_records
from ottla.storage.records.batch_content import MAX_DECOMPRESSED_BYTES
from ottla.storage.records.validation_budget import (
    KIB_DECOMPRESSED,
    MESSAGE_BYTES,
    RECORD_REBUILT,
    ValidationBudget,
    ValidationBudgetExceeded,
)

if TYPE_CHECKING:
    from ottla.storage.log.batch_scan import Place
    from ottla.storage.log.segment import Segment

Times = list[tuple[int, int]]
_Key = tuple[str, int, int]


class ReadBudgetExceeded(Exception):
    """Reading this batch exceeds the budget. `content` is the batch, for `read_times`."""

    def __init__(self, key: _Key, content: bytes) -> None:
        super().__init__(f"{key[0]} at {key[1]}")
        self.key = key
        self.content = content


def read_times(content: bytes, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> Times:
    """(timestamp, offset) of each record, control records too. Raises RecordsError."""
    records = read_records(
        content, include_control=True, max_decompressed_bytes=max_decompressed_bytes
    )
    return [(record.timestamp, record.offset) for record in records]


class BatchTimes:
    """Reads batches for one lookup and its retries."""

    __slots__ = ("_cached", "budget")

    def __init__(self, budget: ValidationBudget | None = None) -> None:
        self.budget = budget
        self._cached: dict[_Key, Times] = {}

    def add(self, key: _Key, times: Times) -> None:
        """Stores the result of `read_times` for a `ReadBudgetExceeded`, for the retry."""
        self._cached[key] = times

    def of(self, segment: Segment, place: Place, from_offset: int) -> Times:
        """The times of the batch at `place`, from `from_offset` on. Raises ReadBudgetExceeded."""
        key = (segment.log.path, place.position, place.size)
        times = self._cached.get(key)
        if times is None:
            times = self._read(key, segment.log.read(place.position, place.size))
            if self.budget is not None:
                self._cached[key] = times
        return [each for each in times if each[1] >= from_offset]

    def _read(self, key: _Key, content: bytes) -> Times:
        budget = self.budget
        if budget is None:
            return read_times(content)
        try:
            limit = budget.decompressed_bytes
            if read_magic(content) == 2:
                budget.spend(read_header(content).record_count * RECORD_REBUILT)
            else:
                # The number of records of an old message is known only after decompression.
                budget.spend(len(content) // MESSAGE_BYTES * RECORD_REBUILT)
                limit = budget.left // RECORD_REBUILT * MESSAGE_BYTES
            budget.spend((len(content) >> 10) * KIB_DECOMPRESSED)
            times = read_times(content, min(MAX_DECOMPRESSED_BYTES, limit))
        except (ValidationBudgetExceeded, DecompressedTooLargeError):
            raise ReadBudgetExceeded(key, content) from None
        return times
