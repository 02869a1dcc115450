"""A change of a consumer group (KIP-848) on its way to the log: records, and what they lead to.

The draft replays its records on a copy of the group, so whatever is computed next sees them, and
nobody else does. The group itself changes when the records are committed and replayed on it.
"""

from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
from ottla.broker.groups.consumer.member import ConsumerMember
from ottla.broker.groups.consumer.records import (
    CurrentAssignment,
    GroupEpoch,
    GroupRecord,
    MemberSubscription,
    SubscribedTopics,
    TargetAssignment,
    TargetEpoch,
    current_assignment,
    encode_record,
)
from ottla.broker.groups.consumer.server_assignors import assign
from ottla.broker.groups.consumer.topic_catalog import TopicCatalog

Record = tuple[bytes, bytes | None]


class GroupDraft:
    """Records to write, in order, and the group as it will be."""

    def __init__(self, group: ConsumerGroup, catalog: TopicCatalog) -> None:
        self.group = group
        self.records: list[Record] = []
        # The classic group that ends with this change.
        self.replaces: Group | None = None
        self._catalog = catalog
        self._is_copy = False

    def put(self, record: GroupRecord) -> None:
        if not self._is_copy:
            self.group = self.group.copy()
            self._is_copy = True
        self.group.replay(record)
        self.records.append(encode_record(record))

    def put_tombstone(self, key: bytes) -> None:
        """Something goes that is none of this group's records."""
        self.records.append((key, None))

    # Members.

    def put_subscription(self, before: ConsumerMember, after: ConsumerMember) -> bool:
        """Write what a member asks for when it changed; true when its topics did."""
        if after == before and after.member_id in self.group.members:
            return False
        self.put(MemberSubscription(self.group.group_id, after.member_id, after))
        return after.topics != before.topics or after.topic_regex != before.topic_regex

    def put_current(self, member: ConsumerMember) -> None:
        self.put(current_assignment(self.group.group_id, member))

    def remove_member(self, member_id: str) -> None:
        group_id = self.group.group_id
        self.put(CurrentAssignment(group_id, member_id, None))
        self.put(TargetAssignment(group_id, member_id, None))
        self.put(MemberSubscription(group_id, member_id, None))

    def replace_static_member(self, old: ConsumerMember, new_member_id: str) -> ConsumerMember:
        """The instance is back under a new id, with the target and the partitions it had."""
        group_id = self.group.group_id
        target = self.group.target_of(old.member_id)
        self.remove_member(old.member_id)
        member = old._replace(member_id=new_member_id, epoch=0, previous_epoch=0)
        self.put(MemberSubscription(group_id, new_member_id, member))
        self.put(TargetAssignment(group_id, new_member_id, target))
        self.put_current(member)
        return member

    # The group.

    def refresh_topics(self) -> bool:
        """Look at the members' topics anew; true when something about them is different."""
        topics = {}
        for name in sorted(self._subscribed_names()):
            found = self._catalog.describe(name)
            if found is not None:
                topics[name] = found
        if topics == self.group.topics:
            return False
        self.put(SubscribedTopics(self.group.group_id, topics))
        return True

    def _subscribed_names(self) -> set[str]:
        return {name for member in self.group.members.values() for name in self._topics_of(member)}

    def _topics_of(self, member: ConsumerMember) -> frozenset[str]:
        if member.topic_regex is None:
            return member.topics
        return member.topics | self._catalog.matching(member.topic_regex)

    def bump_epoch(self) -> None:
        self.put(GroupEpoch(self.group.group_id, self.group.epoch + 1))

    def update_target(self, default_assignor: str) -> None:
        """Assign anew for the group's epoch; writes only what is different."""
        group = self.group
        targets = assign(
            group.preferred_assignor() or default_assignor,
            group.members.values(),
            group.topics,
            {member.member_id: self._topics_of(member) for member in group.members.values()},
            group.targets,
        )
        for member_id, target in targets.items():
            if group.targets.get(member_id) != target:
                self.put(TargetAssignment(group.group_id, member_id, target))
        self.put(TargetEpoch(group.group_id, self.group.epoch))

    def delete(self) -> None:
        """Tombstones for all that the group wrote; its offsets are not its own."""
        group = self.group
        group_id, member_ids = group.group_id, list(group.members)
        for member_id in member_ids:
            self.put(CurrentAssignment(group_id, member_id, None))
        for member_id in member_ids:
            self.put(TargetAssignment(group_id, member_id, None))
        self.put(TargetEpoch(group_id, None))
        for member_id in member_ids:
            self.put(MemberSubscription(group_id, member_id, None))
        self.put(SubscribedTopics(group_id, None))
        self.put(GroupEpoch(group_id, None))
