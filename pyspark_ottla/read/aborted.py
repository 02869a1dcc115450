"""Which batches of a fetch answer a read_committed reader leaves out.

The broker stops at the last stable offset and says which producers aborted a transaction in what it
returns, and from which offset on. Everything such a producer wrote from there to its next abort
marker is to be skipped. Markers themselves are never shown to anybody.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.control import ABORT, control_type
from ottla.protocol.records.reader import read_batch


class AbortedFilter:
    """Asked about the batches of one answer in order; `skip` in `columns.read_columns`."""

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
