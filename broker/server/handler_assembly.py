"""Builds the handlers from the parts of a broker; each gets the two to five that it uses."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ottla.broker.coordination.znode_offsets import ZnodeConsumerOffsets
from ottla.broker.handlers.admin.alter_configs import ConfigAlterer
from ottla.broker.handlers.admin.client_quotas import QuotaAdminHandlers
from ottla.broker.handlers.admin.client_telemetry import ClientMetricsHandlers
from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
from ottla.broker.handlers.admin.log_dirs import LogDirsAdminHandler
from ottla.broker.handlers.admin.topics import TopicAdminHandlers
from ottla.broker.handlers.cluster.controller_api import ControllerHandlers
from ottla.broker.handlers.groups.find_coordinator import FindCoordinatorHandler
from ottla.broker.handlers.groups.group_admin import GroupAdminHandlers
from ottla.broker.handlers.groups.membership import GroupMembershipHandlers
from ottla.broker.handlers.groups.offsets import GroupOffsetHandlers
from ottla.broker.handlers.groups.refusals import GroupRefusals
from ottla.broker.handlers.metadata.describe_cluster import ClusterHandlers
from ottla.broker.handlers.metadata.describe_topic_partitions import TopicPartitionsHandler
from ottla.broker.handlers.metadata.metadata import MetadataHandler
from ottla.broker.handlers.records.down_conversion import DownConversion
from ottla.broker.handlers.records.fetch import FetchHandler
from ottla.broker.handlers.records.leader_hints import LeaderHints
from ottla.broker.handlers.records.list_offsets import ListOffsetsHandler
from ottla.broker.handlers.records.produce import ProduceHandler
from ottla.broker.handlers.records.records_admin import RecordsAdminHandlers
from ottla.broker.handlers.records.transactional_produce import TransactionalProduce
from ottla.broker.handlers.security.acls import AclAdminHandlers
from ottla.broker.handlers.table import Handlers
from ottla.broker.handlers.transactions.refusals import TransactionRefusals
from ottla.broker.handlers.transactions.transactions import TransactionHandlers
from ottla.broker.handlers.transactions.txn_offset_commit import TransactionalOffsetHandlers
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
    refusals = GroupRefusals(groups.events, parts.clock.now_ms)
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
    found.group_membership = GroupMembershipHandlers(groups.membership, refusals)
    found.group_admin = GroupAdminHandlers(groups.admin, metadata)
    if groups.consumers is not None:
        from ottla.broker.handlers.groups.consumer_groups import ConsumerGroupHandlers

        found.consumer_groups = ConsumerGroupHandlers(groups.consumers, refusals)
    found.group_offsets = GroupOffsetHandlers(
        groups.commits,
        metadata,
        ZnodeConsumerOffsets(parts.store),
        parts.clock.now_ms,
        refusals,
        config.offset_metadata_max_bytes,
    )
    found.transactional_offsets = TransactionalOffsetHandlers(
        groups.commits, verifier, metadata, groups.partition_for, parts.clock.now_ms, refusals
    )
    found.find_coordinator = FindCoordinatorHandler(
        metadata,
        groups.partition_for,
        transactions.partitions.partition_for,
        parts.creation.ensure,
        parts.endpoints.node,
        waits_for_creation=config.embedded,
    )
    found.transactions = TransactionHandlers(
        transactions,
        parts.coordinators.marker_writer,
        TransactionQueries(transactions.partitions, parts.clock.now_ms),
        metadata,
        groups.partition_for,
        TransactionRefusals(parts.clock.now_ms),
    )
    found.config_describe = ConfigDescriber(
        parts.broker_id, config, parts.dynamic_config, metadata, groups.history
    )
    found.config_alter = ConfigAlterer(parts.broker_id, config, parts.dynamic_config, metadata)
    found.topic_admin = TopicAdminHandlers(
        parts.controller, config, metadata, found.config_describe, parts.quotas.mutation
    )
    found.records_admin = RecordsAdminHandlers(replicas)
    found.cluster = ClusterHandlers(
        parts.cluster_id, metadata, parts.endpoints, parts.logs, replicas
    )
    found.topic_partitions = TopicPartitionsHandler(
        metadata, parts.endpoints, config.max_request_partition_size_limit
    )
    found.client_metrics = None
    if parts.client_metrics is not None:
        found.client_metrics = ClientMetricsHandlers(*parts.client_metrics, parts.workers)
    found.log_dirs_admin = LogDirsAdminHandler(parts.mover)
    found.quota_admin = QuotaAdminHandlers(parts.dynamic_config)
    found.user_credentials = cache(lambda: _user_credentials(parts))
    found.delegation_tokens = cache(lambda: _delegation_tokens(parts))
    found.controller = ControllerHandlers(parts.controller)
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
