"""Builds the handlers from the parts of a broker; each gets the two to five that it uses."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ottla.broker.coordination.znode_offsets import ZnodeConsumerOffsets
from ottla.broker.handlers.admin.alter_configs import ConfigAlterer
from ottla.broker.handlers.admin.client_quotas import QuotaAdminHandlers
from ottla.broker.handlers.admin.client_telemetry import ClientMetricsHandlers
from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
from ottla.broker.handlers.admin.log_dirs import LogDirsHandlers
from ottla.broker.handlers.admin.topics import TopicAdminHandlers
from ottla.broker.handlers.cluster.allocate_producer_ids import AllocateProducerIdsHandler
from ottla.broker.handlers.cluster.alter_partition import AlterPartitionHandler
from ottla.broker.handlers.cluster.controlled_shutdown import ControlledShutdownHandler
from ottla.broker.handlers.cluster.elect_leaders import ElectLeadersHandler
from ottla.broker.handlers.cluster.partition_reassignments import PartitionReassignmentHandlers
from ottla.broker.handlers.cluster.update_features import UpdateFeaturesHandler
from ottla.broker.handlers.common.down_conversion import DownConversion
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.common.leader_hints import LeaderHints
from ottla.broker.handlers.common.transaction_request_errors import TransactionRequestErrorLog
from ottla.broker.handlers.common.transactional_produce import TransactionalProduce
from ottla.broker.handlers.groups.group_admin import GroupAdminHandlers
from ottla.broker.handlers.groups.membership import GroupMembershipHandlers
from ottla.broker.handlers.groups.offset_commit import OffsetCommitHandler
from ottla.broker.handlers.groups.offset_delete import OffsetDeleteHandler
from ottla.broker.handlers.groups.offset_fetch import OffsetFetchHandler
from ottla.broker.handlers.metadata.describe_cluster import DescribeClusterHandler
from ottla.broker.handlers.metadata.describe_topic_partitions import TopicPartitionsHandler
from ottla.broker.handlers.metadata.find_coordinator import FindCoordinatorHandler
from ottla.broker.handlers.metadata.metadata import MetadataHandler
from ottla.broker.handlers.records.delete_records import DeleteRecordsHandler
from ottla.broker.handlers.records.fetch import FetchHandler
from ottla.broker.handlers.records.list_offsets import ListOffsetsHandler
from ottla.broker.handlers.records.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from ottla.broker.handlers.records.produce import ProduceHandler
from ottla.broker.handlers.security.acls import AclAdminHandlers
from ottla.broker.handlers.table import Handlers
from ottla.broker.handlers.transactions.add_partitions_to_txn import AddPartitionsToTxnHandlers
from ottla.broker.handlers.transactions.describe_producers import DescribeProducersHandler
from ottla.broker.handlers.transactions.describe_transactions import TransactionQueryHandlers
from ottla.broker.handlers.transactions.end_txn import EndTxnHandler
from ottla.broker.handlers.transactions.init_producer_id import InitProducerIdHandler
from ottla.broker.handlers.transactions.txn_offset_commit import TxnOffsetCommitHandler
from ottla.broker.handlers.transactions.write_txn_markers import WriteTxnMarkersHandler
from ottla.broker.transactions.queries import TransactionQueries

if TYPE_CHECKING:
    from ottla.broker.handlers.security.delegation_tokens import DelegationTokenHandlers
    from ottla.broker.handlers.security.user_scram_credentials import UserCredentialHandlers
    from ottla.broker.server.parts import BrokerParts


def build_handlers(parts: BrokerParts) -> Handlers:
    """All handlers of the table."""
    config, metadata, replicas = parts.config, parts.metadata, parts.replica_manager
    groups, transactions = parts.coordinators.groups, parts.coordinators.transactions
    hints = LeaderHints(metadata, parts.endpoints)
    group_errors = GroupRequestErrorLog(groups.events, parts.clock.now_ms)
    transaction_errors = TransactionRequestErrorLog(parts.clock.now_ms)
    found = Handlers()
    verifier = parts.coordinators.verifier
    found.produce = ProduceHandler(
        replicas,
        hints,
        TransactionalProduce(replicas, verifier, parts.clock.now_ms),
        parts.quotas.produce,
    )
    found.fetch = FetchHandler(
        replicas,
        metadata,
        parts.sessions,
        hints,
        DownConversion(parts.workers, parts.dynamic_config.log_config),
        config.fetch_max_bytes,
        parts.quotas.fetch,
    )
    found.list_offsets = ListOffsetsHandler(replicas, parts.deferred_validation.workers)
    found.metadata = MetadataHandler(
        metadata,
        parts.endpoints,
        parts.cluster_id,
        parts.creation,
        config.auto_create_topics_enable,
    )
    found.replica_control = parts.replica_control
    found.group_membership = GroupMembershipHandlers(groups.membership, group_errors)
    found.group_admin = GroupAdminHandlers(groups.admin)
    found.offset_delete = OffsetDeleteHandler(groups.admin, metadata)
    if groups.consumers is not None:
        from ottla.broker.handlers.groups.consumer_groups import ConsumerGroupHandlers

        found.consumer_groups = ConsumerGroupHandlers(groups.consumers, group_errors)
    znode_offsets = ZnodeConsumerOffsets(parts.store)
    found.offset_commit = OffsetCommitHandler(
        groups.commits,
        metadata,
        znode_offsets,
        parts.clock.now_ms,
        group_errors,
        config.offset_metadata_max_bytes,
    )
    found.offset_fetch = OffsetFetchHandler(groups.commits, metadata, znode_offsets)
    found.txn_offset_commit = TxnOffsetCommitHandler(
        groups.commits, verifier, metadata, groups.partition_for, parts.clock.now_ms, group_errors
    )
    found.find_coordinator = FindCoordinatorHandler(
        metadata,
        groups.partition_for,
        transactions.partitions.partition_for,
        parts.creation.ensure,
        parts.endpoints.node,
        waits_for_creation=config.embedded,
    )
    found.init_producer_id = InitProducerIdHandler(transactions, transaction_errors)
    found.add_partitions_to_txn = AddPartitionsToTxnHandlers(
        transactions, metadata, groups.partition_for, transaction_errors
    )
    found.end_txn = EndTxnHandler(transactions, transaction_errors)
    found.write_txn_markers = WriteTxnMarkersHandler(parts.coordinators.marker_writer)
    found.transaction_queries = TransactionQueryHandlers(
        TransactionQueries(transactions.partitions, parts.clock.now_ms)
    )
    found.config_describe = ConfigDescriber(
        parts.broker_id, config, parts.dynamic_config, metadata, groups.history
    )
    found.config_alter = ConfigAlterer(parts.broker_id, config, parts.dynamic_config, metadata)
    found.topic_admin = TopicAdminHandlers(
        parts.controller, config, metadata, found.config_describe, parts.quotas.mutation
    )
    found.delete_records = DeleteRecordsHandler(replicas)
    found.offset_for_leader_epoch = OffsetForLeaderEpochHandler(replicas)
    found.describe_producers = DescribeProducersHandler(replicas)
    found.describe_cluster = DescribeClusterHandler(parts.cluster_id, metadata, parts.endpoints)
    found.topic_partitions = TopicPartitionsHandler(
        metadata, parts.endpoints, config.max_request_partition_size_limit
    )
    found.client_metrics = None
    if parts.client_metrics is not None:
        found.client_metrics = ClientMetricsHandlers(*parts.client_metrics, parts.workers)
    found.log_dirs = LogDirsHandlers(parts.mover, parts.logs)
    found.quota_admin = QuotaAdminHandlers(parts.dynamic_config)
    found.user_credentials = cache(lambda: _user_credentials(parts))
    found.delegation_tokens = cache(lambda: _delegation_tokens(parts))
    controller = parts.controller
    found.controlled_shutdown = ControlledShutdownHandler(controller)
    found.elect_leaders = ElectLeadersHandler(controller)
    found.partition_reassignments = PartitionReassignmentHandlers(controller)
    found.alter_partition = AlterPartitionHandler(controller)
    found.update_features = UpdateFeaturesHandler(controller)
    found.allocate_producer_ids = AllocateProducerIdsHandler(controller)
    security = parts.access_control
    found.acl_admin = AclAdminHandlers(security.rules, security.store)
    found.fetch.may_read = security.may_read
    return found


def _user_credentials(parts: BrokerParts) -> UserCredentialHandlers:
    from ottla.broker.handlers.security.user_scram_credentials import UserCredentialHandlers

    return UserCredentialHandlers(parts.dynamic_config, lambda: parts.controller.is_active)


def _delegation_tokens(parts: BrokerParts) -> DelegationTokenHandlers:
    from ottla.broker.handlers.security.delegation_tokens import DelegationTokenHandlers

    return DelegationTokenHandlers(parts.delegation_tokens, parts.access_control.allows)
