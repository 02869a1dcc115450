"""Builds the group and the transaction coordinator and loads what they lead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.producer_ids import ProducerIdManager
from ottla.broker.config.rules import rebalance_protocols
from ottla.broker.coordination.auto_topic_creation import AutoTopicCreation
from ottla.broker.coordination.znodes import existing_partitions
from ottla.broker.groups.cluster_support import ClusterSupport
from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.replication.coordinator_log import ReplicatedCoordinatorLog
from ottla.broker.server.settings import group_settings, transaction_settings
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.marker_writer import BrokerMarkerTransport, MarkerWriter
from ottla.broker.transactions.verification import TransactionVerifier
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from ottla.storage.producer.producer_entry import AppendOrigin

if TYPE_CHECKING:
    from ottla.broker.cluster.controller_channel import ControllerChannel
    from ottla.broker.cluster.inter_broker_client import InterBrokerClient
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.coordination.coordinated_partitions import CoordinatedPartitions
    from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
    from ottla.broker.replication.partition import Partition
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.requests.held_responses import HeldResponses
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.server.share_assembly import ShareParts
    from ottla.controller.tree.store import ZnodeStore

_ALL = -1


class Coordinators:
    """Both coordinators of this broker, and what they share."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        timer: DelayQueue,
        held: HeldResponses,
        metadata: MetadataCache,
        replica_manager: ReplicaManager,
        channel: ControllerChannel,
        inter_broker_client: InterBrokerClient,
        store: ZnodeStore,
        group_configs: Callable[[str], Mapping[str, str]],
        transaction_version: Callable[[], int],
    ) -> None:
        """`group_configs` returns the settings of a group that are set, `transaction_version` the
        finalized level of that feature."""
        self._config = config
        self._replica_manager = replica_manager
        loop = asyncio.get_running_loop()

        def defer(callback: Callable[[], None]) -> None:
            loop.call_soon(callback)

        def defer_appends(callback: Callable[[], None]) -> None:
            loop.call_soon(held.run, callback)  # many commits share an append

        def timeout_ms() -> int:
            return config.offsets_commit_timeout_ms

        broker_id = replica_manager.context.broker_id
        #: Which group protocols the other brokers have.
        self.support = ClusterSupport(broker_id, metadata, inter_broker_client.versions_of)
        #: The parts of share groups (KIP-932); None where they are not enabled.
        self.share: ShareParts | None = None
        if "share" in rebalance_protocols(config.group_coordinator_rebalance_protocols):
            from ottla.broker.server.share_assembly import ShareParts  # most brokers need none

            creation = AutoTopicCreation(config, metadata, channel.create_topics)
            self.share = ShareParts(
                config,
                replica_manager,
                metadata,
                inter_broker_client,
                clock,
                timer,
                defer,
                creation.ensure,
                group_configs,
            )
        self.groups = GroupCoordinator(
            group_settings(config, group_configs),
            ReplicatedCoordinatorLog(replica_manager, GROUP_METADATA_TOPIC, timeout_ms),
            timer,
            clock,
            defer,
            _catalog(config, metadata),
            None if self.share is None else self.share.persister,
            None if self.share is None else self.share.group_limits,
            self._drop_share_group,
            defer_appends=defer_appends,
        )
        self.marker_writer = MarkerWriter(
            self._append_marker,
            lambda producer_id, partition, committed: self.groups.on_transaction_completed(
                producer_id, partition, committed=committed
            ),
            clock.now_ms,
        )
        self.producer_ids = ProducerIdManager(channel.allocate_producer_ids)
        self.transactions = TransactionCoordinator(
            transaction_settings(config),
            ReplicatedCoordinatorLog(replica_manager, TRANSACTION_STATE_TOPIC, timeout_ms),
            timer,
            clock,
            defer,
            self.producer_ids,
            BrokerMarkerTransport(
                broker_id,
                metadata,
                self.marker_writer,
                inter_broker_client.write_markers,
                partial(existing_partitions, store),
            ),
            transaction_version,
        )
        self.verifier = TransactionVerifier(
            broker_id,
            metadata,
            self.transactions,
            inter_broker_client.verify_partitions,
            enabled=config.transaction_partition_verification_enable,
        )

    def startup(
        self,
        offsets_partitions: int | None,
        transaction_partitions: int | None,
        share_partitions: int | None = None,
    ) -> None:
        """Starts the coordinators' timers; the counts are those of internal topics that exist."""
        self.groups.startup(offsets_partitions)
        self.transactions.startup(transaction_partitions)
        if self.share is not None:
            self.share.startup(share_partitions)

    def shutdown(self) -> None:
        """Completes waiting requests and stops the timers."""
        self.groups.shutdown()
        self.producer_ids.shutdown()
        self.transactions.shutdown()
        if self.share is not None:
            self.share.shutdown()

    def partitions(self) -> list[CoordinatedPartitions[Any]]:
        """The partitions of each internal topic that are coordinated here."""
        found: list[CoordinatedPartitions[Any]] = [
            self.groups.partitions,
            self.transactions.partitions,
        ]
        if self.share is not None:
            found.append(self.share.coordinator.partitions)
        return found

    def on_leadership(self, leaders: list[Partition], followers: list[Partition]) -> None:
        """This broker became leader, or follower, of these partitions."""
        for partition in leaders:
            if partition.topic == GROUP_METADATA_TOPIC:
                self.groups.on_elected(partition.index, partition.leader_epoch)
            elif partition.topic == TRANSACTION_STATE_TOPIC:
                self.transactions.on_elected(partition.index, partition.leader_epoch)
        for partition in followers:
            if partition.topic == GROUP_METADATA_TOPIC:
                self.groups.on_resigned(partition.index, partition.leader_epoch)
            elif partition.topic == TRANSACTION_STATE_TOPIC:
                self.transactions.on_resigned(partition.index, partition.leader_epoch)
        if self.share is not None:
            self.share.on_leadership(leaders, followers)

    def on_new_leader_epoch(self, partitions: list[Partition]) -> None:
        """This broker leads these partitions on, in a higher leader epoch."""
        for partition in partitions:
            if partition.topic == GROUP_METADATA_TOPIC:
                self.groups.partitions.advance_epoch(partition.index, partition.leader_epoch)
            elif partition.topic == TRANSACTION_STATE_TOPIC:
                self.transactions.partitions.advance_epoch(partition.index, partition.leader_epoch)
        if self.share is not None:
            self.share.on_new_leader_epoch(partitions)

    def on_replicas_deleted(self, partitions: list[TopicPartition]) -> None:
        """Replicas of this broker are gone."""
        for topic, index in partitions:
            if topic == GROUP_METADATA_TOPIC:
                self.groups.on_resigned(index)
            elif topic == TRANSACTION_STATE_TOPIC:
                self.transactions.on_resigned(index)
        if self.share is not None:
            self.share.on_replicas_deleted(partitions)

    def on_partitions_deleted(self, partitions: list[TopicPartition]) -> None:
        """Partitions are gone from the cluster: their committed offsets are removed, and the
        state that share groups have of them."""
        if partitions:
            self.groups.admin.on_partitions_deleted(partitions)
            if self.groups.shares is not None:
                self.groups.shares.on_topics_deleted({each.topic for each in partitions})

    def _drop_share_group(self, group_id: str, is_deleted: bool) -> None:
        """Members with a session learn of it by their next write, wherever the leader is."""
        if self.share is None:
            return
        if not self.share.sessions.has_group(group_id):
            self.share.partitions.drop_group(group_id)
        if is_deleted:  # leaders on other brokers find it out
            self.share.partitions.statistics.forget(group_id)

    def _append_marker(
        self,
        where: TopicPartition,
        batch: bytes,
        is_raised: bool,
        on_result: Callable[[int], None],
    ) -> None:
        response = PartitionProduceResponse(where.partition)
        self._replica_manager.append_records(
            _ALL,
            self._config.request_timeout_ms,
            [(where.topic, where.partition, bytearray(batch), response)],
            lambda: on_result(response.error_code),
            AppendOrigin.RAISED_MARKER if is_raised else AppendOrigin.COORDINATOR,
        )


def _catalog(config: BrokerConfig, metadata: MetadataCache) -> ClusterTopics | None:
    """The topics for groups of the newer protocols; None where they are not served."""
    protocols = rebalance_protocols(config.group_coordinator_rebalance_protocols)
    if not protocols & {"consumer", "share"}:
        return None
    from ottla.broker.groups.consumer.cluster_topics import ClusterTopics  # most brokers need none

    return ClusterTopics(lambda: metadata.snapshot)
