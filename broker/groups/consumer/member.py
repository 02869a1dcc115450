"""One member of a group of the newer protocol (KIP-848): immutable, made anew for every change."""

from enum import IntEnum
from typing import NamedTuple

Assignment = dict[bytes, frozenset[int]]
"""Partition numbers by topic id; never changed once it is in a member. No topic has none."""

LEAVING = -1  # the epoch a member leaves with
AWAY = -2  # the epoch of a static member that is expected back
NEVER_JOINED = 0

NOTHING: Assignment = {}


class MemberState(IntEnum):
    """How far a member is on the way to its target; the numbers are those of the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # has to give partitions back before it goes on
    UNRELEASED_PARTITIONS = 2  # has all but what others have not given back
    UNKNOWN = 127  # written by a later version


class ClassicProtocols(NamedTuple):
    """What a member brought that speaks the classic protocol in such a group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMember(NamedTuple):
    """What a member asked for, and what it has."""

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
    # The rest is the record of its current assignment.
    epoch: int = NEVER_JOINED
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    def with_epoch(self, epoch: int) -> "ConsumerMember":
        return self._replace(epoch=epoch, previous_epoch=self.epoch)


def is_subset(owned: Assignment, of: Assignment) -> bool:
    return all(indexes <= of.get(topic_id, frozenset()) for topic_id, indexes in owned.items())


def overlaps(one: Assignment, other: Assignment) -> bool:
    return any(not indexes.isdisjoint(other.get(topic, ())) for topic, indexes in one.items())
