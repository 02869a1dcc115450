"""A consumer group (KIP-848): the coordinator assigns, members reconcile one by one.

    Empty        the group has no members
    Assigning    the group epoch is newer than the epoch of the target assignment
    Reconciling  some members have not reached the target assignment
    Stable       all members have

The state follows from the records; no rebalance stops all members. Only `replay` changes memory,
also while a change is being drafted (on a copy, see `GroupDraft`).
"""

from enum import Enum
from typing import Literal

from ottla.broker.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE
from ottla.broker.groups.consumer.cluster_topics import TopicDescription
from ottla.broker.groups.consumer.member import (
    NEVER_JOINED,
    NO_EPOCHS,
    NOTHING,
    Assignment,
    ConsumerMember,
    MemberState,
)
from ottla.broker.groups.consumer.records import (
    CurrentAssignment,
    GroupEpoch,
    GroupRecord,
    MemberSubscription,
    SubscribedTopics,
    TargetAssignment,
    TargetEpoch,
)
from ottla.broker.groups.offsets import GroupOffsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition

NO_ASSIGNMENT_EPOCH = 0
# The first version of OffsetCommit with the errors of the consumer group protocol.
FIRST_COMMIT_WITH_EPOCHS = 9


class ConsumerGroupState(Enum):
    """The states, by the names in responses to clients."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup:
    """Members, epochs, target assignments and offsets of one group."""

    kind: Literal["consumer"] = "consumer"
    protocol_type = CONSUMER_PROTOCOL_TYPE
    is_consumer_group = True

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.offsets = GroupOffsets()
        self.epoch = 0
        # Whether its epoch record exists; if not, the group is being created or deleted.
        self.is_recorded = False
        self.assignment_epoch = NO_ASSIGNMENT_EPOCH
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        self.targets: dict[str, Assignment] = {}
        # The subscribed topics when the target assignment was computed.
        self.topics: dict[str, TopicDescription] = {}
        # The member that owns (or has still to revoke) a partition of a topic id.
        self.owners: dict[tuple[bytes, int], str] = {}
        # The version of the catalog that the topics were compared with last; not in a record.
        self.seen_catalog: object = None
        self.is_dead = False

    @property
    def is_deleted(self) -> bool:
        """Its deletion is a change as others; until it is committed nothing is deleted."""
        return False

    def copy(self) -> "ConsumerGroup":
        """Another group with the same members and targets, for a draft; without the offsets."""
        copied = ConsumerGroup(self.group_id)
        copied.epoch = self.epoch
        copied.is_recorded = self.is_recorded
        copied.assignment_epoch = self.assignment_epoch
        copied.members = self.members.copy()
        copied.static_members = self.static_members.copy()
        copied.targets = self.targets.copy()
        copied.topics = self.topics
        copied.owners = self.owners.copy()
        return copied

    # Queries.

    @property
    def state(self) -> ConsumerGroupState:
        if self.is_dead:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_gone(self) -> bool:
        """Whether the log has no records of it except offsets."""
        return not self.is_recorded and not self.members

    @property
    def generation_id(self) -> int:
        """The name of the epoch in the classic protocol."""
        return self.epoch

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topics or any(
            topic in member.topics for member in self.members.values()
        )

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        return self.members.get(self.static_members.get(instance_id, ""))

    def target_of(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def is_free(self, topic_id: bytes, index: int, member_id: str) -> bool:
        """Return whether no other member owns the partition or has still to revoke it."""
        return self.owners.get((topic_id, index), member_id) == member_id

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Return whether another member still owns partitions of the member's target assignment."""
        return any(
            not self.is_free(topic_id, index, member.member_id)
            for topic_id, indexes in self.target_of(member.member_id).items()
            for index in indexes - member.assigned.get(topic_id, frozenset())
        )

    def preferred_assignor(self) -> str | None:
        """Return the assignor that most members prefer; None when no member names one."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(votes, key=votes.__getitem__) if votes else None

    # Offsets.

    def committer_error(self, member_id: str, epoch: int, *, version: int | None) -> int:
        """Return the error code when this member may not commit offsets, else 0.

        `version` is that of OffsetCommit, None for a commit in a transaction. An epoch before the
        present one is valid for the partitions that `may_commit` names.
        """
        if epoch < 0 and not self.members:
            return ErrorCode.NONE  # a consumer without group management, or an administrator
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if version is not None and member.classic is None and version < FIRST_COMMIT_WITH_EPOCHS:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch <= member.epoch:
            return ErrorCode.NONE
        return self.stale_error(member_id, is_transactional=version is None)

    def stale_error(self, member_id: str, *, is_transactional: bool) -> int:
        """Return the error code for a commit with an old epoch."""
        member = self.members.get(member_id)
        if is_transactional or member is None or member.classic is not None:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.STALE_MEMBER_EPOCH

    def may_commit(self, member_id: str, epoch: int, partition: TopicPartition) -> bool:
        """Return whether an epoch is not older than the assignment of the partition (KIP-1251).

        The partition has been the member's without a break since then, so nobody else has
        committed an offset of it.
        """
        member = self.members.get(member_id)
        if member is None or member.epoch == epoch:
            return True
        topic = self.topics.get(partition.topic)
        since = (
            None if topic is None else member.assignment_epoch(topic.topic_id, partition.partition)
        )
        return since is not None and since <= epoch

    def reader_error(self, member_id: str | None, epoch: int) -> int:
        """Return the error code when this member may not fetch the group's offsets, else 0."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE  # the request names no member
        member = self.members.get(member_id or "")
        return ErrorCode.UNKNOWN_MEMBER_ID if member is None else _epoch_error(member, epoch)

    # Members that use the classic protocol.

    @property
    def classic_member_count(self) -> int:
        return sum(member.classic is not None for member in self.members.values())

    def supports_protocols(self, names: set[str]) -> bool:
        """Return whether all classic members support one of these protocols."""
        known = [
            {name for name, _ in member.classic.protocols}
            for member in self.members.values()
            if member.classic is not None
        ]
        return any(all(name in others for others in known) for name in names)

    # Replay.

    def replay(self, record: GroupRecord) -> None:
        """Replay a record. Its predecessors may be missing: compaction keeps the last of a key."""
        if isinstance(record, GroupEpoch):
            self.epoch = record.epoch or 0
            self.is_recorded = not record.is_tombstone
        elif isinstance(record, TargetEpoch):
            self.assignment_epoch = record.epoch or NO_ASSIGNMENT_EPOCH
        elif isinstance(record, SubscribedTopics):
            self.topics = record.topics or {}
        elif isinstance(record, TargetAssignment):
            if record.assignment is None:
                self.targets.pop(record.member_id, None)
            else:
                self.targets[record.member_id] = record.assignment
        elif isinstance(record, MemberSubscription):
            self._replay_subscription(record)
        elif isinstance(record, CurrentAssignment):
            self._replay_current(record)

    def _replay_subscription(self, record: MemberSubscription) -> None:
        known = self.members.get(record.member_id)
        if record.member is None:
            if known is not None:
                self._disown(known)
                del self.members[record.member_id]
                if self.static_members.get(known.instance_id or "") == record.member_id:
                    del self.static_members[known.instance_id or ""]
            return
        current = known or ConsumerMember(record.member_id)  # not part of the record
        member = record.member._replace(
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            state=current.state,
            assigned=current.assigned,
            revoking=current.revoking,
            assigned_at=current.assigned_at,
        )
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def _replay_current(self, record: CurrentAssignment) -> None:
        known = self.members.get(record.member_id)
        if known is None:
            return  # the subscription of a member is written before its assignment
        self._disown(known)
        if record.state is None:
            member = known._replace(
                epoch=NEVER_JOINED,
                previous_epoch=-1,
                state=MemberState.STABLE,
                assigned=NOTHING,
                revoking=NOTHING,
                assigned_at=NO_EPOCHS,
            )
        else:
            member = known._replace(
                epoch=record.epoch,
                previous_epoch=record.previous_epoch,
                state=record.state,
                assigned=record.assigned,
                revoking=record.revoking,
                assigned_at=record.assigned_at,
            )
            member = member._replace(assigned_at=member.epochs_of(record.assigned, record.revoking))
        self.members[record.member_id] = member
        for partitions in (member.assigned, member.revoking):
            for topic_id, indexes in partitions.items():
                for index in indexes:
                    self.owners[topic_id, index] = record.member_id

    def _disown(self, member: ConsumerMember) -> None:
        for partitions in (member.assigned, member.revoking):
            for topic_id, indexes in partitions.items():
                for index in indexes:
                    if self.owners.get((topic_id, index)) == member.member_id:
                        del self.owners[topic_id, index]


def _epoch_error(member: ConsumerMember, epoch: int) -> int:
    if epoch == member.epoch:
        return ErrorCode.NONE
    if member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH
