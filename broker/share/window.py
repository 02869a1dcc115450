"""The in-flight window of a share partition: from its start offset (SPSO) to its end.

Records below the start offset are delivered for good; records from the end on were never acquired.
"""

from __future__ import annotations

from ottla.broker.share.in_flight import InFlightBatch, InFlightBatches
from ottla.broker.share.persister import RecordState


class InFlightWindow:
    """Mirrors the cached state of Kafka's `SharePartition`; `end_offset` is exclusive here."""

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.batches = InFlightBatches()
        # Whether a record below the end may be available: then the next fetch begins there.
        self._may_have_available = False

    @property
    def in_flight_records(self) -> int:
        return self.end_offset - self.start_offset

    @property
    def delivery_complete_count(self) -> int:
        """The records from the start offset on that are acknowledged or archived."""
        return self.batches.terminal_records

    def records_became_available(self) -> None:
        self._may_have_available = True

    def next_fetch_offset(self) -> int:
        """Return the first offset that is available or not in the stored state, or else the end."""
        if not self._may_have_available:
            return self.end_offset
        expected = self.start_offset
        for batch in self.batches:
            if batch.first_offset > expected:
                return expected
            if batch.is_available:
                return batch.first_offset
            expected = batch.last_offset + 1
        self._may_have_available = False
        return self.end_offset

    def can_acquire(self, max_in_flight: int) -> bool:
        return self.next_fetch_offset() != self.end_offset or self.in_flight_records < max_in_flight

    def add(self, batch: InFlightBatch) -> None:
        """Add a batch outside all others; the window grows to include it."""
        if not self.batches:
            self.start_offset = max(self.start_offset, batch.first_offset)
        self.batches.add(batch)
        self.end_offset = max(self.end_offset, batch.last_offset + 1)

    def archive_missing(self, first_offset: int, end_offset: int) -> None:
        """The log has no records from first_offset to end_offset - 1: they are not delivered.

        Compaction removed them. What is available is archived, and so is what no batch has.
        """
        if not self.batches or first_offset >= end_offset:
            return
        position = max(first_offset, self.start_offset)
        for batch in self.batches.overlapping(position, end_offset - 1):
            if batch.first_offset > position:
                self._add_archived(position, batch.first_offset - 1)
            position = batch.last_offset + 1
            if batch.is_available:
                part = self.batches.split(batch, first_offset, end_offset - 1)
                self.batches.archive(part)
        if position < end_offset:
            self._add_archived(position, end_offset - 1)

    def _add_archived(self, first_offset: int, last_offset: int) -> None:
        self.add(InFlightBatch(first_offset, last_offset, RecordState.ARCHIVED, 0))

    def advance(self) -> bool:
        """Move the start offset past records delivered for good; return whether it moved."""
        removed = 0
        for batch in self.batches:
            if batch.first_offset > self.start_offset or not batch.is_terminal or batch.is_pending:
                break
            self.start_offset = batch.last_offset + 1
            removed += 1
        self.batches.remove_first(removed)
        return removed > 0

    def advance_to(self, log_start_offset: int) -> bool:
        """The log begins at this offset now; whether the start offset moved.

        Acknowledgements of the records below are accepted later, without effect.
        """
        if log_start_offset <= self.start_offset:
            return False
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        self.batches.remove_below(log_start_offset)
        self.advance()
        self.records_became_available()
        return True
