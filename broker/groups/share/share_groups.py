"""Share groups in the group coordinator: members, assignments, and the state of share partitions.

Mirrors the share group parts of Kafka's `GroupMetadataManager`. Records first: a group changes when
its records are committed. Requests of one group wait for each other.

A member gets a partition when the share coordinator has its state. The first heartbeat for a new
partition waits for that, for a limited time (`StatePartitions`); a later heartbeat retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.coordination.ports import IN_LOG_ERRORS
from ottla.broker.groups.log.group_writer import member_error
from ottla.broker.groups.member_timers import MemberTimers, TimerKind
from ottla.broker.groups.share import records
from ottla.broker.groups.share.records import ShareRecord, Topics, tombstone_record
from ottla.broker.groups.share.share_group import ShareGroup, ShareMember
from ottla.broker.groups.share.state_partitions import StatePartitions
from ottla.broker.runtime.keyed_locks import KeyedLocks
from ottla.broker.runtime.tasks import spawn
from ottla.broker.share.persister import SharePartitionKey, ShareStatePersister, StateSummary
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.steps import Steps, run_in_turns

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
    from ottla.broker.groups.log.appender import GroupAppender
    from ottla.broker.groups.log.partition import GroupPartition, GroupPartitions
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

from collections.abc import Mapping

logger = logging.getLogger("ottla.groups")

LEAVE_EPOCH = -1
ASSIGNOR = "simple"
KIND = "share"


class ShareGroupLimits(NamedTuple):
    """The settings of share groups in the group coordinator; defaults of Kafka 4.3.

    Timeout and interval are those of a group.
    """

    max_size: int = 200
    session_timeout_ms: Callable[[str], int] = lambda group_id: 45_000
    heartbeat_interval_ms: Callable[[str], int] = lambda group_id: 5_000


class Heartbeat(NamedTuple):
    """The result of a heartbeat; an assignment of None has not changed."""

    member_epoch: int
    assignment: Topics | None


class ShareGroups:
    """The share groups of the partitions that this broker coordinates. Loop only."""

    def __init__(
        self,
        limits: ShareGroupLimits,
        partitions: GroupPartitions,
        appender: GroupAppender,
        timer: DelayQueue,
        catalog: ClusterTopics,
        persister: ShareStatePersister,
        on_state_replaced: Callable[[str, bool], None] = lambda group_id, is_deleted: None,
    ) -> None:
        """`on_state_replaced` is called when the stored state of a group was deleted or reset:
        leaders of its partitions read it again. `is_deleted`: the whole group is deleted."""
        self._on_state_replaced = on_state_replaced
        self.limits = limits
        self._partitions = partitions
        self._appender = appender
        self._catalog = catalog
        self._states = StatePartitions(persister, catalog)
        # Groups with a request in progress.
        self._locks: KeyedLocks[str] = KeyedLocks()
        self._new: set[str] = set()  # groups whose first record is being appended
        self.timers = MemberTimers(timer)

    def find(self, group_id: str) -> ShareGroup | None:
        """Return the group or None. Raises KafkaError on another coordinator."""
        return self._groups_of(group_id)[1].get(group_id)

    def all(self) -> list[ShareGroup]:
        """All share groups of this coordinator."""
        return [
            group
            for partition in self._partitions.active
            for group in (partition.share_groups or {}).values()
        ]

    def listed(self, states: Iterable[str], types: Iterable[str]) -> list[ShareGroup]:
        """Return the groups in one of the states and of one of the types (empty: all)."""
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        if wanted_types and KIND not in wanted_types:
            return []
        return [
            group
            for group in self.all()
            if not wanted_states or group.state.lower() in wanted_states
        ]

    def has(self, group_id: str) -> bool:
        """Return whether there is a share group of this name on this coordinator."""
        partition = self._partitions.home_of(group_id)
        known = None if partition is None else partition.share_groups
        return known is not None and (group_id in known or group_id in self._new)

    # Heartbeats.

    async def heartbeat(
        self, request: ShareGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> Heartbeat:
        """A member joins, stays or leaves; durable on return. Raises KafkaError."""
        _check(request)
        group_id, member_id = request.group_id, request.member_id
        async with self._locked(group_id) as partition:
            group = self._group_for(partition, group_id, request.member_epoch)
            if request.member_epoch == LEAVE_EPOCH:
                if member_id not in group.members:
                    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
                await self._remove(partition, group, member_id)
                return Heartbeat(LEAVE_EPOCH, None)
            topics = self._check_member(group, request)
            member = group.members.get(member_id)
            changes: list[ShareRecord] = []
            rack_id = request.rack_id if member is None else request.rack_id or member.rack_id
            is_changed = member is None or (
                (member.topics, member.rack_id, member.client_id, member.client_host)
                != (topics, rack_id, client_id, client_host)
            )
            if is_changed:
                client = (client_id, client_host)
                changes.append(records.member_record(group_id, member_id, rack_id, client, topics))
            version = self._catalog.version
            if is_changed or not group.is_settled(version):
                names = topics | _subscribed(group)
                await self._initialize(partition, group, names)
                changes += await run_in_turns(
                    self._assigned(group, {member_id: topics}, is_changed)
                )
                if not changes and self._states.are_initialized(group, names):
                    group.settled = (version, group.epoch, group.initialized)
            assigned = await self._store_with_current(partition, group, member_id, changes)
            self._check_active(partition)
            if partition.share_groups is not None:  # the replay has added a new group
                partition.share_groups[group_id].initialize_at_s = group.initialize_at_s
            self._watch(group_id, member_id)
        is_full = request.member_epoch == 0 or request.subscribed_topic_names is not None
        is_new = member is None or member.epoch != request.member_epoch
        return Heartbeat(assigned.epoch, assigned.assigned if is_full or is_new else None)

    @asynccontextmanager
    async def _locked(self, group_id: str) -> AsyncIterator[GroupPartition]:
        """One request of a group at a time; gives it the partition of the group as it is loaded
        now. What the request finds there holds as long as that is active. Raises KafkaError."""
        async with self._locks.locked(group_id):
            yield self._groups_of(group_id)[0]

    def _group_for(self, partition: GroupPartition, group_id: str, member_epoch: int) -> ShareGroup:
        group = (partition.share_groups or {}).get(group_id)
        if group is not None:
            return group
        self._check_name(partition, group_id, is_join=member_epoch == 0)
        return ShareGroup(group_id)  # the replay of its first record adds it

    @staticmethod
    def _check_name(partition: GroupPartition, group_id: str, *, is_join: bool = True) -> None:
        """As in Kafka an empty group of another type has the name, too: its offsets are kept."""
        if not is_join or group_id in partition.groups:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group."
            )

    def _check_member(
        self, group: ShareGroup, request: ShareGroupHeartbeatRequest
    ) -> frozenset[str]:
        """Return the topics that the member subscribes to."""
        member = group.members.get(request.member_id)
        if member is None:
            if request.member_epoch > 0:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if len(group.members) >= self.limits.max_size:
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
            return frozenset(request.subscribed_topic_names or ())
        if request.member_epoch not in (0, member.epoch, member.previous_epoch):
            raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH)
        if request.subscribed_topic_names is None:
            return member.topics
        return frozenset(request.subscribed_topic_names)

    def _assigned(
        self, group: ShareGroup, joining: dict[str, frozenset[str]], is_changed: bool
    ) -> Steps[list[ShareRecord]]:
        """Return the records of a changed target assignment; `joining` are new or changed."""
        subscriptions = {each.member_id: each.topics for each in group.members.values()} | joining
        ids: dict[str, bytes] = {}
        partitions: Topics = {}
        for name in frozenset().union(*subscriptions.values()):
            topic = self._catalog.describe(name)
            if topic is not None:
                ids[name] = topic.topic_id
                partitions[topic.topic_id] = group.initialized.get(topic.topic_id, [])
        wanted: dict[str, frozenset[bytes]] = {}
        for member_id, topics in subscriptions.items():
            wanted[member_id] = frozenset(ids[name] for name in topics if name in ids)
            yield
        target = yield from assign(wanted, partitions)
        if not is_changed and target == group.targets:
            return []
        epoch = group.epoch + 1
        changes = [records.epoch_record(group.group_id, epoch)]
        for member_id, rows in target.items():
            if group.targets.get(member_id) != rows:
                changes.append(records.target_record(group.group_id, member_id, rows))
                yield
        return [*changes, records.target_epoch_record(group.group_id, epoch)]

    async def _store_with_current(
        self,
        partition: GroupPartition,
        group: ShareGroup,
        member_id: str,
        changes: list[ShareRecord],
    ) -> ShareMember:
        """Store the changes and the current assignment; return the member."""
        after = ShareGroup(group.group_id)
        after.target_epoch, after.targets = group.target_epoch, dict(group.targets)
        for record in changes:
            after.replay(record)
        member = group.members.get(member_id)
        if member is None or member.epoch != after.target_epoch or changes:
            epochs = (after.target_epoch, 0 if member is None else member.epoch)
            topics = after.targets.get(member_id, {})
            changes.append(records.current_record(group.group_id, member_id, epochs, topics))
            await self._store(partition, group.group_id, changes)
        assert partition.share_groups is not None, "share groups are enabled"
        return partition.share_groups[group.group_id].members[member_id]

    # Members that leave.

    async def _remove(self, partition: GroupPartition, group: ShareGroup, member_id: str) -> None:
        group_id = group.group_id
        changes = [
            tombstone_record(kind, group_id, member_id)
            for kind in (records.CURRENT, records.TARGET, records.MEMBER)
        ]
        rest = ShareGroup(group_id)
        rest.epoch, rest.initialized = group.epoch, group.initialized
        rest.members = {name: each for name, each in group.members.items() if name != member_id}
        rest.targets = {name: each for name, each in group.targets.items() if name != member_id}
        changes += await run_in_turns(self._assigned(rest, {}, True))
        await self._store(partition, group_id, changes)
        self.timers.stop(TimerKind.SESSION, group_id, member_id)

    def _watch(self, group_id: str, member_id: str) -> None:
        """The session of a member starts again."""
        timeout_ms = self.limits.session_timeout_ms(group_id)
        expire = partial(self._expire, group_id, member_id)
        self.timers.start(TimerKind.SESSION, group_id, member_id, timeout_ms, expire)

    def _is_watched(self, group_id: str, member_id: str) -> bool:
        return self.timers.is_running(TimerKind.SESSION, group_id, member_id)

    def _expire(self, group_id: str, member_id: str) -> None:
        logger.info(
            "Member %s of share group %s: session expired, the member is removed",
            member_id,
            group_id,
            extra={"group": group_id},
        )
        home = self._partitions.home_of(group_id)
        spawn(self._expired(home, group_id, member_id), name="remove expired share member")

    async def _expired(self, home: GroupPartition | None, group_id: str, member_id: str) -> None:
        try:
            async with self._locked(group_id) as partition:
                group = (partition.share_groups or {}).get(group_id)
                if group is None or member_id not in group.members:
                    return
                # Else it has come back, or was loaded again: its session starts.
                if partition is home and not self._is_watched(group_id, member_id):
                    await self._remove(partition, group, member_id)
        except KafkaError:
            self._watch_unwatched(group_id)  # retried, unless another broker coordinates it

    def _watch_unwatched(self, group_id: str) -> None:
        """Start the sessions of the members of a group here that have none."""
        partition = self._partitions.home_of(group_id)
        group = None if partition is None else (partition.share_groups or {}).get(group_id)
        for member_id in () if group is None else group.members:
            if not self._is_watched(group_id, member_id):
                self._watch(group_id, member_id)

    def start_sessions(self, partition: GroupPartition) -> Steps[None]:
        """Start the sessions of all members: this broker has become their coordinator.

        A request in a pause starts the session of its member.
        """
        for group in list((partition.share_groups or {}).values()):
            for member_id in list(group.members):
                if member_id in group.members and not self._is_watched(group.group_id, member_id):
                    self._watch(group.group_id, member_id)
                yield
                if not self._partitions.is_active(partition):
                    return

    def on_unloaded(self, partition: GroupPartition) -> None:
        """This broker no longer coordinates these groups; the caller cancels their timers."""
        for group_id in partition.share_groups or {}:
            self.timers.end(group_id)

    # The state of share partitions.

    async def _initialize(
        self, partition: GroupPartition, group: ShareGroup, names: frozenset[str]
    ) -> None:
        """Let the share coordinator create the state of partitions that have none."""
        initialized = await self._states.initialize(group, names)
        if initialized != group.initialized:
            changes = [self._states.record(group.group_id, initialized)]
            await self._store(partition, group.group_id, changes)
            # A group that is new here was added by the replay of the record.
            group.initialized = initialized

    @staticmethod
    def _empty_group(partition: GroupPartition, group_id: str) -> ShareGroup:
        """Return the group. Raises KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = (partition.share_groups or {}).get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        return group

    async def delete(self, group_id: str) -> None:
        """Delete an empty group and the state of its share partitions. Raises KafkaError."""
        async with self._locked(group_id) as partition:
            group = self._empty_group(partition, group_id)
            await self._states.delete(group_id, group.initialized)
            self._on_state_replaced(group_id, True)
            kinds = (records.STATE_PARTITIONS, records.TARGET_EPOCH, records.EPOCH)
            changes = [tombstone_record(kind, group_id) for kind in kinds]
            await self._store(partition, group_id, changes)

    async def summary(self, key: SharePartitionKey) -> StateSummary:
        """Return the stored start offset of a share partition and its epochs. Raises KafkaError."""
        return await self._states.summary(key)

    async def reset(self, group_id: str, offsets: dict[bytes, dict[int, int]]) -> None:
        """Set the start offsets of an empty group, by topic id and partition; durable on return.

        Creates the group if there is none, as Kafka does. The state epoch rises, so that a leader
        with the former state cannot store it. Raises KafkaError: NON_EMPTY_GROUP, and
        GROUP_ID_NOT_FOUND for a group of another type.
        """
        async with self._locked(group_id) as partition:
            group = self._group_for(partition, group_id, 0)
            if group.members:
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
            initialized = await self._states.reset(group, offsets)
            self._on_state_replaced(group_id, False)
            if initialized != group.initialized:
                changes = [self._states.record(group_id, initialized)]
                if group.epoch == 0:  # a new group
                    changes.append(records.epoch_record(group_id, 1))
                    changes.append(records.target_epoch_record(group_id, 1))
                await self._store(partition, group_id, changes)

    async def delete_offsets(self, group_id: str, topic_ids: Iterable[bytes]) -> None:
        """Delete the state of topics of an empty group, which has no offsets there any more.

        Durable on return. Raises KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        async with self._locked(group_id) as partition:
            group = self._empty_group(partition, group_id)
            await self._delete_topics(partition, group, frozenset(topic_ids))
            self._on_state_replaced(group_id, False)

    async def _delete_topics(
        self, partition: GroupPartition, group: ShareGroup, topic_ids: frozenset[bytes]
    ) -> None:
        gone = {each: rows for each, rows in group.initialized.items() if each in topic_ids}
        if gone:
            await self._states.delete(group.group_id, gone)
            rest = {each: rows for each, rows in group.initialized.items() if each not in gone}
            changes = [self._states.record(group.group_id, rest)]
            await self._store(partition, group.group_id, changes)

    def on_topics_deleted(self, names: AbstractSet[str]) -> None:
        """Topics are gone from the cluster: the state of their share partitions is deleted."""
        affected = [
            (group.group_id, gone)
            for group in self.all()
            if (gone := self._deleted_topics(group, names))
        ]
        if affected:
            spawn(self._forget_topics(affected), name="delete the state of deleted topics")

    def _deleted_topics(self, group: ShareGroup, names: AbstractSet[str]) -> frozenset[bytes]:
        """A topic of one of these names may exist again, with another id."""
        return frozenset(
            topic_id
            for topic_id in group.initialized
            if group.topic_names.get(topic_id) in names and self._catalog.name_of(topic_id) is None
        )

    async def _forget_topics(self, affected: list[tuple[str, frozenset[bytes]]]) -> None:
        for group_id, topic_ids in affected:
            try:
                async with self._locked(group_id) as partition:
                    group = (partition.share_groups or {}).get(group_id)
                    if group is not None:
                        await self._delete_topics(partition, group, topic_ids)
            except KafkaError as error:
                logger.info(
                    "Share group %s keeps the state of deleted topics until it is deleted: %s",
                    group_id,
                    error,
                    extra={"group": group_id},
                )

    # Records.

    def _groups_of(self, group_id: str) -> tuple[GroupPartition, dict[str, ShareGroup]]:
        code = self._partitions.check(group_id)
        partition = self._partitions.home_of(group_id)
        if code or partition is None or partition.share_groups is None:
            raise KafkaError(code or ErrorCode.NOT_COORDINATOR)
        return partition, partition.share_groups

    def _check_active(self, partition: GroupPartition) -> None:
        """Raise NOT_COORDINATOR when the partition has been dropped during a wait, maybe to be
        loaded again: another coordinator may have changed its groups."""
        if not self._partitions.is_active(partition):
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    async def _store(
        self, partition: GroupPartition, group_id: str, changes: Sequence[ShareRecord]
    ) -> None:
        """Append the records; replay them when they are committed, or in the log at least, as the
        next coordinator does. Raises KafkaError."""
        self._check_active(partition)
        if group_id not in (partition.share_groups or {}):
            self._check_name(partition, group_id)  # since the first wait
            self._new.add(group_id)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_result(error_code: int, base_offset: int) -> None:
            self._new.discard(group_id)
            if error_code == ErrorCode.NONE or error_code in IN_LOG_ERRORS:
                for record in changes:
                    partition.replay_share_group(record)
            if error_code in IN_LOG_ERRORS:
                self._watch_unwatched(group_id)
            if not done.done():
                done.set_result(error_code)

        self._appender.append(partition, [record.encoded() for record in changes], on_result)
        code = await done
        if code:
            raise KafkaError(member_error(code))


def _subscribed(group: ShareGroup) -> frozenset[str]:
    return frozenset().union(*(member.topics for member in group.members.values()))


def _check(request: ShareGroupHeartbeatRequest) -> None:
    """Raise INVALID_REQUEST as Kafka does."""
    reason = ""
    if not request.group_id:
        reason = "GroupId can't be empty."
    elif not request.member_id:
        reason = "MemberId can't be empty."
    elif request.member_epoch < LEAVE_EPOCH:
        reason = f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -1."
    elif request.rack_id == "":
        reason = "RackId can't be empty."
    elif request.member_epoch == 0 and not request.subscribed_topic_names:
        reason = "SubscribedTopicNames must be set in first request."
    if reason:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)


Assignment = dict[bytes, list[int]]


def assign(
    subscriptions: Mapping[str, frozenset[bytes]], partitions: Mapping[bytes, list[int]]
) -> Steps[dict[str, Assignment]]:
    """Return the partitions of each member, by topic id.

    `subscriptions` has the topics of each member, `partitions` the partitions of each topic. Every
    partition has a member, every member that can have one has a partition, and the members are
    spread evenly, as in Kafka's `SimpleAssignor`. The result follows from the sorted names, so that
    each coordinator computes the same.
    """
    result: dict[str, Assignment] = {member: {} for member in subscriptions}
    offset = 0
    for topic_id in sorted(partitions):
        members = sorted(each for each, topics in subscriptions.items() if topic_id in topics)
        indexes = sorted(partitions[topic_id])
        if not members or not indexes:
            continue
        for position in range(max(len(members), len(indexes))):
            member = members[(position + offset) % len(members)]
            result[member].setdefault(topic_id, []).append(indexes[position % len(indexes)])
            yield
        # The next topic begins with another member.
        offset += len(indexes)
        yield  # all members were read
    for member, topics in result.items():
        result[member] = {topic_id: sorted(rows) for topic_id, rows in topics.items()}
        yield
    return result
