"""What one partition of `__consumer_offsets` says: its groups and their offsets.

Committed offsets, deletions and transaction markers change memory in one way only: by replaying
the record that says so. The same three methods are called when the record of a request is
committed and when the log is read back after a restart or a change of leader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.broker.coordination.ports import WallClock
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.log.loader import GroupLoader
from ottla.broker.groups.offsets import CommittedOffset
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
    from ottla.broker.groups.consumer.records import GroupRecord

    AnyGroup = Group | ConsumerGroup


class GroupPartition:
    """The groups of one partition, for one term of leadership."""

    __slots__ = (
        "_clock",
        "groups",
        "has_consumer_groups",
        "index",
        "leader_epoch",
        "open_transactions",
        "records_skipped",
    )

    def __init__(
        self, index: int, leader_epoch: int, clock: WallClock, *, has_consumer_groups: bool = False
    ) -> None:
        """`has_consumer_groups`: whether groups of the newer protocol (KIP-848) are served."""
        self.index = index
        self.leader_epoch = leader_epoch
        self.has_consumer_groups = has_consumer_groups
        self.groups: dict[str, AnyGroup] = {}
        # Which groups have offsets in the open transaction of a producer.
        self.open_transactions: dict[int, set[str]] = {}
        self.records_skipped = 0
        self._clock = clock

    def replay_log(self, chunks: Iterator[memoryview]) -> Iterator[None]:
        """Take in the log of the partition, batch by batch."""
        return GroupLoader(self, self._clock).run(chunks)

    @property
    def is_empty(self) -> bool:
        return not self.groups and not self.records_skipped

    def describe(self) -> str:
        offsets = sum(len(group.offsets.committed) for group in self.groups.values())
        skipped = f", {self.records_skipped} unreadable records" if self.records_skipped else ""
        return f"{len(self.groups)} groups, {offsets} committed offsets{skipped}"

    def find_or_create(self, group_id: str) -> AnyGroup:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self._clock())
        return group

    def replay_offset(
        self,
        group_id: str,
        partition: TopicPartition,
        value: CommittedOffset | None,
        at: int,
        producer_id: int | None = None,
    ) -> None:
        """A commit (or, with None, its tombstone) at log offset `at`.

        With a producer id it is part of that producer's open transaction.
        """
        group = self.groups.get(group_id)
        if group is None:
            if value is None:
                return
            group = self.find_or_create(group_id)
        if producer_id is None:
            group.offsets.replay(partition, value, at)
        else:
            group.offsets.replay_transactional(producer_id, partition, value)
            self.open_transactions.setdefault(producer_id, set()).add(group_id)

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """The end of a producer's transaction."""
        for group_id in self.open_transactions.pop(producer_id, ()):
            group = self.groups.get(group_id)
            if group is not None and not group.is_deleted:
                group.offsets.replay_marker(producer_id, committed)

    def replay_group(self, group_id: str, loaded: Group | None) -> None:
        """The state of a classic group as its record describes it; None when it was deleted.

        Offsets have records of their own and outlive the group's.
        """
        known = self.groups.get(group_id)
        if loaded is None:
            if known is None or known.kind != "classic":
                return
            if not known.offsets:
                del self.groups[group_id]
                return
            loaded = Group(group_id, self._clock())
        if known is not None:
            loaded.offsets = known.offsets
        self.groups[group_id] = loaded

    def replay_consumer_group(self, record: GroupRecord) -> None:
        """A record of a group of the newer protocol, which its first one creates."""
        group_id = record.group_id
        known = self.groups.get(group_id)
        if known is None or known.kind != "consumer":
            if record.is_tombstone:
                return
            from ottla.broker.groups.consumer.consumer_group import ConsumerGroup

            group = ConsumerGroup(group_id)
            if known is not None:
                group.offsets = known.offsets
            self.groups[group_id] = known = group
        known.replay(record)
        if known.is_gone:
            # What it committed stays, as the offsets of a group without members.
            del self.groups[group_id]
            if known.offsets:
                self.find_or_create(group_id).offsets = known.offsets
