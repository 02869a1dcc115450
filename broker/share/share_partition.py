"""The leader's state of one partition for one share group; mirrors Kafka's `SharePartition`.

Nothing here awaits, reads a clock or writes. A change of durable state is a `Transition`: its
caller stores the batches with the persister and then calls `commit` or `rollback`. Until then the
records can be neither acquired nor acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.broker.share.acquisition import (
    AcquiredRecords,
    AcquireRequest,
    Acquisition,
    FetchedBatch,
    GroupLimits,
    aborted_batches,
)
from ottla.broker.share.in_flight import NO_DEADLINE, NO_MEMBER, InFlightBatch
from ottla.broker.share.persister import (
    PersistedState,
    RecordState,
    SharePartitionKey,
    StateBatch,
    StateUpdate,
    merged,
)
from ottla.broker.share.window import InFlightWindow
from ottla.protocol.errors import ErrorCode, KafkaError


class AcknowledgeType:
    """The types of KIP-932 and KIP-1222; GAP is an offset without a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


_STATE_AFTER = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}


class Acknowledgement(NamedTuple):
    """Offsets (inclusive) and their types: one for all, or one for each offset."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class _Part(NamedTuple):
    batch: InFlightBatch
    member_id: str


class Transition:
    """Records whose new state is being stored."""

    __slots__ = ("batches", "parts")

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.batches: list[StateBatch] = []


class SharePartition:
    """The in-flight records of one share partition."""

    def __init__(
        self,
        key: SharePartitionKey,
        leader_epoch: int,
        state: PersistedState,
        start_offset: int,
        limits: GroupLimits,
    ) -> None:
        """`start_offset` is that of `state`, or the one that `share.auto.offset.reset` chooses."""
        self.key = key
        self.leader_epoch = leader_epoch
        self.state_epoch = state.state_epoch
        #: Replaced by the caller before each call, as the settings of a group can change.
        self.limits = limits
        self.window = InFlightWindow(start_offset)
        for first, last, record_state, delivery_count in state.batches:
            if last >= start_offset:
                batch = InFlightBatch(max(first, start_offset), last, record_state, delivery_count)
                self.window.batches.add(batch)
                self.window.end_offset = last + 1
        self.window.records_became_available()
        self.window.advance()

    def next_fetch_offset(self) -> int:
        return self.window.next_fetch_offset()

    def can_acquire(self) -> bool:
        return self.window.can_acquire(self.limits.max_in_flight_records)

    # Acquiring.

    def most_records(self, fetch_offset: int, max_records: int) -> int:
        """Return the number of offsets from `fetch_offset` that `acquire` can use.

        These are the ones in flight, and as many after them as there is room for.
        """
        room = max(0, self.limits.max_in_flight_records - self.window.in_flight_records)
        return self.window.end_offset - fetch_offset + min(max_records, room)

    def acquire(
        self,
        request: AcquireRequest,
        fetch_offset: int,
        fetched: Sequence[FetchedBatch],
        aborted: Iterable[tuple[int, int]] = (),
    ) -> list[AcquiredRecords]:
        """Acquire records of what was read at `fetch_offset` for a member.

        `aborted` are the aborted transactions of a fetch with read_committed; their records are
        archived, not acquired.
        """
        acquisition = Acquisition(self.window, request, self.limits, fetched)
        acquisition.run(fetch_offset)
        acquired = acquisition.acquired
        for batch in aborted_batches(fetched, aborted):
            acquired = self._archive_acquired(acquired, batch)
        self.window.advance()
        return acquired

    def _archive_acquired(
        self, acquired: list[AcquiredRecords], aborted: FetchedBatch
    ) -> list[AcquiredRecords]:
        left: list[AcquiredRecords] = []
        first, last = aborted.base_offset, aborted.last_offset
        for each in acquired:
            if each.last_offset < first or each.first_offset > last:
                left.append(each)
                continue
            if each.first_offset < first:
                left.append(each._replace(last_offset=first - 1))
            if each.last_offset > last:
                left.append(each._replace(first_offset=last + 1))
            within = (max(first, each.first_offset), min(last, each.last_offset))
            for batch in self.window.batches.overlapping(*within):
                self.window.batches.archive(self.window.batches.split(batch, *within))
        return left

    # Acknowledging.

    def acknowledge(
        self, member_id: str, acknowledgements: Iterable[Acknowledgement], now_ms: int
    ) -> Transition:
        """Return the transition of acknowledged records; renewals take effect at once.

        Raises KafkaError, and then changes nothing except renewed locks: INVALID_RECORD_STATE for
        records that this member has not acquired, INVALID_REQUEST for offsets that no member has.
        """
        transition = Transition()
        try:
            for each in acknowledgements:
                self._acknowledge(transition, member_id, each, now_ms)
        except KafkaError:
            self.rollback(transition, now_ms)
            raise
        return transition

    def _acknowledge(
        self, transition: Transition, member_id: str, request: Acknowledgement, now_ms: int
    ) -> None:
        start_offset = self.window.start_offset
        if request.last_offset < start_offset:
            return  # Delivered for good, or deleted from the log meanwhile.
        first = max(request.first_offset, start_offset)
        found = self.window.batches.overlapping(first, request.last_offset)
        if not found:
            lowest = self.window.batches.first
            if lowest is not None and lowest.first_offset <= first:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Batch record not found. The first offset in request is past acquired records.",
                )
            raise _invalid_state("The request batch offsets are not found in the cache.")
        if found[-1].last_offset < request.last_offset:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Batch record not found. The last offset in request is past acquired records.",
            )
        for batch in found:
            self._check_acquired(batch, member_id)
            for part_first, part_last, ack_type in _runs(
                request, max(first, batch.first_offset), min(request.last_offset, batch.last_offset)
            ):
                part = self._part(part_first, part_last)
                if ack_type == AcknowledgeType.RENEW:
                    if not self.limits.is_renew_enabled:
                        raise _invalid_state(
                            "Renewing acquisition locks is not enabled for the group."
                        )
                    part.deadline_ms = now_ms + self.limits.lock_duration_ms
                else:
                    self._begin(transition, part, _STATE_AFTER[ack_type])

    def _part(self, first_offset: int, last_offset: int) -> InFlightBatch:
        """Return the part of one batch with these offsets."""
        (batch,) = self.window.batches.overlapping(first_offset, last_offset)
        return self.window.batches.split(batch, first_offset, last_offset)

    def _check_acquired(self, batch: InFlightBatch, member_id: str) -> None:
        if batch.is_pending:
            raise _invalid_state("The acknowledgement of delivery could not be completed.")
        if batch.state != RecordState.ACQUIRED:
            raise _invalid_state("The batch is not in the acquired state.")
        if batch.member_id != member_id:
            raise _invalid_state("Member is not the owner of batch record.")

    def _begin(self, transition: Transition, batch: InFlightBatch, state: int) -> None:
        transition.parts.append(_Part(batch, batch.member_id))
        if state == RecordState.AVAILABLE:
            state = self._after_release(batch)
        self.window.batches.set_state(batch, state)
        batch.member_id = NO_MEMBER
        batch.is_pending = True
        transition.batches.append(_stored(batch))

    def _after_release(self, batch: InFlightBatch) -> int:
        """A record that was delivered as often as allowed is not delivered again."""
        if batch.delivery_count >= self.limits.max_delivery_count:
            return RecordState.ARCHIVED
        return RecordState.AVAILABLE

    def release(self, member_id: str) -> Transition:
        """Return the transition of all records of a member whose share session is closed."""
        transition = Transition()
        for batch in self.window.batches:
            is_acquired = batch.state == RecordState.ACQUIRED and not batch.is_pending
            if is_acquired and batch.member_id == member_id:
                self._begin(transition, batch, RecordState.AVAILABLE)
        return transition

    # Transitions.

    def update(self, batches: Iterable[StateBatch]) -> StateUpdate:
        """Return the update to store for these batches."""
        return StateUpdate(
            self.state_epoch,
            self.leader_epoch,
            self.window.start_offset,
            self.window.delivery_complete_count,
            tuple(merged(batches)),
        )

    def commit(self, transition: Transition) -> None:
        """The batches are stored."""
        for batch, _ in transition.parts:
            batch.is_pending = False
            batch.deadline_ms = NO_DEADLINE
            if batch.state == RecordState.AVAILABLE:
                self.window.records_became_available()
        self.window.advance()

    def rollback(self, transition: Transition, now_ms: int) -> None:
        """The batches could not be stored: the members have the records as before, except where
        the lock ended meanwhile."""
        for batch, member_id in transition.parts:
            batch.is_pending = False
            if batch.last_offset < self.window.start_offset:
                continue  # Deleted from the log meanwhile.
            if batch.deadline_ms > now_ms:
                self.window.batches.set_state(batch, RecordState.ACQUIRED)
                batch.member_id = member_id
            else:
                self._end_lock(batch)
        self.window.advance()

    # Locks.

    def next_deadline_ms(self) -> int | None:
        """When the next acquisition lock ends."""
        return min(
            (
                batch.deadline_ms
                for batch in self.window.batches
                if batch.deadline_ms != NO_DEADLINE and not batch.is_pending
            ),
            default=None,
        )

    def end_locks(self, now_ms: int) -> list[StateBatch]:
        """Make records available whose lock has ended; return the batches to store.

        The change is in effect whether or not they are stored: the next leader finds the records
        available as well.
        """
        ended = []
        for batch in self.window.batches:
            if batch.is_pending or not NO_DEADLINE < batch.deadline_ms <= now_ms:
                continue
            self._end_lock(batch)
            ended.append(_stored(batch))
        self.window.advance()
        return ended

    def _end_lock(self, batch: InFlightBatch) -> None:
        self.window.batches.set_state(batch, self._after_release(batch))
        batch.member_id = NO_MEMBER
        batch.deadline_ms = NO_DEADLINE
        self.window.records_became_available()


def _runs(request: Acknowledgement, first: int, last: int) -> Iterable[tuple[int, int, int]]:
    """Return the offsets from first to last, in runs of one acknowledgement type."""
    types = request.types
    if len(types) == 1:
        yield first, last, types[0]
        return
    start = first
    for offset in range(first + 1, last + 1):
        if types[offset - request.first_offset] != types[start - request.first_offset]:
            yield start, offset - 1, types[start - request.first_offset]
            start = offset
    yield start, last, types[start - request.first_offset]


def _stored(batch: InFlightBatch) -> StateBatch:
    return StateBatch(batch.first_offset, batch.last_offset, batch.state, batch.delivery_count)


def _invalid_state(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD_STATE, message)
