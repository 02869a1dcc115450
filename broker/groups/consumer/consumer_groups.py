"""Builds the parts of the consumer group protocol (KIP-848).

Used only where `group.coordinator.rebalance.protocols` contains `consumer`.
"""

from ottla.broker.coordination.ports import Defer
from ottla.broker.groups.classic.rebalance import Rebalancer
from ottla.broker.groups.consumer.admin import ConsumerAdmin
from ottla.broker.groups.consumer.classic_members import ClassicMembers
from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
from ottla.broker.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from ottla.broker.groups.consumer.membership import ConsumerMembership
from ottla.broker.groups.consumer.migration import Migration
from ottla.broker.groups.consumer.sessions import ConsumerSessions
from ottla.broker.groups.events import GroupEvents
from ottla.broker.groups.log.appender import GroupAppender
from ottla.broker.groups.log.group_writer import GroupWriter
from ottla.broker.groups.log.partition import GroupPartitions
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.runtime.clock import Clock
from ottla.broker.runtime.timer import DelayQueue
from ottla.protocol.steps import TurnQueue


class ConsumerGroups:
    """`membership` handles heartbeats, `admin` administrative requests, and `classic_members` the
    requests of members that use the classic protocol."""

    states = tuple(state.value for state in ConsumerGroupState)

    def __init__(
        self,
        settings: GroupSettings,
        partitions: GroupPartitions,
        appender: GroupAppender,
        rebalancer: Rebalancer,
        timer: DelayQueue,
        catalog: ClusterTopics,
        events: GroupEvents,
        clock: Clock,
        defer: Defer,
    ) -> None:
        jobs = TurnQueue(defer, alternates=True)  # a large group must not hold up others
        writer = GroupWriter(partitions, appender, clock.now_ms, self._on_append_timed_out, jobs)
        migration = Migration(settings, partitions, rebalancer, catalog, clock.now_ms)
        self.sessions = ConsumerSessions(
            settings, partitions, writer, timer, catalog, migration, events, clock.now_ms, jobs
        )
        self.membership = ConsumerMembership(
            settings, partitions, writer, catalog, migration, self.sessions
        )
        self.classic_members = ClassicMembers(
            partitions, writer, catalog, migration, self.sessions, self.membership
        )
        self.admin = ConsumerAdmin(settings, partitions, writer, catalog)

    def _on_append_timed_out(self, group_id: str) -> None:
        self.sessions.watch_unwatched_members(group_id)

    def on_group_unloaded(self, group: ConsumerGroup) -> None:
        """This broker no longer coordinates the group."""
        self.sessions.on_group_unloaded(group)
