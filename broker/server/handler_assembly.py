"""Builds the handlers from the parts of a broker; each gets only the parts that it uses."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ottla.broker.cluster.endpoints import Endpoints
from ottla.broker.cluster.identity import wildcard_listeners
from ottla.broker.coordination.auto_topic_creation import AutoTopicCreation
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
    from ottla.broker.handlers.groups.consumer_groups import ConsumerGroupHandlers
    from ottla.broker.handlers.security.delegation_tokens import DelegationTokenHandlers
    from ottla.broker.handlers.security.user_scram_credentials import UserCredentialHandlers
    from ottla.broker.replication.fetch_sessions import FetchSessions
    from ottla.broker.server.control_assembly import ControlParts
    from ottla.broker.server.coordinators import Coordinators
    from ottla.broker.server.foundation import Foundation
    from ottla.broker.server.quota_assembly import QuotaParts
    from ottla.broker.server.replica_assembly import ClusterParts, ReplicaParts
    from ottla.broker.server.security_assembly import SecurityParts
    from ottla.controller.controller import Controller


def build_handlers(
    base: Foundation,
    cluster: ClusterParts,
    replicas: ReplicaParts,
    coordinators: Coordinators,
    control: ControlParts,
    quotas: QuotaParts,
    security: SecurityParts,
    sessions: FetchSessions,
) -> Handlers:
    """All handlers of the table. `sessions` are the fetch sessions."""
    config, metadata, dynamic_config = base.config, base.metadata, base.dynamic_config
    now_ms, manager = base.clock.now_ms, replicas.manager
    groups, transactions = coordinators.groups, coordinators.transactions
    verifier = coordinators.verifier
    endpoints = Endpoints(base.broker_id, metadata, wildcard_listeners(config))
    creation = AutoTopicCreation(config, metadata, cluster.channel.create_topics)
    hints = LeaderHints(metadata, endpoints)
    refusals = GroupRefusals(groups.events, now_ms)
    describer = ConfigDescriber(base.broker_id, config, dynamic_config, metadata, groups.history)
    access_control = security.access_control
    return Handlers(
        produce=ProduceHandler(
            manager,
            hints,
            TransactionalProduce(manager, verifier, now_ms),
            quotas.clients.produce,
        ),
        fetch=FetchHandler(
            manager,
            metadata,
            sessions,
            hints,
            DownConversion(base.workers, dynamic_config.log_config),
            config.fetch_max_bytes,
            quotas.clients.fetch,
            access_control.may_read,
        ),
        list_offsets=ListOffsetsHandler(manager, replicas.deferred_validation.workers),
        metadata=MetadataHandler(
            metadata, endpoints, base.cluster_id, creation, config.auto_create_topics_enable
        ),
        replica_control=control.replica_control,
        group_membership=GroupMembershipHandlers(groups.membership, refusals),
        group_admin=GroupAdminHandlers(groups.admin, metadata),
        consumer_groups=_consumer_groups(coordinators, refusals),
        group_offsets=GroupOffsetHandlers(
            groups.commits,
            metadata,
            ZnodeConsumerOffsets(base.store),
            now_ms,
            refusals,
            config.offset_metadata_max_bytes,
        ),
        transactional_offsets=TransactionalOffsetHandlers(
            groups.commits, verifier, metadata, groups.partition_for, now_ms, refusals
        ),
        find_coordinator=FindCoordinatorHandler(
            metadata,
            groups.partition_for,
            transactions.partitions.partition_for,
            creation.ensure,
            endpoints.node,
            waits_for_creation=config.embedded,
        ),
        transactions=TransactionHandlers(
            transactions,
            coordinators.marker_writer,
            TransactionQueries(transactions.partitions, now_ms),
            metadata,
            groups.partition_for,
            TransactionRefusals(now_ms),
        ),
        config_describe=describer,
        config_alter=ConfigAlterer(base.broker_id, config, dynamic_config, metadata),
        topic_admin=TopicAdminHandlers(
            control.controller, config, metadata, describer, quotas.clients.mutation
        ),
        records_admin=RecordsAdminHandlers(manager),
        cluster=ClusterHandlers(base.cluster_id, metadata, endpoints, base.logs, manager),
        topic_partitions=TopicPartitionsHandler(
            metadata, endpoints, config.max_request_partition_size_limit
        ),
        client_metrics=(
            None
            if base.client_metrics is None
            else ClientMetricsHandlers(*base.client_metrics, base.workers)
        ),
        log_dirs_admin=LogDirsAdminHandler(replicas.mover),
        quota_admin=QuotaAdminHandlers(dynamic_config),
        user_credentials=cache(lambda: _user_credentials(base, control.controller)),
        delegation_tokens=cache(lambda: _delegation_tokens(security)),
        controller=ControllerHandlers(control.controller),
        acl_admin=AclAdminHandlers(access_control.rules, access_control.store),
    )


def _consumer_groups(
    coordinators: Coordinators, refusals: GroupRefusals
) -> ConsumerGroupHandlers | None:
    """None where the newer group protocol is disabled."""
    consumers = coordinators.groups.consumers
    if consumers is None:
        return None
    from ottla.broker.handlers.groups.consumer_groups import ConsumerGroupHandlers

    return ConsumerGroupHandlers(consumers, refusals)


def _user_credentials(base: Foundation, controller: Controller) -> UserCredentialHandlers:
    from ottla.broker.handlers.security.user_scram_credentials import UserCredentialHandlers

    return UserCredentialHandlers(base.dynamic_config, lambda: controller.is_active)


def _delegation_tokens(security: SecurityParts) -> DelegationTokenHandlers:
    from ottla.broker.handlers.security.delegation_tokens import DelegationTokenHandlers

    return DelegationTokenHandlers(security.delegation_tokens, security.access_control.allows)
