"""Groups of the newer protocol (KIP-848): puts their parts together.

There is one of these only where `group.coordinator.rebalance.protocols` has `consumer` in it.
"""

from broker.clock import Clock
from broker.groups.appender import GroupAppender
from broker.groups.classic_members import ClassicMembers
from broker.groups.consumer_admin import ConsumerAdmin
from broker.groups.consumer_group import ConsumerGroup, ConsumerGroupState
from broker.groups.consumer_membership import ConsumerMembership
from broker.groups.consumer_sessions import ConsumerSessions
from broker.groups.events import GroupEvents
from broker.groups.group_writer import GroupWriter
from broker.groups.migration import Migration
from broker.groups.partitions import GroupPartitions
from broker.groups.rebalance import Rebalancer
from broker.groups.settings import GroupSettings
from broker.groups.topic_catalog import TopicCatalog
from broker.timing.timer import DelayQueue


class ConsumerGroups:
    """`membership` has the heartbeats, `admin` what administrators ask, `classic_members` the
    requests of members that still speak the classic protocol."""

    states = tuple(state.value for state in ConsumerGroupState)

    def __init__(
        self,
        settings: GroupSettings,
        partitions: GroupPartitions,
        appender: GroupAppender,
        rebalancer: Rebalancer,
        timer: DelayQueue,
        catalog: TopicCatalog,
        events: GroupEvents,
        clock: Clock,
    ) -> None:
        writer = GroupWriter(partitions, appender, clock.now_ms)
        migration = Migration(settings, partitions, rebalancer, catalog, clock.now_ms)
        self.sessions = ConsumerSessions(
            settings, partitions, writer, timer, catalog, migration, events, clock.now_ms
        )
        writer.on_uncertain = self.sessions.adopt
        self.membership = ConsumerMembership(
            settings, partitions, writer, catalog, migration, self.sessions
        )
        self.classic_members = ClassicMembers(
            partitions, writer, catalog, migration, self.sessions, self.membership
        )
        self.admin = ConsumerAdmin(settings, partitions, writer, catalog)

    def loaded(self, group: ConsumerGroup) -> None:
        """A group was read from the log."""
        self.sessions.loaded(group)

    def unloaded(self, group: ConsumerGroup) -> None:
        """Another broker coordinates the group from now on."""
        self.sessions.unloaded(group)
