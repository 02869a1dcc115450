"""Builds the parts of share groups (KIP-932); only where they are enabled."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.broker.groups.share.share_groups import ShareGroupLimits
from ottla.broker.replication.coordinator_log import ReplicatedCoordinatorLog
from ottla.broker.runtime.tasks import spawn
from ottla.broker.share.coordinator.routed_persister import EnsureTopic, RoutedPersister
from ottla.broker.share.coordinator.share_coordinator import (
    ShareCoordinator,
    ShareCoordinatorSettings,
)
from ottla.broker.share.group_report import LatestOffsets
from ottla.broker.share.group_settings import BrokerShareSettings, GroupConfigs, ShareGroupSettings
from ottla.broker.share.sessions import SessionKey, ShareSessions, end_session
from ottla.broker.share.share_partitions import SharePartitions
from ottla.protocol.topics import SHARE_STATE_TOPIC

if TYPE_CHECKING:
    from ottla.broker.cluster.inter_broker_client import InterBrokerClient
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.coordination.ports import Defer
    from ottla.broker.replication.partition import Partition
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.share")

# The default of Kafka 4.3; that of 3.9 is 200.
_RECORD_LOCKS = "group.share.partition.max.record.locks"
DEFAULT_RECORD_LOCKS = 2000

# The time that a request to a share coordinator may take beside its append.
REQUEST_MARGIN_MS = 2000

# How often the counts of groups are looked through for those that are deleted.
GROUPS_CHECK_MS = 5000

# How long the records of a member that is gone stay locked at the most, after its connection.
DISCONNECT_CHECK_MS = 1000


class ShareParts:
    """The share coordinator and the share partitions of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        replica_manager: ReplicaManager,
        metadata: MetadataCache,
        inter_broker_client: InterBrokerClient,
        clock: Clock,
        timer: DelayQueue,
        defer: Defer,
        ensure_topic: EnsureTopic,
        configs: GroupConfigs,
    ) -> None:
        settings = ShareGroupSettings(
            BrokerShareSettings(
                int(config.given.get(_RECORD_LOCKS, DEFAULT_RECORD_LOCKS)),
                delivery_count_limit=config.group_share_delivery_count_limit,
                record_lock_duration_ms=config.group_share_record_lock_duration_ms,
                session_timeout_ms=config.group_share_session_timeout_ms,
                heartbeat_interval_ms=config.group_share_heartbeat_interval_ms,
            ),
            configs,
        )
        self.group_limits = ShareGroupLimits(
            config.group_share_max_size,
            settings.session_timeout_ms,
            settings.heartbeat_interval_ms,
        )
        self.coordinator = ShareCoordinator(
            ShareCoordinatorSettings(
                config.share_coordinator_state_topic_num_partitions,
                config.share_coordinator_snapshot_update_records_per_snapshot,
                config.share_coordinator_state_topic_prune_interval_ms,
                config.share_coordinator_cold_partition_snapshot_interval_ms,
                config.share_coordinator_state_topic_compression_codec,
                config.share_coordinator_append_linger_ms,
            ),
            ReplicatedCoordinatorLog(
                replica_manager,
                SHARE_STATE_TOPIC,
                lambda: config.share_coordinator_write_timeout_ms,
            ),
            timer,
            clock,
            defer,
            lambda index, offset: _delete_before(replica_manager, index, offset),
        )
        self._intervals_ms = (
            config.share_coordinator_state_topic_prune_interval_ms,
            config.share_coordinator_cold_partition_snapshot_interval_ms,
        )
        broker_id = replica_manager.context.broker_id
        # Requests wait for in-sync replicas, so they have connections of their own.
        self._client = inter_broker_client.with_timeout(
            config.share_coordinator_write_timeout_ms + REQUEST_MARGIN_MS
        )
        self.persister = RoutedPersister(
            broker_id, self.coordinator, metadata, self._client.request, ensure_topic
        )
        self.latest_offsets = LatestOffsets(
            broker_id, metadata, replica_manager, inter_broker_client.request
        )
        self.sessions = ShareSessions(config.group_share_max_share_sessions)
        self.partitions = SharePartitions(
            replica_manager,
            self.persister,
            settings,
            clock,
            timer,
        )
        self._timer = timer

    def startup(self, partition_count: int | None) -> None:
        """`partition_count` is that of `__share_group_state`, None when it does not exist."""
        self.coordinator.startup(partition_count)
        self._timer.schedule(DISCONNECT_CHECK_MS, self._check_connections)
        self._timer.schedule(GROUPS_CHECK_MS, self._check_groups)
        prune_interval_ms, snapshot_interval_ms = self._intervals_ms
        self._timer.schedule(prune_interval_ms, self._prune)
        self._timer.schedule(snapshot_interval_ms, self._snapshot_cold)

    def _prune(self) -> None:
        self.coordinator.prune()
        self._timer.schedule(self._intervals_ms[0], self._prune)

    def _snapshot_cold(self) -> None:
        spawn(self.coordinator.snapshot_cold(), name="snapshots of share partitions")
        self._timer.schedule(self._intervals_ms[1], self._snapshot_cold)

    def shutdown(self) -> None:
        self.coordinator.shutdown()
        self._client.close()

    def _check_connections(self) -> None:
        """Releases the records of members whose connection is closed."""
        self.sessions.remove_disconnected(self._release)
        self._timer.schedule(DISCONNECT_CHECK_MS, self._check_connections)

    def _check_groups(self) -> None:
        spawn(self._forget_deleted_groups(), name="counts of deleted share groups")

    async def _forget_deleted_groups(self) -> None:
        try:
            await self.partitions.forget_deleted_groups()
        finally:
            self._timer.schedule(GROUPS_CHECK_MS, self._check_groups)

    def _release(self, key: SessionKey) -> None:
        spawn(end_session(self.sessions, self.partitions, key), name="end share session")

    def on_leadership(self, leaders: list[Partition], followers: list[Partition]) -> None:
        """This broker became leader, or follower, of these partitions."""
        for partition in leaders:
            if partition.topic == SHARE_STATE_TOPIC:
                self.coordinator.partitions.elect(partition.index, partition.leader_epoch)
        for partition in followers:
            if partition.topic == SHARE_STATE_TOPIC:
                self.coordinator.partitions.resign(partition.index, partition.leader_epoch)
        self.partitions.drop_partitions(partition.key for partition in followers)

    def on_new_leader_epoch(self, partitions: list[Partition]) -> None:
        """This broker leads these partitions on, in a higher leader epoch."""
        for partition in partitions:
            if partition.topic == SHARE_STATE_TOPIC:
                epoch = partition.leader_epoch
                self.coordinator.partitions.advance_epoch(partition.index, epoch)
        self.partitions.on_new_leader_epoch(partitions)

    def on_replicas_deleted(self, partitions: list[TopicPartition]) -> None:
        """Replicas of this broker are gone."""
        for topic, index in partitions:
            if topic == SHARE_STATE_TOPIC:
                self.coordinator.partitions.resign(index)
        self.partitions.drop_partitions(partitions)


def _delete_before(replica_manager: ReplicaManager, index: int, offset: int) -> None:
    """As DeleteRecords: followers learn the log start offset by their next fetch."""
    replica_manager.partition(
        SHARE_STATE_TOPIC, index
    ).leader_log().truncator.delete_records_before(offset)
