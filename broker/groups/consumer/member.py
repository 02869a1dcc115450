"""One member of a consumer group (KIP-848); immutable, each change creates another."""

from enum import IntEnum
from typing import NamedTuple

Assignment = dict[bytes, frozenset[int]]
"""Partitions by topic id. Not modified once it is in a member; no topic has an empty set."""

LEAVING = -1  # the epoch in the heartbeat of a member that leaves
AWAY = -2  # the epoch of a static member that left and may rejoin
NEVER_JOINED = 0

NOTHING: Assignment = {}

Epochs = dict[bytes, dict[int, int]]
"""The epoch of each partition by topic id; not modified once it is in a member."""

NO_EPOCHS: Epochs = {}


class MemberState(IntEnum):
    """The state of the reconciliation of a member; the numbers are those of the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # has to revoke partitions first
    UNRELEASED_PARTITIONS = 2  # waits for partitions that other members have not revoked
    UNKNOWN = 127  # a state of a later version


class ClassicProtocols(NamedTuple):
    """The parameters of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMember(NamedTuple):
    """The metadata of a member and its current assignment."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = frozenset()
    topic_regex: str | None = None
    assignor: str | None = None
    classic: ClassicProtocols | None = None
    # The fields from here on are in the record of its current assignment.
    epoch: int = NEVER_JOINED
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    # The member epoch with which each partition of both was assigned (KIP-1251).
    assigned_at: Epochs = NO_EPOCHS

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    def with_epoch(self, epoch: int) -> "ConsumerMember":
        return self._replace(epoch=epoch, previous_epoch=self.epoch)

    def assignment_epoch(self, topic_id: bytes, index: int) -> int | None:
        """Return the epoch with which a partition was assigned; None if it is not the member's."""
        return self.assigned_at.get(topic_id, {}).get(index)

    def epochs_of(self, *assignments: Assignment) -> Epochs:
        """Return the epochs of these partitions; new ones get the epoch of the member.

        So do those of records without epochs, which Kafka before 4.3 writes.
        """
        epoch = max(self.epoch, 0)  # a static member that is away has a negative one
        found: Epochs = {}
        for assignment in assignments:
            for topic_id, indexes in assignment.items():
                known = self.assigned_at.get(topic_id, {})
                row = found.setdefault(topic_id, {})
                row.update((index, known.get(index, epoch)) for index in indexes)
        return found


def is_subset(owned: Assignment, of: Assignment) -> bool:
    return all(indexes <= of.get(topic_id, frozenset()) for topic_id, indexes in owned.items())


def overlaps(one: Assignment, other: Assignment) -> bool:
    return any(not indexes.isdisjoint(other.get(topic, ())) for topic, indexes in one.items())
