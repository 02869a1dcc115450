"""Which batches of a fetch response a read_committed reader skips.

The broker stops at the last stable offset and lists the producers that aborted a transaction in the
response, with the first offset of each. Everything such a producer wrote from there to its next
abort marker is skipped. Markers themselves are always skipped.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.control import ABORT, control_type
from ottla.protocol.records.reader import read_batch


class AbortedFilter:
    """Called with the batches of one response in order; `skip` in `columns.read_columns`."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted` are (first offset, producer id) pairs, in any order."""
        self._waiting = sorted(aborted, reverse=True)
        self._open: set[int] = set()

    def __call__(self, data: memoryview, position: int, header: BatchHeader) -> bool:
        while self._waiting and self._waiting[-1][0] <= header.last_offset:
            self._open.add(self._waiting.pop()[1])
        if header.is_control:
            if header.producer_id in self._open and is_abort(data, position, header):
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def is_abort(data: memoryview, position: int, header: BatchHeader) -> bool:
    """Whether a control batch ends a transaction by an abort; an empty one (compacted) does not."""
    records = read_batch(data, position, header)
    return bool(records) and control_type(records[0].key) == ABORT
