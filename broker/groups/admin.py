"""Describes, lists and deletes groups, and expires offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from ottla.broker.coordination.ports import IN_LOG_ERRORS
from ottla.broker.groups.classic.group import Group, GroupState
from ottla.broker.groups.classic.rebalance import Rebalancer
from ottla.broker.groups.deleted_topics import DeletedTopics
from ottla.broker.groups.log.appender import GroupAppender, offset_error
from ottla.broker.groups.log.partition import GroupPartition, GroupPartitions
from ottla.broker.groups.log.records import group_key, offset_key
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.runtime.clock import Clock
from ottla.broker.runtime.countdown import countdown
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from ottla.protocol.steps import Steps, TurnQueue
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.admin import ConsumerAdmin
    from ottla.broker.groups.log.partition import AnyGroup
    from ottla.broker.runtime.timer import DelayQueue

logger = logging.getLogger("ottla.groups")

# Tombstones of one batch, where a group has many offsets. A batch takes 0.2 ms, and 10 us for each.
OFFSETS_PER_BATCH = 32


class GroupAdmin:
    """Administrative requests, and the removal of expired offsets and empty groups."""

    def __init__(
        self,
        settings: GroupSettings,
        partitions: GroupPartitions,
        rebalancer: Rebalancer,
        appender: GroupAppender,
        timer: DelayQueue,
        clock: Clock,
        consumer_admin: ConsumerAdmin | None,
        jobs: TurnQueue,
    ) -> None:
        """`consumer_admin` is None where the consumer protocol (KIP-848) is disabled. `jobs` runs
        work that grows with the number of groups."""
        self._retention_ms = settings.offsets_retention_ms
        self._consumer_admin = consumer_admin
        self._partitions = partitions
        self._rebalancer = rebalancer
        self._appender = appender
        self._clock = clock
        self._jobs = jobs
        #: Removes offsets of deleted topics.
        self.deleted_topics = DeletedTopics(partitions, appender, timer, jobs, self._remove_offsets)
        self._is_expiring = False

    # DescribeGroups and ListGroups.

    def describe(self, group_id: str) -> DescribedGroup:
        """Describe a classic group; members have metadata and assignments only in Stable."""
        error, group = self._partitions.look_up(group_id, allow_empty=True)
        if error:
            return DescribedGroup(error_code=error, group_id=group_id)
        if group is None or group.kind != "classic":
            return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        name = group.protocol_name if group.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=name or "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=b"" if name is None else member.metadata(name),
                    member_assignment=b"" if name is None else member.assignment,
                )
                for member in group.members.values()
            ],
        )

    def is_known(self, group_id: str) -> bool:
        """Whether there is such a group, of any protocol but share groups."""
        _, group = self._partitions.look_up(group_id, allow_empty=True)
        return group is not None and not group.is_dead

    def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> Steps[tuple[int, list[AnyGroup]]]:
        """Return an error code and the groups in one of the states and of one of the types.

        Without states or types, all of them are listed. With COORDINATOR_LOAD_IN_PROGRESS the list
        has the groups of loaded partitions. Groups created in a pause may be missing.
        """
        if not self._partitions.is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        groups: list[AnyGroup] = []
        for partition in self._partitions.active:
            for group in list(partition.groups.values()):
                if (not wanted_states or group.state.value.lower() in wanted_states) and (
                    not wanted_types or group.kind in wanted_types
                ):
                    groups.append(group)
                yield
        is_loading = self._partitions.is_loading
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE, groups

    def all_groups(self) -> Iterator[AnyGroup]:
        """Iterate over all groups of this coordinator, in no particular order."""
        for partition in self._partitions.active:
            yield from partition.groups.values()

    # DeleteGroups and OffsetDelete.

    def delete_groups(
        self, group_ids: Iterable[str], response_callback: Callable[[dict[str, int]], None]
    ) -> None:
        """Delete groups without members; respond with an error code for each."""
        results: dict[str, int] = {}
        eligible: list[AnyGroup] = []
        for group_id in group_ids:
            error, group = self._partitions.look_up(group_id, allow_empty=True)
            if not error:
                if group is None or group.is_dead:
                    error = ErrorCode.GROUP_ID_NOT_FOUND
                elif group.is_empty:
                    eligible.append(group)
                else:
                    error = ErrorCode.NON_EMPTY_GROUP
            results[group_id] = error
        completed = countdown(len(eligible), lambda: response_callback(results))

        def deleted(group_id: str, error_code: int) -> None:
            results[group_id] = error_code
            completed()

        if not eligible:
            response_callback(results)
        for group in eligible:
            self._delete(
                group, "deleted by a DeleteGroups request", partial(deleted, group.group_id)
            )

    def _delete(self, group: AnyGroup, reason: str, on_result: Callable[[int], None]) -> None:
        """Mark the group dead, append tombstones, remove it when they are in the log."""
        if group.kind == "consumer":
            assert self._consumer_admin is not None, "consumer groups exist only with it"
            self._consumer_admin.delete(group.group_id, reason, on_result)
            return
        group_partition = self._partitions.home_of(group.group_id)
        assert group_partition is not None, "the caller has checked it, without an await since"
        self._rebalancer.mark_dead(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partitions = group.offsets.partitions()  # records of pending commits come before
        # Before the first generation it has no record.
        own_keys = [group_key(group.group_id)] if group.generation_id > 0 else []

        def committed(error_code: int) -> None:
            if error_code and error_code not in IN_LOG_ERRORS:
                if self._partitions.is_active(group_partition):
                    group_partition.groups[group.group_id] = group.recreated_empty(
                        self._clock.now_ms()
                    )
                on_result(offset_error(error_code))
                return
            logger.info(
                "Group %s was removed: %s", group.group_id, reason, extra={"group": group.group_id}
            )
            self._rebalancer.record_event(group, "deleted", reason=reason)
            group_partition.groups.pop(group.group_id, None)
            on_result(offset_error(error_code))

        if len(partitions) > OFFSETS_PER_BATCH:
            # Nothing is committed in a pause, because the group is dead.
            parts = (
                [offset_key(group.group_id, partition) for partition in part]
                for part in _parts(partitions)
            )
            self._jobs.start(
                self._appender.append_tombstone_batches(
                    group_partition, chain(parts, (own_keys,)), committed
                )
            )
            return
        keys = [offset_key(group.group_id, partition) for partition in sorted(partitions)]
        keys += own_keys
        if keys:
            self._appender.append_tombstones(group_partition, keys, committed)
        else:
            committed(ErrorCode.NONE)

    def delete_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition],
        response_callback: Callable[[int, dict[TopicPartition, int]], None],
    ) -> None:
        """Delete offsets; respond with the error of the group, or one for each partition."""
        error, group = self._partitions.look_up(group_id)
        if not error and (group is None or group.is_dead):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if not error and group is not None and not group.is_empty:
            error = ErrorCode.NONE if group.is_consumer_group else ErrorCode.NON_EMPTY_GROUP
        if error or group is None:
            response_callback(error, {})
            return
        results: dict[TopicPartition, int] = {}
        to_remove = []
        for partition in partitions:
            if not group.is_empty and group.is_subscribed_to(partition.topic):
                results[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                results[partition] = ErrorCode.NONE
                to_remove.append(partition)

        def removed(error_code: int) -> None:
            for partition in to_remove:
                results[partition] = offset_error(error_code)
            response_callback(ErrorCode.NONE, results)

        self._remove_offsets(group, to_remove, "deleted by an OffsetDelete request", removed)

    def _remove_offsets(
        self,
        group: AnyGroup,
        partitions: list[TopicPartition],
        reason: str,
        on_result: Callable[[int], None],
    ) -> None:
        """Append tombstones for offsets, and delete a classic group that has nothing left."""
        group_partition = self._partitions.home_of(group.group_id)
        assert group_partition is not None, "the caller has checked it, without an await since"
        known = [partition for partition in partitions if group.offsets.values_of(partition)]

        def committed(error_code: int) -> None:
            if error_code:
                on_result(error_code)
                return
            if known:
                self._rebalancer.record_event(
                    group, "offsets removed", reason=f"{len(known)}: {reason}"
                )
            if group.kind == "classic" and _is_abandoned(group):
                self._delete(group, reason, on_result)
            else:
                on_result(ErrorCode.NONE)

        if known:
            keys = [offset_key(group.group_id, partition) for partition in known]
            self._appender.append_tombstones(group_partition, keys, committed)
        else:
            committed(ErrorCode.NONE)

    def on_partitions_deleted(self, partitions: Iterable[TopicPartition]) -> None:
        """Topics were deleted: removes the offsets that groups have in them.

        Offsets that are committed from now on stay: a topic of that name may be created again.
        """
        self.deleted_topics.on_deleted(partitions)

    def _is_current(self, partition: GroupPartition, group: AnyGroup) -> bool:
        """Whether, after a pause, this broker still has the group."""
        return (
            self._partitions.is_active(partition) and partition.groups.get(group.group_id) is group
        )

    # Expiration.

    def expire(self, now_ms: int) -> None:
        """Remove expired offsets, and groups without members and offsets."""
        if not self._is_expiring:
            self._is_expiring = True
            self._jobs.start(self._expire_groups(now_ms))

    def _expire_groups(self, now_ms: int) -> Steps[None]:
        try:
            for partition in self._partitions.active:
                for group in list(partition.groups.values()):
                    for part in _parts(group.offsets.committed):
                        if not self._is_current(partition, group) or group.is_dead:
                            break
                        self._expire_group(partition, group, part, now_ms)
                        yield
        finally:
            self._is_expiring = False

    def _expire_group(
        self, partition: GroupPartition, group: AnyGroup, part: list[TopicPartition], now_ms: int
    ) -> None:
        """Remove those of these offsets that have expired, or the group if it has nothing left."""
        if group.kind == "consumer":
            assert self._consumer_admin is not None, "consumer groups exist only with it"
            expired = self._consumer_admin.expired_offsets(group, part, now_ms)
            if not expired and group.is_empty and not group.offsets:
                self._consumer_admin.delete(
                    group.group_id, "it has no members and no offsets", _ignore
                )
                return
            is_abandoned = False
        else:
            expired = _expired(group, part, now_ms, self._retention_ms)
            is_abandoned = _is_abandoned(group)
        if is_abandoned and not expired:
            self._remove_offsets(group, [], "it has no members and no offsets", _ignore)
        elif expired:
            logger.info(
                "Removed %d expired offsets of group %s in __consumer_offsets-%d",
                len(expired),
                group.group_id,
                partition.index,
                extra={"group": group.group_id},
            )
            self._remove_offsets(group, expired, "expired after offsets.retention.minutes", _ignore)


def _ignore(_: int) -> None:
    """No request waits for the result; the next expiration check retries."""


def _is_abandoned(group: Group) -> bool:
    return group.state is GroupState.EMPTY and not group.offsets and not group.pending_members


def _parts(partitions: Collection[TopicPartition]) -> Iterator[list[TopicPartition]]:
    """Divide the partitions into parts of a batch each; yield at least one part."""
    found = list(partitions)
    for start in range(0, len(found) or 1, OFFSETS_PER_BATCH):
        yield found[start : start + OFFSETS_PER_BATCH]


def _expired(
    group: Group, partitions: Collection[TopicPartition], now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """Offsets expire after the group became empty, or its members unsubscribed from the topic."""
    base_timestamp_ms = None
    subscribed_topics: frozenset[str] = frozenset()
    if group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            # A record of an old version has no time of the last state change.
            base_timestamp_ms = None if group.state_timestamp_ms < 0 else group.state_timestamp_ms
        elif (
            group.is_consumer_group
            and group.subscribed_topics is not None
            and group.state is GroupState.STABLE
        ):
            subscribed_topics = group.subscribed_topics
        else:
            return []
    return group.offsets.expired(
        now_ms,
        retention_ms,
        base_timestamp_ms=base_timestamp_ms,
        subscribed_topics=subscribed_topics,
        partitions=partitions,
    )
