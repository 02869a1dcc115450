"""The partitions of `__consumer_offsets` that this broker leads; finds groups by their id."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.coordination.coordinated_partitions import CoordinatedPartitions
from ottla.broker.coordination.ports import CoordinatorLog, Defer
from ottla.broker.groups.log.partition import GroupPartition
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.runtime.clock import Clock
from ottla.broker.runtime.timer import DelayQueue
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import GROUP_METADATA_TOPIC

if TYPE_CHECKING:
    from ottla.broker.groups.log.partition import AnyGroup


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
        """The error code when this broker cannot serve the group now, else 0.

        Offset and administrative requests accept the empty group id, which old consumers used.
        """
        if group_id is None or not (group_id or allow_empty):
            return ErrorCode.INVALID_GROUP_ID
        return self.status_of(group_id)

    def find(self, group_id: str) -> AnyGroup | None:
        partition = self.home_of(group_id)
        return None if partition is None else partition.groups.get(group_id)

    def find_or_create(self, group_id: str) -> AnyGroup:
        """Call it only after `check` returned 0, without an await in between."""
        partition = self.home_of(group_id)
        assert partition is not None, "the caller has checked it, without an await since"
        return partition.find_or_create(group_id)
