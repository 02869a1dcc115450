"""The group coordinator: builds its parts and follows the leadership of partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.coordination.ports import CoordinatorLog, Defer
from ottla.broker.groups.admin import GroupAdmin
from ottla.broker.groups.classic.group import GroupState
from ottla.broker.groups.classic.membership import GroupMembership
from ottla.broker.groups.classic.rebalance import Rebalancer
from ottla.broker.groups.classic.static_members import StaticMembers
from ottla.broker.groups.commits import GroupCommits
from ottla.broker.groups.deleted_topics import MissedDeletions
from ottla.broker.groups.events import GroupEvents, events_text
from ottla.broker.groups.log.appender import GroupAppender
from ottla.broker.groups.log.partition import GroupPartition, GroupPartitions
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.runtime.clock import Clock
from ottla.broker.runtime.timer import DelayQueue
from ottla.broker.runtime.wheel import TimerTask
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.steps import Steps, TurnQueue

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
    from ottla.broker.groups.consumer.consumer_groups import ConsumerGroups
    from ottla.broker.groups.share.share_groups import ShareGroupLimits, ShareGroups
    from ottla.broker.share.persister import ShareStatePersister

logger = logging.getLogger("ottla.groups")


class GroupCoordinator:
    """The groups whose partition of `__consumer_offsets` this broker leads. Loop only.

    `membership`, `commits` and `admin` handle the requests by subject; `events` has the history.
    `defer` is `loop.call_soon`.
    """

    def __init__(
        self,
        settings: GroupSettings,
        log: CoordinatorLog,
        timer: DelayQueue,
        clock: Clock,
        defer: Defer,
        catalog: ClusterTopics | None = None,
        share_persister: ShareStatePersister | None = None,
        share_limits: ShareGroupLimits | None = None,
        on_share_state_replaced: Callable[[str, bool], None] = lambda group_id, is_deleted: None,
        defer_appends: Defer | None = None,
    ) -> None:
        """`catalog` has the topics; without it consumer groups (KIP-848) are not served, and
        without `share_persister` no share groups (KIP-932). `defer_appends` is `defer` for appends,
        which complete many requests."""
        self.settings = settings
        self.events = GroupEvents()
        has_consumer_groups = catalog is not None and settings.has_consumer_groups
        self.partitions = GroupPartitions(
            settings,
            log,
            timer,
            clock,
            defer,
            self._on_loaded,
            self._on_unloaded,
            has_consumer_groups=has_consumer_groups,
            has_share_groups=share_persister is not None,
        )
        self._timer = timer
        self._clock = clock
        self._expiry_timer: TimerTask | None = None
        self._jobs = TurnQueue(defer)
        # After a load, when a partition is unloaded, and responses to all members of a group.
        self._group_jobs = TurnQueue(defer, alternates=True)
        codec = settings.offsets_topic_compression_codec
        appender = GroupAppender(log, self.partitions, clock, defer_appends or defer, codec)
        rebalancer = Rebalancer(
            settings, timer, clock.now_ms, appender.store_group, self.events, self._group_jobs
        )
        self._rebalancer = rebalancer
        self.consumers: ConsumerGroups | None = None
        if has_consumer_groups and catalog is not None:
            self.consumers = self._build_consumer_groups(appender, catalog, defer)
        self.shares: ShareGroups | None = None
        if share_persister is not None and catalog is not None:
            from ottla.broker.groups.share.share_groups import ShareGroupLimits, ShareGroups

            self.shares = ShareGroups(
                share_limits or ShareGroupLimits(),
                self.partitions,
                appender,
                timer,
                catalog,
                share_persister,
                on_share_state_replaced,
            )
        self.membership = GroupMembership(
            settings,
            self.partitions,
            rebalancer,
            StaticMembers(rebalancer, appender.store_group),
            None if self.consumers is None else self.consumers.classic_members,
        )
        self.commits = GroupCommits(settings, self.partitions, rebalancer, appender)
        self.admin = GroupAdmin(
            settings,
            self.partitions,
            rebalancer,
            appender,
            timer,
            clock,
            None if self.consumers is None else self.consumers.admin,
            self._jobs,
        )
        self.missed_deletions = MissedDeletions(
            self.partitions, appender, self.admin.deleted_topics
        )

    def _build_consumer_groups(
        self, appender: GroupAppender, catalog: ClusterTopics, defer: Defer
    ) -> ConsumerGroups:
        # Imported late: most brokers serve no consumer groups.
        from ottla.broker.groups.consumer.consumer_groups import ConsumerGroups

        return ConsumerGroups(
            self.settings,
            self.partitions,
            appender,
            self._rebalancer,
            self._timer,
            catalog,
            self.events,
            self._clock,
            defer,
        )

    def startup(self, partition_count: int | None = None) -> None:
        """Start to expire offsets; `partition_count` is that of an existing offsets topic."""
        if partition_count is not None:
            self.partitions.partition_count = partition_count
        self._schedule_expiry()

    def shutdown(self) -> None:
        """Complete pending requests with NOT_COORDINATOR and stop all timers."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        self._jobs.stop()
        self.partitions.stop()
        self._group_jobs.finish()

    @property
    def rebalances_completed(self) -> int:
        """The number of rebalances that completed with an assignment since the start."""
        of_consumer_groups = 0 if self.consumers is None else self.consumers.sessions.rebalances
        return self._rebalancer.rebalances_completed + of_consumer_groups

    @property
    def states(self) -> tuple[str, ...]:
        """The names of all states that a group can be in."""
        of_consumer_groups = () if self.consumers is None else self.consumers.states
        return tuple(dict.fromkeys((*(state.value for state in GroupState), *of_consumer_groups)))

    def history(self, group_id: str) -> str:
        """Return the `events_text` of a group. Raises KafkaError on another broker."""
        error = self.partitions.check(group_id, allow_empty=True)
        if error:
            raise KafkaError(error)
        return events_text(self.events.of(group_id))

    def partition_for(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that has the records of a group."""
        return self.partitions.partition_for(group_id)

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """This broker became leader of a partition of the offsets topic: loads its groups."""
        self.partitions.elect(partition, leader_epoch)

    def on_resigned(self, partition: int, leader_epoch: int | None = None) -> None:
        """Another broker leads the partition (None: the partition is deleted here)."""
        self.partitions.resign(partition, leader_epoch)

    def on_transaction_completed(
        self, producer_id: int, partition: int, *, committed: bool
    ) -> None:
        """A transaction marker was committed to a partition of the offsets topic.

        While the partition is loading nothing is to be done: the load replays the marker.
        """
        active = self.partitions.get_active(partition)
        if active is not None:
            active.replay_marker(producer_id, committed)

    def tick(self, now_ms: int) -> None:
        """Expire offsets and empty groups."""
        self.admin.expire(now_ms)

    def _schedule_expiry(self) -> None:
        self._expiry_timer = self._timer.schedule(
            self.settings.offsets_retention_check_interval_ms, self._expire
        )

    def _expire(self) -> None:
        try:
            self.tick(self._clock.now_ms())
        finally:
            self._schedule_expiry()

    def _on_loaded(self, partition: GroupPartition) -> None:
        self._group_jobs.start(self._start_sessions(partition))
        if self.shares is not None:
            self._group_jobs.start(self.shares.start_sessions(partition))
        self.missed_deletions.on_loaded(partition)

    def _start_sessions(self, partition: GroupPartition) -> Steps[None]:
        """Start the sessions of all members. A request in a pause starts that of its member."""
        for group in list(partition.groups.values()):
            if not self.partitions.is_active(partition):
                return
            if group.is_dead or partition.groups.get(group.group_id) is not group:
                continue
            if group.kind == "classic":
                yield from self._rebalancer.start_sessions(group)
            elif self.consumers is not None:
                yield from self.consumers.sessions.start_sessions(group)
            yield

    def _on_unloaded(self, partition: GroupPartition) -> None:
        """Mark all groups dead now. Nothing changes a dead group, so releasing them may pause."""
        now_ms = self._clock.now_ms()
        for group in partition.groups.values():
            if group.kind == "classic":
                group.transition_to(GroupState.DEAD, now_ms)
            elif self.consumers is not None:
                self.consumers.on_group_unloaded(group)
        if self.shares is not None:
            self.shares.on_unloaded(partition)
        self._group_jobs.start(self._release(partition))

    def _release(self, partition: GroupPartition) -> Steps[None]:
        while partition.groups:
            _, group = partition.groups.popitem()
            if group.kind == "classic":
                yield from self._rebalancer.close(group, ErrorCode.NOT_COORDINATOR)
            yield
        if self.consumers is not None:
            yield from self.consumers.sessions.timers.cancel_ended()
        if self.shares is not None:
            yield from self.shares.timers.cancel_ended()
