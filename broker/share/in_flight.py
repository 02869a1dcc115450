"""The in-flight records of a share partition: sorted batches that do not overlap.

A batch is a run of offsets with one state. Acknowledging a part of it splits it, so memory follows
the number of different states, not of records. A share partition has at most
`group.share.partition.max.record.locks` records in flight (10,000 at the most), so the list is
short enough for insertion in the middle.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

from ottla.broker.share.persister import RecordState

NO_MEMBER = ""
NO_DEADLINE = -1

_TERMINAL = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)

_first_offset = attrgetter("first_offset")


class InFlightBatch:
    """Records first_offset to last_offset (inclusive), all in the same state."""

    __slots__ = (
        "deadline_ms",
        "delivery_count",
        "first_offset",
        "is_pending",
        "last_offset",
        "member_id",
        "size_at_acquisition",
        "state",
    )

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        state: int,
        delivery_count: int,
        member_id: str = NO_MEMBER,
        deadline_ms: int = NO_DEADLINE,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.state = state
        self.delivery_count = delivery_count
        #: The member that has acquired the records.
        self.member_id = member_id
        #: When the acquisition lock ends; kept while a transition is pending, for its rollback.
        self.deadline_ms = deadline_ms
        #: A transition of these records is being written: they cannot change meanwhile.
        self.is_pending = False
        #: The records of the batch before it was split, for the throttle of repeated deliveries.
        self.size_at_acquisition = last_offset - first_offset + 1

    @property
    def count(self) -> int:
        return self.last_offset - self.first_offset + 1

    @property
    def is_terminal(self) -> bool:
        """Whether the records are delivered for good: acknowledged or archived."""
        return self.state in _TERMINAL

    @property
    def is_available(self) -> bool:
        return self.state == RecordState.AVAILABLE and not self.is_pending

    def __repr__(self) -> str:
        return (
            f"InFlightBatch({self.first_offset}-{self.last_offset}, state {self.state}, "
            f"count {self.delivery_count}, {self.member_id!r})"
        )


class InFlightBatches:
    """The batches of one share partition, by offset; their states change here only."""

    def __init__(self) -> None:
        self._batches: list[InFlightBatch] = []
        #: The records that are acknowledged or archived. Counted as it changes: each stored update
        #: has it, and there can be thousands of batches.
        self.terminal_records = 0

    def __iter__(self) -> Iterator[InFlightBatch]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def first(self) -> InFlightBatch | None:
        return self._batches[0] if self._batches else None

    @property
    def last(self) -> InFlightBatch | None:
        return self._batches[-1] if self._batches else None

    def add(self, batch: InFlightBatch) -> None:
        """Add a batch whose offsets no other batch has."""
        index = bisect_left(self._batches, batch.first_offset, key=_first_offset)
        self._batches.insert(index, batch)
        if batch.is_terminal:
            self.terminal_records += batch.count

    def set_state(self, batch: InFlightBatch, state: int) -> None:
        """Change the state of one of these batches."""
        if batch.is_terminal:
            self.terminal_records -= batch.count
        batch.state = state
        if batch.is_terminal:
            self.terminal_records += batch.count

    def archive(self, batch: InFlightBatch) -> None:
        self.set_state(batch, RecordState.ARCHIVED)
        batch.member_id = NO_MEMBER
        batch.deadline_ms = NO_DEADLINE

    def overlapping(self, first_offset: int, last_offset: int) -> list[InFlightBatch]:
        """Return the batches that have one of these offsets (both inclusive), in order."""
        batches = self._batches
        start = bisect_right(batches, first_offset, key=_first_offset)
        if start and batches[start - 1].last_offset >= first_offset:
            start -= 1
        end = bisect_right(batches, last_offset, key=_first_offset)
        return batches[start:end]

    def split(self, batch: InFlightBatch, first_offset: int, last_offset: int) -> InFlightBatch:
        """Return the part of `batch` within these offsets, as a batch of its own.

        What remains on either side becomes a batch too. The batch is not pending.
        """
        assert not batch.is_pending
        if first_offset > batch.first_offset:
            batch = self._cut(batch, first_offset)
        if last_offset < batch.last_offset:
            self._cut(batch, last_offset + 1)
        return batch

    def _cut(self, batch: InFlightBatch, offset: int) -> InFlightBatch:
        """End the batch below `offset`; return the new batch that begins there."""
        rest = InFlightBatch(
            offset,
            batch.last_offset,
            batch.state,
            batch.delivery_count,
            batch.member_id,
            batch.deadline_ms,
        )
        rest.size_at_acquisition = batch.size_at_acquisition
        if batch.is_terminal:
            self.terminal_records -= rest.count
        batch.last_offset = offset - 1
        self.add(rest)
        return rest

    def remove_first(self, count: int) -> None:
        """Remove the `count` lowest batches."""
        removed = self._batches[:count]
        self.terminal_records -= sum(batch.count for batch in removed if batch.is_terminal)
        del self._batches[:count]

    def remove_below(self, offset: int) -> None:
        """Remove the records below `offset`."""
        self.remove_first(sum(batch.last_offset < offset for batch in self._batches))
        first = self.first
        if first is not None and first.first_offset < offset:
            if first.is_terminal:
                self.terminal_records -= offset - first.first_offset
            first.first_offset = offset
