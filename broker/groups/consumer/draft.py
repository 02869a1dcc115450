"""An uncommitted change of a consumer group (KIP-848): its records, and the resulting group.

The draft replays its records on a copy of the group, which only the computation of the change sees.
The group itself changes when the records are committed and replayed.
"""

from collections.abc import Callable, Iterable

from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
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
from ottla.broker.groups.log.group_writer import Change, Step
from ottla.protocol.steps import Steps, run_at_once

Record = tuple[bytes, bytes | None]


class GroupDraft:
    """The records to append, in order, and the group after their replay."""

    def __init__(self, group: ConsumerGroup, catalog: ClusterTopics) -> None:
        self.group = group
        self.records: list[Record] = []
        # For each of them, None for one that is not of a consumer group.
        self.decoded: list[GroupRecord | None] = []
        # The classic group that this change converts, and what it was then.
        self.replaces: Group | None = None
        self.replaced: object = None
        self._catalog = catalog
        self._is_copy = False

    def put(self, record: GroupRecord) -> None:
        if not self._is_copy:
            self.group = self.group.copy()
            self._is_copy = True
        self.group.replay(record)
        self.records.append(encode_record(record))
        self.decoded.append(record)

    def put_tombstone(self, key: bytes) -> None:
        """Delete a record that is not one of the consumer group, such as an offset."""
        self.put_raw(key, None)

    def put_raw(self, key: bytes, value: bytes | None) -> None:
        """Put a record that is not one of the consumer group."""
        self.records.append((key, value))
        self.decoded.append(None)

    def change(
        self,
        on_result: Callable[[int], None],
        *,
        converts: bool = False,
        classic: Group | None = None,
        then: Step | None = None,
    ) -> Change:
        """Return the change to append.

        `converts`: to or from the classic protocol; `classic` is the resulting group of that
        protocol. `then` continues a change of which this is a part.
        """
        converted = self.group if converts else None
        return Change(self.records, on_result, self.decoded, converted, classic, then)

    # Members.

    def put_subscription(self, before: ConsumerMember, after: ConsumerMember) -> bool:
        """Put the member's metadata if it changed; return whether its subscription did."""
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
        """A static member rejoined with a new id: it takes over the target and the partitions."""
        group_id = self.group.group_id
        target = self.group.target_of(old.member_id)
        self.remove_member(old.member_id)
        member = old._replace(member_id=new_member_id, epoch=0, previous_epoch=0)
        self.put(MemberSubscription(group_id, new_member_id, member))
        self.put(TargetAssignment(group_id, new_member_id, target))
        self.put_current(member)
        return member

    # The group.

    # In a pause the catalog may change, the group does not.

    def refresh_topics(self) -> Steps[bool]:
        """Update the metadata of the subscribed topics; return whether it changed."""
        names: set[str] = set()
        for member in list(self.group.members.values()):
            names |= member.topics
            if member.topic_regex is not None:
                names |= yield from self._catalog.matching(member.topic_regex)
            yield
        topics = {}
        for name in sorted(names):
            found = self._catalog.describe(name)
            if found is not None:
                topics[name] = found
            yield
        if topics == self.group.topics:
            return False
        self.put(SubscribedTopics(self.group.group_id, topics))
        return True

    def _topics_of(self, member: ConsumerMember) -> frozenset[str]:
        if member.topic_regex is None:
            return member.topics
        # Known already, unless the catalog has changed in a pause.
        return member.topics | run_at_once(self._catalog.matching(member.topic_regex))

    def bump_epoch(self) -> None:
        self.put(GroupEpoch(self.group.group_id, self.group.epoch + 1))

    def update_target(self, default_assignor: str) -> Steps[None]:
        """Compute the target assignment of the group epoch; put only the differences."""
        group = self.group
        targets = yield from assign(
            group.preferred_assignor() or default_assignor,
            list(group.members.values()),
            group.topics,
            self._topics_of,
            group.targets,
        )
        for member_id, target in targets.items():
            if group.targets.get(member_id) != target:
                self.put(TargetAssignment(group.group_id, member_id, target))
                yield
        self.put(TargetEpoch(group.group_id, self.group.epoch))

    def put_all(self, records: Iterable[GroupRecord]) -> Steps[None]:
        for record in records:
            self.put(record)
            yield

    def delete(self) -> Steps[None]:
        """Put tombstones for all records of the group, but not for its offsets."""
        group = self.group
        group_id, member_ids = group.group_id, list(group.members)
        yield from self.put_all(CurrentAssignment(group_id, each, None) for each in member_ids)
        yield from self.put_all(TargetAssignment(group_id, each, None) for each in member_ids)
        self.put(TargetEpoch(group_id, None))
        yield from self.put_all(MemberSubscription(group_id, each, None) for each in member_ids)
        self.put(SubscribedTopics(group_id, None))
        self.put(GroupEpoch(group_id, None))
