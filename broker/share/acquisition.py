"""Which of the fetched records a member acquires.

Mirrors `acquire` of Kafka's `SharePartition`. In the batch-optimized mode whole record batches are
acquired, even beyond the limit; in the record-limit mode (KIP-1206) never more than the limit.
Records that were delivered often are delivered in smaller pieces, and alone at the last attempt, so
that one bad record does not use up the attempts of its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.broker.share.in_flight import InFlightBatch
from ottla.broker.share.persister import RecordState
from ottla.broker.share.window import InFlightWindow

# Deliveries after which a record counts as difficult, at least.
_MIN_THROTTLE_DELIVERIES = 2


class FetchedBatch(NamedTuple):
    """The offsets of one record batch; `producer_id` is -1 outside transactions."""

    base_offset: int
    last_offset: int
    producer_id: int = -1
    ends_transaction: bool = False


class AcquiredRecords(NamedTuple):
    """A range of acquired records; both offsets are inclusive."""

    first_offset: int
    last_offset: int
    delivery_count: int


class GroupLimits(NamedTuple):
    """The settings of a share group that its share partitions need; defaults of Kafka 4.3."""

    max_in_flight_records: int = 2000
    max_delivery_count: int = 5
    lock_duration_ms: int = 30_000
    is_renew_enabled: bool = True


class AcquireRequest(NamedTuple):
    """The request of one member. `batch_size` is the preferred size of acquired batches."""

    member_id: str
    max_records: int
    batch_size: int
    is_record_limit: bool
    now_ms: int


class Acquisition:
    """One call of `acquire`; `acquired` is its result."""

    def __init__(
        self,
        window: InFlightWindow,
        request: AcquireRequest,
        limits: GroupLimits,
        fetched: Sequence[FetchedBatch],
    ) -> None:
        self._window = window
        self._request = request
        self._limits = limits
        self._fetched = fetched
        self._left = 0
        self.acquired: list[AcquiredRecords] = []

    def run(self, fetch_offset: int) -> None:
        """Acquire from what was read at `fetch_offset`."""
        window, fetched = self._window, self._fetched
        if not fetched or fetched[-1].last_offset < window.start_offset:
            return
        last_offset = fetched[-1].last_offset
        room = self._limits.max_in_flight_records - window.in_flight_records
        self._left = min(self._request.max_records, room)
        if room <= 0:
            if fetch_offset >= window.end_offset:
                return
            # Records between others in flight need no room.
            self._left = min(self._request.max_records, window.end_offset - fetch_offset)
            last_offset = min(last_offset, window.end_offset - 1)
        if self._left <= 0:
            return
        base_offset = fetched[0].base_offset
        window.archive_missing(fetch_offset, base_offset)
        position = max(base_offset, window.start_offset)
        for batch in window.batches.overlapping(position, last_offset):
            if batch.first_offset > position and self._left > 0:
                self._acquire_new(position, batch.first_offset - 1)
            if self._left <= 0:
                return
            end_offset = batch.last_offset + 1  # the batch may be split
            if batch.is_available and not self._acquire_again(batch, position, last_offset):
                return
            position = end_offset
        if self._left > 0 and position <= last_offset:
            self._acquire_new(position, last_offset)

    def _acquire_again(self, batch: InFlightBatch, first_offset: int, last_offset: int) -> bool:
        """Acquire a batch or a part of it; return whether to continue with the next one."""
        first_offset = max(first_offset, batch.first_offset)
        last_offset = min(last_offset, batch.last_offset)
        limit = self._limits.max_delivery_count
        difficult = max(_MIN_THROTTLE_DELIVERIES, (limit + 1) // 2)
        is_throttled = batch.delivery_count >= difficult
        if is_throttled:
            if self.acquired:
                return False
            if limit > 2 and batch.delivery_count == limit - 1:
                most = 1
            else:
                most = batch.size_at_acquisition >> (batch.delivery_count - difficult + 1)
            last_offset = min(last_offset, first_offset + max(1, most) - 1)
        if self._request.is_record_limit:
            last_offset = min(last_offset, first_offset + self._left - 1)
        part = self._window.batches.split(batch, first_offset, last_offset)
        self._window.batches.set_state(part, RecordState.ACQUIRED)
        part.delivery_count += 1
        part.member_id = self._request.member_id
        part.deadline_ms = self._request.now_ms + self._limits.lock_duration_ms
        self._took(part)
        return not is_throttled

    def _acquire_new(self, first_offset: int, last_offset: int) -> None:
        """Acquire records that no batch has."""
        if last_offset - first_offset + 1 > self._left:
            wanted = first_offset + self._left - 1
            if not self._request.is_record_limit:
                wanted = next(
                    (each.last_offset for each in self._fetched if each.last_offset >= wanted),
                    wanted,
                )
            last_offset = min(last_offset, wanted)
        deadline_ms = self._request.now_ms + self._limits.lock_duration_ms
        for first, last in self._divided(first_offset, last_offset):
            batch = InFlightBatch(
                first,
                last,
                RecordState.ACQUIRED,
                1,
                self._request.member_id,
                deadline_ms,
            )
            self._window.add(batch)
            self._took(batch)

    def _divided(self, first_offset: int, last_offset: int) -> Iterable[tuple[int, int]]:
        """Batches of about `batch_size` records, which begin where a record batch begins."""
        size = self._request.batch_size
        if not self._request.is_record_limit and last_offset - first_offset + 1 > size:
            for each in self._fetched:
                if each.base_offset > last_offset:
                    break
                if each.base_offset - first_offset >= size:
                    yield first_offset, each.base_offset - 1
                    first_offset = each.base_offset
        yield first_offset, last_offset

    def _took(self, batch: InFlightBatch) -> None:
        self._left -= batch.count
        self.acquired.append(
            AcquiredRecords(batch.first_offset, batch.last_offset, batch.delivery_count)
        )


def aborted_batches(
    fetched: Iterable[FetchedBatch], aborted: Iterable[tuple[int, int]]
) -> list[FetchedBatch]:
    """Return the batches of aborted transactions.

    `aborted` has (producer id, first offset) of each aborted transaction among them.
    """
    waiting = sorted(aborted, key=lambda each: each[1], reverse=True)
    producers: set[int] = set()
    found = []
    for batch in fetched:
        if batch.producer_id < 0:
            continue
        while waiting and waiting[-1][1] <= batch.last_offset:
            producers.add(waiting.pop()[0])
        if batch.ends_transaction:
            producers.discard(batch.producer_id)
        elif batch.producer_id in producers:
            found.append(batch)
    return found
