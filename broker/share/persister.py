"""The durable state of share partitions, and what reads and writes it.

Mirrors Kafka's `Persister`. Leaders of partitions and the group coordinator use this interface; the
share coordinator stands behind it, in this process or on another broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

#: The start offset of a share partition that nothing has read yet; the leader then chooses one by
#: `share.auto.offset.reset`.
UNINITIALIZED_START_OFFSET = -1
UNKNOWN_DELIVERY_COMPLETE_COUNT = -1


class RecordState:
    """The states of a record in a share partition, by the numbers of Kafka's `RecordState`."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


class SharePartitionKey(NamedTuple):
    """One partition of a topic, as one share group consumes it."""

    group_id: str
    topic_id: bytes
    partition: int


class StateBatch(NamedTuple):
    """Records with the same state and delivery count; both offsets are inclusive."""

    first_offset: int
    last_offset: int
    state: int
    delivery_count: int


class PersistedState(NamedTuple):
    """The result of `read`; the batches are sorted and do not overlap."""

    state_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]


class StateUpdate(NamedTuple):
    """The batches that changed, with the start offset at this time."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class StateSummary(NamedTuple):
    """The offsets from which the lag of a share partition is computed."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int


def merged(batches: Iterable[StateBatch]) -> Iterable[StateBatch]:
    """Adjacent batches with the same state and delivery count become one."""
    last: StateBatch | None = None
    for batch in batches:
        if last is None:
            last = batch
        elif batch.first_offset == last.last_offset + 1 and batch[2:] == last[2:]:
            last = last._replace(last_offset=batch.last_offset)
        else:
            yield last
            last = batch
    if last is not None:
        yield last


class ShareStatePersister(Protocol):
    """Every method raises KafkaError with the error code of the share coordinator.

    Each has a deadline; when it passes, the error is REQUEST_TIMED_OUT and the outcome is unknown.
    """

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Create the state; durable on return. FENCED_STATE_EPOCH for an older state epoch."""
        ...

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> PersistedState:
        """Return the state; writes with a lower leader epoch fail from now on."""
        ...

    async def write(self, key: SharePartitionKey, update: StateUpdate) -> None:
        """Store changed batches; durable on return. FENCED_STATE_EPOCH or FENCED_LEADER_EPOCH when
        another leader or a reset of the offsets came first: nothing is stored then."""
        ...

    async def delete(self, key: SharePartitionKey) -> None:
        """Remove the state; durable on return. No error when there is none."""
        ...

    async def summary(self, key: SharePartitionKey, leader_epoch: int) -> StateSummary:
        """As `read`, without batches; it fences no leader."""
        ...
