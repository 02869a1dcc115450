"""Share partitions for tests: without a log, without a share coordinator."""

import asyncio
from collections.abc import Iterable, Sequence

from ottla.broker.share.acquisition import (
    AcquiredRecords,
    AcquireRequest,
    FetchedBatch,
    GroupLimits,
)
from ottla.broker.share.persister import (
    PersistedState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    StateUpdate,
)
from ottla.broker.share.share_partition import Acknowledgement, SharePartition
from ottla.protocol.errors import KafkaError

KEY = SharePartitionKey("group", bytes(16), 0)
LIMITS = GroupLimits()


def share_partition(
    start_offset: int = 0,
    batches: Iterable[StateBatch] = (),
    limits: GroupLimits = LIMITS,
) -> SharePartition:
    state = PersistedState(0, start_offset, tuple(batches))
    return SharePartition(KEY, 1, state, start_offset, limits)


def log_batches(*sizes: int, base_offset: int = 0) -> list[FetchedBatch]:
    """Record batches of these sizes, one after the other."""
    found = []
    for size in sizes:
        found.append(FetchedBatch(base_offset, base_offset + size - 1))
        base_offset += size
    return found


def acquire(
    partition: SharePartition,
    fetched: Sequence[FetchedBatch],
    *,
    member: str = "m",
    max_records: int = 500,
    batch_size: int = 500,
    is_record_limit: bool = False,
    now_ms: int = 0,
    aborted: Iterable[tuple[int, int]] = (),
) -> list[AcquiredRecords]:
    """What a member acquires at the next fetch offset; what the log has below it is not fetched."""
    offset = partition.next_fetch_offset()
    return partition.acquire(
        AcquireRequest(member, max_records, batch_size, is_record_limit, now_ms),
        offset,
        [batch for batch in fetched if batch.last_offset >= offset],
        aborted,
    )


def acknowledge(
    partition: SharePartition, first: int, last: int, *types: int, member: str = "m"
) -> None:
    """Acknowledges and stores at once."""
    partition.commit(partition.acknowledge(member, [Acknowledgement(first, last, types)], 0))


def states(partition: SharePartition) -> list[tuple[int, int, int, int]]:
    """(first offset, last offset, state, delivery count) of each batch in flight."""
    return [
        (batch.first_offset, batch.last_offset, batch.state, batch.delivery_count)
        for batch in partition.window.batches
    ]


class MemoryPersister:
    """Satisfies `ShareStatePersister`; `next_error` fails the next call, and writes wait for `gate`
    if it is set."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, dict[int, tuple[int, int]]] = {}
        self.start_offsets: dict[SharePartitionKey, int] = {}
        self.next_error = 0
        self.gate: asyncio.Event | None = None
        self.delivery_complete_count = -1
        self.writes: list[StateUpdate] = []

    def _fail(self) -> None:
        if self.next_error:
            error, self.next_error = self.next_error, 0
            raise KafkaError(error)

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        self._fail()
        self.start_offsets[key] = start_offset

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> PersistedState:
        self._fail()
        start_offset = self.start_offsets.get(key, -1)
        rows = sorted(self.states.get(key, {}).items())
        return PersistedState(0, start_offset, tuple(StateBatch(at, at, *row) for at, row in rows))

    async def write(self, key: SharePartitionKey, update: StateUpdate) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self._fail()
        self.writes.append(update)
        self.start_offsets[key] = update.start_offset
        for first, last, state, count in update.batches:
            for offset in range(first, last + 1):
                self.states.setdefault(key, {})[offset] = (state, count)

    async def delete(self, key: SharePartitionKey) -> None:
        self._fail()
        self.states.pop(key, None)
        self.start_offsets.pop(key, None)

    async def summary(self, key: SharePartitionKey, leader_epoch: int) -> StateSummary:
        self._fail()
        return StateSummary(
            0, leader_epoch, self.start_offsets.get(key, -1), self.delivery_complete_count
        )
