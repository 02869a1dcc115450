"""Random members, locks, failed writes and changes of leader on one share partition.

Each record ends accepted once, or rejected, or past its delivery limit; never two of these. No
record is with two members at once, and no delivery count goes above the limit.
"""

import random

import pytest

from ottla.broker.share.acquisition import AcquireRequest, GroupLimits
from ottla.broker.share.persister import PersistedState, RecordState, StateBatch
from ottla.broker.share.share_partition import (
    Acknowledgement,
    AcknowledgeType,
    SharePartition,
    Transition,
)
from ottla.protocol.errors import KafkaError
from tests.unit.broker.share.helpers import KEY, log_batches

LIMITS = GroupLimits(max_in_flight_records=40, max_delivery_count=3, lock_duration_ms=100)
MEMBERS = ("a", "b", "c")
RECORDS = 200
FINAL = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class Model:
    """The share partition, what is stored of it, and what happened to each record."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        sizes: list[int] = []
        while sum(sizes) < RECORDS:
            sizes.append(self.random.randint(1, 12))
        self.log = log_batches(*sizes)
        self.end_offset = sum(sizes)
        self.start_offset = 0
        self.stored: dict[int, tuple[int, int]] = {}
        self.accepted: set[int] = set()
        self.rejected: set[int] = set()
        # Past the delivery limit, by the memory of this leader alone.
        self.exhausted: set[int] = set()
        self.held: dict[int, tuple[str, int]] = {}
        #: The delivery count with which each record was last acquired.
        self.counts: dict[int, int] = {}
        self.partition = self.elect()

    def elect(self) -> SharePartition:
        """A new leader, from what is stored; locks are gone."""
        self.held.clear()
        self.exhausted = {offset for offset in self.exhausted if offset < self.start_offset}
        rows = [
            StateBatch(offset, offset, *self.stored[offset])
            for offset in sorted(self.stored)
            if offset >= self.start_offset
        ]
        state = PersistedState(0, self.start_offset, tuple(rows))
        return SharePartition(KEY, 1, state, self.start_offset, LIMITS)

    def store(self, batches: list[StateBatch]) -> None:
        update = self.partition.update(batches)
        self.start_offset = max(self.start_offset, update.start_offset)
        for first, last, state, count in update.batches:
            for offset in range(first, last + 1):
                assert self.stored.get(offset, (0, 0))[0] not in FINAL
                self.stored[offset] = (state, count)

    def acquire(self) -> None:
        partition = self.partition
        member = self.random.choice(MEMBERS)
        offset = partition.next_fetch_offset()
        fetched = [batch for batch in self.log if batch.last_offset >= offset]
        request = AcquireRequest(
            *(member, self.random.randint(1, 30), self.random.randint(1, 10)),
            *(self.random.random() < 0.5, self.now_ms),
        )
        fetched = fetched[: self.random.randint(1, 8)]
        for first, last, count in partition.acquire(request, offset, fetched):
            assert 1 <= count <= LIMITS.max_delivery_count
            for each in range(first, last + 1):
                assert each not in self.accepted | self.rejected | self.exhausted
                holder = self.held.get(each)
                assert holder is None or holder[1] <= self.now_ms
                self.held[each] = (member, self.now_ms + LIMITS.lock_duration_ms)
                self.counts[each] = count

    def acknowledge(self) -> None:
        """A member acknowledges some of what it thinks it has, which may be wrong."""
        member = self.random.choice(MEMBERS)
        mine = sorted(offset for offset, (holder, _) in self.held.items() if holder == member)
        if not mine:
            return
        first = self.random.choice(mine)
        last = min(first + self.random.randint(0, 6), self.end_offset - 1)
        types = [self.random.randint(0, 4) for _ in range(first, last + 1)]
        if self.random.random() < 0.4:
            types = [AcknowledgeType.ACCEPT]
        try:
            transition = self.partition.acknowledge(
                member, [Acknowledgement(first, last, types)], self.now_ms
            )
        except KafkaError:
            self.find_exhausted()
            return
        for index, offset in enumerate(range(first, last + 1)):
            if types[index % len(types)] == AcknowledgeType.RENEW and offset in self.held:
                self.held[offset] = (member, self.now_ms + LIMITS.lock_duration_ms)
        self.finish(transition)

    def finish(self, transition: Transition) -> None:
        if self.random.random() < 0.2:
            self.now_ms += self.random.choice((0, 0, 150))
            self.partition.rollback(transition, self.now_ms)
            self.find_exhausted()
            return
        self.store(transition.batches)
        self.partition.commit(transition)
        for first, last, state, _ in transition.batches:
            for offset in range(first, last + 1):
                self.held.pop(offset, None)
                assert offset not in self.accepted | self.rejected
                if state == RecordState.ACKNOWLEDGED:
                    self.accepted.add(offset)
                elif state == RecordState.ARCHIVED:
                    self.rejected.add(offset)

    def find_exhausted(self) -> None:
        """After a rollback: locks that ended meanwhile have ended in memory only."""
        limit = LIMITS.max_delivery_count
        below = range(self.partition.window.start_offset)
        self.exhausted |= {each for each in below if self.counts.get(each) == limit}
        self.exhausted -= self.accepted | self.rejected
        for batch in self.partition.window.batches:
            if batch.is_terminal:
                done = set(range(batch.first_offset, batch.last_offset + 1))
                self.exhausted |= done - self.accepted - self.rejected

    def end_locks(self) -> None:
        self.now_ms += self.random.randint(1, 120)
        ended = self.partition.end_locks(self.now_ms)
        for first, last, state, _ in ended:
            for offset in range(first, last + 1):
                assert self.held.pop(offset)[1] <= self.now_ms
                if state == RecordState.ARCHIVED:
                    self.rejected.add(offset)
        self.store(ended)

    def step(self) -> None:
        actions = [self.acquire, self.acquire, self.acknowledge, self.acknowledge, self.end_locks]
        self.random.choice(actions)()
        if self.random.random() < 0.02:
            self.partition = self.elect()
        self.check()

    def check(self) -> None:
        window = self.partition.window
        position = window.start_offset
        for batch in window.batches:
            assert batch.first_offset >= position
            position = batch.last_offset + 1
        assert position <= window.end_offset
        terminal = sum(batch.count for batch in window.batches if batch.is_terminal)
        assert window.delivery_complete_count == terminal
        assert window.in_flight_records <= LIMITS.max_in_flight_records + 12
        for offset in range(window.start_offset):
            assert offset in self.accepted | self.rejected | self.exhausted


@pytest.mark.parametrize("seed", range(12))
def test_each_record_is_delivered_for_good_once(seed: int) -> None:
    model = Model(seed)
    for _ in range(3000):
        model.step()
        if model.partition.window.start_offset >= model.end_offset:
            break
    assert model.partition.window.start_offset == model.end_offset
    done = model.accepted | model.rejected | model.exhausted
    assert done == set(range(model.end_offset))
    assert not model.accepted & (model.rejected | model.exhausted)
