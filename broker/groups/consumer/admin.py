"""Describes and deletes consumer groups (KIP-848), and finds their expired offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
from ottla.broker.groups.consumer.draft import GroupDraft
from ottla.broker.groups.consumer.member import Assignment, ConsumerMember
from ottla.broker.groups.log.appender import offset_error
from ottla.broker.groups.log.group_writer import Change, GroupWriter
from ottla.broker.groups.log.partition import GroupPartitions
from ottla.broker.groups.log.records import offset_key
from ottla.broker.groups.settings import GroupSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import Assignment as AssignmentMessage
from ottla.protocol.messages.consumer_group_describe import DescribedGroup, Member, TopicPartitions
from ottla.protocol.steps import Steps, run_at_once
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.groups")

# Tombstones of one batch: a step takes 0.6 ms, and a batch is far below max.message.bytes.
_OFFSETS_PER_CHANGE = 64

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


class ConsumerAdmin:
    """Administrative requests, and the expiration of offsets."""

    def __init__(
        self,
        settings: GroupSettings,
        partitions: GroupPartitions,
        writer: GroupWriter,
        catalog: ClusterTopics,
    ) -> None:
        self._settings = settings
        self._partitions = partitions
        self._writer = writer
        self._catalog = catalog

    def describe(self, group_id: str) -> Steps[DescribedGroup]:
        """Describe a group, its members, and their current and target assignments.

        All of it is of one moment, except that topics deleted in a pause are left out.
        """
        error, group = self._partitions.look_up(group_id)
        if not error and (group is None or group.kind != "consumer"):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if error or group is None or group.kind != "consumer":
            return DescribedGroup(error_code=error, group_id=group_id)
        targets = [(member, group.target_of(member.member_id)) for member in group.members.values()]
        found = DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.preferred_assignor() or self._settings.group_consumer_assignors[0],
        )
        for member, target in targets:
            found.members.append(self._member(member, target))
            yield
        return found

    def _member(self, member: ConsumerMember, target: Assignment) -> Member:
        return Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            subscribed_topic_regex=member.topic_regex or "",
            assignment=self._assignment(member.assigned),
            target_assignment=self._assignment(target),
            member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
        )

    def _assignment(self, assignment: Assignment) -> AssignmentMessage:
        """Deleted topics are left out."""
        return AssignmentMessage(
            [
                TopicPartitions(topic_id, name, sorted(indexes))
                for topic_id, indexes in assignment.items()
                if (name := self._catalog.name_of(topic_id)) is not None
            ]
        )

    def delete(self, group_id: str, reason: str, on_result: Callable[[int], None]) -> None:
        """Append tombstones for a group without members and for its offsets. Other requests of the
        group wait until all are committed."""
        left: list[TopicPartition] = []
        home = self._partitions.home_of(group_id)

        def result(error_code: int) -> None:
            on_result(offset_error(error_code))

        def step(error_code: int) -> Change | None:
            group = None if error_code else self._partitions.find(group_id)
            if not error_code:
                if self._partitions.home_of(group_id) is not home:
                    error_code = ErrorCode.NOT_COORDINATOR  # loaded again meanwhile
                elif group is None:
                    error_code = ErrorCode.GROUP_ID_NOT_FOUND
                elif group.kind != "consumer" or not group.is_empty:
                    # A member joined while this request was queued.
                    error_code = ErrorCode.NON_EMPTY_GROUP
            if error_code or group is None or group.kind != "consumer":
                on_result(error_code)
                return None
            if not left:
                left.extend(group.offsets.partitions())
                left.reverse()  # taken from the end
            draft = GroupDraft(group, self._catalog)
            for partition in reversed(left[-_OFFSETS_PER_CHANGE:]):
                draft.put_tombstone(offset_key(group_id, partition))
            del left[-_OFFSETS_PER_CHANGE:]
            if left:
                return draft.change(result, then=step)
            run_at_once(draft.delete())  # it has no members
            logger.info("Group %s was removed: %s", group_id, reason, extra={"group": group_id})
            return draft.change(result)

        self._writer.submit(group_id, step)

    def expired_offsets(
        self, group: ConsumerGroup, partitions: Collection[TopicPartition], now_ms: int
    ) -> list[TopicPartition]:
        """Return the partitions with an expired offset and no subscription to the topic."""
        return group.offsets.expired(
            now_ms,
            self._settings.offsets_retention_ms,
            base_timestamp_ms=None,
            subscribed_topics=frozenset(
                topic
                for topic in {partition.topic for partition in partitions}
                if group.is_subscribed_to(topic)
            ),
            partitions=partitions,
        )
