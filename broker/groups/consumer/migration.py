"""Online migration of groups between the classic and the consumer group protocol (KIP-848).

A classic group is upgraded when a member that uses the consumer group protocol joins it. A consumer
group is downgraded when the last such member leaves. `group.consumer.migration.policy` allows each
of the two. Empty groups are always converted.
"""

import logging
from collections.abc import Callable

from ottla.broker.coordination.ports import WallClock
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.classic.member import Member
from ottla.broker.groups.classic.rebalance import Rebalancer
from ottla.broker.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE
from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
from ottla.broker.groups.consumer.draft import GroupDraft
from ottla.broker.groups.consumer.member import (
    Assignment,
    ClassicProtocols,
    ConsumerMember,
    MemberState,
)
from ottla.broker.groups.consumer.records import (
    GroupEpoch,
    MemberSubscription,
    TargetAssignment,
    TargetEpoch,
    current_assignment,
)
from ottla.broker.groups.log.group_writer import Drafting
from ottla.broker.groups.log.partition import GroupPartitions
from ottla.broker.groups.log.records import (
    group_key,
    group_value,
    read_group_value,
)
from ottla.broker.groups.settings import GroupSettings
from ottla.protocol.codec import read_stored_version
from ottla.protocol.consumer_protocol import (
    Assignment as NamedAssignment,
)
from ottla.protocol.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.steps import Steps, run_at_once
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.groups")

UPGRADE = frozenset(("upgrade", "bidirectional"))
DOWNGRADE = frozenset(("downgrade", "bidirectional"))


class Migration:
    """Drafts a group of one protocol from a group of the other."""

    def __init__(
        self,
        settings: GroupSettings,
        partitions: GroupPartitions,
        rebalancer: Rebalancer,
        catalog: ClusterTopics,
        clock: WallClock,
    ) -> None:
        self._settings = settings
        self._partitions = partitions
        self._rebalancer = rebalancer
        self._catalog = catalog
        self._clock = clock

    # Upgrade.

    def upgrade(self, group: Group) -> Steps[GroupDraft | None]:
        """Return the classic group as a consumer group; None when it cannot be upgraded.

        In a pause its members may expire, a rebalance may complete and an assignment be stored: see
        `is_outdated`. Their other requests wait for the writer of the group.
        """
        if not group.is_empty and not self._can_upgrade(group):
            return None
        draft = GroupDraft(ConsumerGroup(group.group_id), self._catalog)
        draft.replaces, draft.replaced = group, _snapshot(group)
        draft.put_tombstone(group_key(group.group_id))
        if not group.is_empty:
            try:
                yield from self._convert(group, draft)
            except ProtocolError as problem:
                logger.warning(
                    "Cannot upgrade classic group %s: a member has unreadable metadata: %s",
                    group.group_id,
                    problem,
                    extra={"group": group.group_id},
                )
                return None
        return draft

    def _can_upgrade(self, group: Group) -> bool:
        return (
            not group.is_dead
            and self._settings.group_consumer_migration_policy in UPGRADE
            and group.is_consumer_group
            and len(group.members) <= self._settings.group_consumer_max_size
        )

    def is_outdated(self, draft: GroupDraft) -> bool:
        """Return whether the classic group that this draft converts has changed since."""
        group = draft.replaces
        return group is not None and (
            self._partitions.find(group.group_id) is not group or _snapshot(group) != draft.replaced
        )

    def _convert(self, group: Group, draft: GroupDraft) -> Steps[None]:
        """Members start with the last assignment of the classic group."""
        group_id, epoch = group.group_id, group.generation_id
        protocol_name = group.protocol_name or group.select_protocol()
        members = []
        for member in list(group.members.values()):
            members.append(self._consumer_member(member, protocol_name, epoch))
            yield
        yield from draft.put_all(
            MemberSubscription(group_id, member.member_id, member) for member in members
        )
        draft.put(GroupEpoch(group_id, epoch))
        yield from draft.put_all(
            TargetAssignment(group_id, member.member_id, member.assigned) for member in members
        )
        draft.put(TargetEpoch(group_id, epoch))
        yield from draft.put_all(current_assignment(group_id, member) for member in members)

    def _consumer_member(self, member: Member, protocol_name: str, epoch: int) -> ConsumerMember:
        subscription = decode_subscription(member.metadata(protocol_name))
        assigned: Assignment = {}
        if member.assignment:
            assigned = self.by_topic_id(decode_assignment(member.assignment).partitions)
        return ConsumerMember(
            member.member_id,
            member.instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            frozenset(subscription.topics),
            classic=ClassicProtocols(member.session_timeout_ms, member.protocols),
            epoch=epoch,
            previous_epoch=epoch,
            state=MemberState.STABLE,
            assigned=assigned,
        )  # the record of its assignment gives each partition this epoch

    def begin_upgrade(self, group: Group) -> None:
        """The change is being appended: completes the pending requests of the classic group."""
        group.is_upgrading = True
        self._rebalancer.mark_dead(group, ErrorCode.REBALANCE_IN_PROGRESS)

    def abort_upgrade(self, group: Group) -> None:
        """The append failed: the classic group continues with its last assignment."""
        group_partition = self._partitions.home_of(group.group_id)
        if group_partition is None or group_partition.groups.get(group.group_id) is not group:
            return
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        if group.members and group.protocol_name is None:
            group.protocol_name = group.select_protocol()
        value = run_at_once(group_value(group, assignments))
        again = run_at_once(read_group_value(group.group_id, value, self._clock()))
        again.offsets = group.offsets
        group_partition.groups[group.group_id] = again
        self._rebalancer.on_group_loaded(again)

    # Downgrade.

    def downgrade(
        self, group: ConsumerGroup, leaving_id: str, done: Callable[[int], None]
    ) -> Drafting:
        """Return the change to a classic group without the leaving member.

        None if the group cannot be downgraded.
        """
        if not self._can_downgrade(group, leaving_id):
            return None
        draft = GroupDraft(group, self._catalog)
        yield from draft.delete()
        try:
            classic = yield from self._classic_group(group, leaving_id)
        except ProtocolError as problem:
            logger.warning(
                "Cannot downgrade consumer group %s: a member has unreadable metadata: %s",
                group.group_id,
                problem,
                extra={"group": group.group_id},
            )
            return None
        assignments = {member.member_id: member.assignment for member in classic.members.values()}
        value = yield from group_value(classic, assignments)
        draft.put_raw(group_key(group.group_id), value)
        # As the record has it, not as it was converted: so every coordinator has the same group.
        loaded = yield from read_group_value(group.group_id, value, self._clock())

        def on_result(error_code: int) -> None:
            if not error_code:
                self._downgraded(group.group_id)
            done(error_code)

        return draft.change(on_result, converts=True, classic=loaded)

    def _can_downgrade(self, group: ConsumerGroup, leaving_id: str) -> bool:
        left = len(group.members) - 1
        return (
            left > 0
            and group.classic_member_count == left
            and group.members[leaving_id].classic is None
            and self._settings.group_consumer_migration_policy in DOWNGRADE
            and left <= self._settings.group_max_size
        )

    def _classic_group(self, group: ConsumerGroup, leaving_id: str) -> Steps[Group]:
        classic = Group(group.group_id, self._clock())
        classic.generation_id = group.epoch
        for member in group.members.values():
            yield
            if member.member_id == leaving_id or member.classic is None:
                continue
            joined = Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                CONSUMER_PROTOCOL_TYPE,
                member.classic.protocols,
            )
            classic.add(joined, None)
        classic.protocol_name = classic.select_protocol()
        for joined in classic.members.values():
            yield
            version = read_stored_version(joined.metadata(classic.protocol_name))
            target = self.by_name(group.target_of(joined.member_id))
            joined.assignment = encode_assignment(NamedAssignment(target), version)
        return classic

    def on_late_downgrade(self, group: Group) -> None:
        """The append of a downgrade timed out, but was replayed: starts the sessions."""
        if not group.is_empty and not group.is_dead:
            self._rebalancer.on_group_loaded(group)
            self._rebalancer.maybe_prepare_rebalance(
                group, f"Downgraded group {group.group_id} from consumer to classic."
            )

    def _downgraded(self, group_id: str) -> None:
        group = self._partitions.find(group_id)
        if group is not None and group.kind == "classic" and not group.is_empty:
            logger.info(
                "Downgraded group %s from consumer to classic", group_id, extra={"group": group_id}
            )
            self._rebalancer.on_group_loaded(group)
            self._rebalancer.maybe_prepare_rebalance(
                group, f"Downgraded group {group.group_id} from consumer to classic."
            )

    # Names and ids of topics.

    def by_topic_id(self, partitions: list[TopicPartition]) -> Assignment:
        """Deleted topics are left out."""
        found: dict[bytes, set[int]] = {}
        for name, index in partitions:
            topic = self._catalog.describe(name)
            if topic is not None:
                found.setdefault(topic.topic_id, set()).add(index)
        return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}

    def by_name(self, assignment: Assignment) -> list[TopicPartition]:
        """Deleted topics are left out."""
        return [
            TopicPartition(name, index)
            for topic_id, indexes in assignment.items()
            if (name := self._catalog.name_of(topic_id)) is not None
            for index in sorted(indexes)
        ]


def _snapshot(group: Group) -> object:
    """Return all that an upgrade reads of the group, to detect changes."""
    return (
        group.state,
        group.generation_id,
        group.protocol_name,
        [
            (member, member.member_id, member.protocols, member.assignment)
            for member in group.members.values()
        ],
    )
