"""The partitions of `__consumer_offsets` led here: their groups and committed offsets.

Only the replay of records changes committed offsets and consumer groups. The same methods replay a
record when it is committed and when the partition is loaded. A loaded record replaces a classic
group; see `groups.classic.group` for how it changes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ottla.broker.coordination.coordinated_partitions import CoordinatedPartitions
from ottla.broker.coordination.ports import CoordinatorLog, Defer, WallClock
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.log.loader import GroupLoader
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.runtime.clock import Clock
from ottla.broker.runtime.timer import DelayQueue
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
    from ottla.broker.groups.consumer.records import GroupRecord
    from ottla.broker.groups.share.records import ShareRecord
    from ottla.broker.groups.share.share_group import ShareGroup

    AnyGroup = Group | ConsumerGroup


class OpenTransaction:
    """The groups that have offsets, or pending commits, in the ongoing transaction of a producer.

    `committed` is None until the marker of this transaction is replayed: a commit whose callback
    runs later has to know how its transaction ended.
    """

    __slots__ = ("committed", "group_ids")

    def __init__(self) -> None:
        self.group_ids: set[str] = set()
        self.committed: bool | None = None


class GroupPartition:
    """The groups of one partition while this broker leads it."""

    __slots__ = (
        "_clock",
        "groups",
        "has_consumer_groups",
        "index",
        "leader_epoch",
        "open_transactions",
        "records_skipped",
        "share_groups",
    )

    def __init__(
        self, index: int, leader_epoch: int, clock: WallClock, *, has_consumer_groups: bool = False
    ) -> None:
        """`has_consumer_groups`: whether the consumer group protocol (KIP-848) is enabled."""
        self.index = index
        self.leader_epoch = leader_epoch
        self.has_consumer_groups = has_consumer_groups
        self.groups: dict[str, AnyGroup] = {}
        #: The share groups (KIP-932); None where they are not enabled.
        self.share_groups: dict[str, ShareGroup] | None = None
        # By producer id.
        self.open_transactions: dict[int, OpenTransaction] = {}
        self.records_skipped = 0
        self._clock = clock

    def replay_log(self, chunks: Iterator[memoryview]) -> Iterator[None]:
        """Load the log of the partition; yield often."""
        return GroupLoader(self, self._clock).run(chunks)

    @property
    def is_empty(self) -> bool:
        return not self.groups and not self.share_groups and not self.records_skipped

    @property
    def has_share_groups(self) -> bool:
        return self.share_groups is not None

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
        """Replay a commit (or, with None, its tombstone) at log offset `at`.

        With a producer id it is part of the ongoing transaction of that producer.
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
            self.open_transaction(producer_id, group_id)

    def open_transaction(self, producer_id: int, group_id: str) -> OpenTransaction:
        """Return the ongoing transaction of a producer; the group participates in it."""
        transaction = self.open_transactions.get(producer_id)
        if transaction is None:
            transaction = self.open_transactions[producer_id] = OpenTransaction()
        transaction.group_ids.add(group_id)
        return transaction

    def leave_transaction(self, producer_id: int, group: AnyGroup) -> None:
        """A commit of the group has failed: without another one it does not participate."""
        transaction = self.open_transactions.get(producer_id)
        if transaction is not None and not group.offsets.has_transaction(producer_id):
            transaction.group_ids.discard(group.group_id)
            if not transaction.group_ids:
                del self.open_transactions[producer_id]

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """Replay the marker that ends the transaction of a producer."""
        transaction = self.open_transactions.pop(producer_id, None)
        if transaction is None:
            return
        transaction.committed = committed
        for group_id in transaction.group_ids:
            group = self.groups.get(group_id)
            if group is not None and not group.is_deleted:
                group.offsets.replay_marker(producer_id, committed)

    def replay_group(self, group_id: str, loaded: Group | None) -> None:
        """Replay the record of a classic group; None is a tombstone.

        Offsets have records of their own and are kept.
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

    def replay_share_group(self, record: ShareRecord) -> None:
        """Replay a record of a share group (KIP-932); the first one creates the group."""
        assert self.share_groups is not None, "the caller has checked it"
        group = self.share_groups.get(record.group_id)
        if group is None:
            if record.value is None:
                return
            from ottla.broker.groups.share.share_group import ShareGroup

            group = self.share_groups[record.group_id] = ShareGroup(record.group_id)
        group.replay(record)
        if group.is_gone:
            del self.share_groups[record.group_id]

    def replay_consumer_group(self, record: GroupRecord) -> None:
        """Replay a record of a consumer group (KIP-848); the first one creates the group."""
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
            self._forget_consumer_group(known)

    def replay_converted(self, group: ConsumerGroup) -> None:
        """Replay all records of a consumer group that was a classic one, or becomes one."""
        known = self.groups.get(group.group_id)
        if known is not None:
            group.offsets = known.offsets
        self.groups[group.group_id] = group
        if group.is_gone:
            self._forget_consumer_group(group)

    def _forget_consumer_group(self, group: ConsumerGroup) -> None:
        """Its committed offsets are kept in a group without members."""
        del self.groups[group.group_id]
        if group.offsets:
            self.find_or_create(group.group_id).offsets = group.offsets


class GroupPartitions(CoordinatedPartitions[GroupPartition]):
    """Finds groups, and the error code for those of other coordinators."""

    def __init__(
        self,
        settings: GroupSettings,
        log: CoordinatorLog,
        timer: DelayQueue,
        clock: Clock,
        defer: Defer,
        on_loaded: Callable[[GroupPartition], None],
        on_unloaded: Callable[[GroupPartition], None],
        *,
        has_consumer_groups: bool = False,
        has_share_groups: bool = False,
    ) -> None:
        self.has_consumer_groups = has_consumer_groups
        self.has_share_groups = has_share_groups

        def create(index: int, leader_epoch: int) -> GroupPartition:
            partition = GroupPartition(
                index, leader_epoch, clock.now_ms, has_consumer_groups=has_consumer_groups
            )
            if has_share_groups:
                partition.share_groups = {}
            return partition

        super().__init__(
            GROUP_METADATA_TOPIC,
            settings.offsets_topic_num_partitions,
            log,
            timer,
            clock,
            defer,
            create,
            on_loaded,
            on_unloaded,
        )

    def check(self, group_id: str | None, *, allow_empty: bool = False) -> int:
        """Return the error code if this broker cannot serve the group now, else 0.

        Offset and administrative requests accept the empty group id, which old consumers used.
        """
        if group_id is None or not (group_id or allow_empty):
            return ErrorCode.INVALID_GROUP_ID
        return self.status_of(group_id)

    def look_up(
        self, group_id: str | None, *, allow_empty: bool = False
    ) -> tuple[int, AnyGroup | None]:
        """Return the error code as `check` does, and the group if there is one."""
        if group_id or (allow_empty and group_id is not None):
            home = self.home_of(group_id)
            if home is not None:
                return ErrorCode.NONE, home.groups.get(group_id)
        return self.check(group_id, allow_empty=allow_empty), None

    def find(self, group_id: str) -> AnyGroup | None:
        partition = self.home_of(group_id)
        return None if partition is None else partition.groups.get(group_id)

    def find_or_create(self, group_id: str) -> AnyGroup:
        """Return the group, created if missing. `check` has returned 0 without a pause since."""
        partition = self.home_of(group_id)
        assert partition is not None, "the caller has checked it, without an await since"
        return partition.find_or_create(group_id)
