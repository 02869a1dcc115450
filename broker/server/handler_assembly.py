"""Builds the handlers from the parts of a broker; each gets only the parts that it uses."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ottla.broker.cluster.container_network import container_of
from ottla.broker.cluster.endpoints import Endpoints, LeaderHints
from ottla.broker.cluster.identity import wildcard_listeners
from ottla.broker.config.listeners import LISTENERS
from ottla.broker.coordination.auto_topic_creation import AutoTopicCreation
from ottla.broker.coordination.znode_offsets import ZnodeConsumerOffsets
from ottla.broker.handlers.admin.alter_configs import ConfigAlterer
from ottla.broker.handlers.admin.client_quotas import QuotaAdminHandlers
from ottla.broker.handlers.admin.client_telemetry import ClientMetricsHandlers
from ottla.broker.handlers.admin.describe_configs import GROUP_SHARES, ConfigDescriber
from ottla.broker.handlers.admin.log_dirs import LogDirsHandlers
from ottla.broker.handlers.admin.topics import TopicAdminHandlers
from ottla.broker.handlers.cluster.controller_requests import (
    AllocateProducerIdsHandler,
    AlterPartitionHandler,
    ControlledShutdownHandler,
)
from ottla.broker.handlers.cluster.elect_leaders import ElectLeadersHandler
from ottla.broker.handlers.cluster.partition_reassignments import PartitionReassignmentHandlers
from ottla.broker.handlers.cluster.update_features import UpdateFeaturesHandler
from ottla.broker.handlers.common.down_conversion import DownConversion
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
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
from ottla.broker.server.start_checks import check_new_logins, check_new_ports
from ottla.broker.transactions.queries import TransactionQueries

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.handlers.groups.consumer_groups import (
        ConsumerGroupHandlers,
        ConsumerGroupsNotEnabled,
    )
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


def build_endpoints(base: Foundation) -> Endpoints:
    """The addresses that clients get."""
    listeners = wildcard_listeners(base.config)
    return Endpoints(base.broker_id, base.metadata, listeners, container_of(listeners))


def build_handlers(
    base: Foundation,
    cluster: ClusterParts,
    replicas: ReplicaParts,
    coordinators: Coordinators,
    control: ControlParts,
    quotas: QuotaParts,
    security: SecurityParts,
    sessions: FetchSessions,
    endpoints: Endpoints,
) -> Handlers:
    """All handlers of the table. `sessions` are the fetch sessions."""
    config, metadata, dynamic_config = base.config, base.metadata, base.dynamic_config
    now_ms, manager = base.clock.now_ms, replicas.manager
    groups, transactions = coordinators.groups, coordinators.transactions
    controller, verifier = control.controller, coordinators.verifier
    creation = AutoTopicCreation(config, metadata, cluster.channel.create_topics)
    hints = LeaderHints(metadata, endpoints)
    group_errors = GroupRequestErrorLog(groups.events, now_ms)
    transaction_errors = TransactionRequestErrorLog(now_ms)
    describer = ConfigDescriber(base.broker_id, config, dynamic_config, metadata, groups.history)
    access_control = security.access_control
    znode_offsets = ZnodeConsumerOffsets(base.store)
    handlers = Handlers(
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
            DownConversion(
                base.workers,
                dynamic_config.log_config,
                lambda topic, partition: base.logs.get(topic, partition) is not None,
                manager.context.topics,
            ),
            config.fetch_max_bytes,
            quotas.clients,
            access_control.may_read,
        ),
        list_offsets=ListOffsetsHandler(manager, replicas.deferred_validation.workers, now_ms),
        metadata=MetadataHandler(
            metadata, endpoints, base.cluster_id, creation, config.auto_create_topics_enable
        ),
        replica_control=control.replica_control,
        group_membership=GroupMembershipHandlers(
            groups.membership, group_errors, None if groups.shares is None else groups.shares.has
        ),
        group_admin=GroupAdminHandlers(groups.admin, groups.shares),
        offset_delete=OffsetDeleteHandler(groups.admin, metadata),
        consumer_groups=_consumer_groups(coordinators, group_errors),
        offset_commit=OffsetCommitHandler(
            groups.commits,
            metadata,
            znode_offsets,
            now_ms,
            group_errors,
            config.offset_metadata_max_bytes,
        ),
        offset_fetch=OffsetFetchHandler(groups.commits, metadata, znode_offsets),
        txn_offset_commit=TxnOffsetCommitHandler(
            groups.commits, verifier, metadata, groups.partition_for, now_ms, group_errors
        ),
        find_coordinator=FindCoordinatorHandler(
            metadata,
            groups.partition_for,
            transactions.partitions.partition_for,
            creation.ensure,
            endpoints.node,
            share_partition_for=_share_partition_for(coordinators),
            waits_for_creation=config.embedded,
        ),
        init_producer_id=InitProducerIdHandler(transactions, transaction_errors),
        add_partitions_to_txn=AddPartitionsToTxnHandlers(
            transactions, metadata, groups.partition_for, transaction_errors
        ),
        end_txn=EndTxnHandler(transactions, transaction_errors),
        write_txn_markers=WriteTxnMarkersHandler(coordinators.marker_writer),
        transaction_queries=TransactionQueryHandlers(
            TransactionQueries(transactions.partitions, now_ms)
        ),
        config_describe=describer,
        config_alter=_config_alterer(base, cluster, coordinators),
        topic_admin=TopicAdminHandlers(
            controller, config, metadata, describer, quotas.clients.mutation
        ),
        delete_records=DeleteRecordsHandler(manager),
        offset_for_leader_epoch=OffsetForLeaderEpochHandler(manager),
        describe_producers=DescribeProducersHandler(manager),
        describe_cluster=DescribeClusterHandler(base.cluster_id, metadata, endpoints),
        topic_partitions=TopicPartitionsHandler(
            metadata, endpoints, config.max_request_partition_size_limit
        ),
        client_metrics=(
            None
            if base.client_metrics is None
            else ClientMetricsHandlers(*base.client_metrics, base.workers)
        ),
        log_dirs=LogDirsHandlers(replicas.mover, base.logs),
        quota_admin=QuotaAdminHandlers(dynamic_config),
        user_credentials=cache(lambda: _user_credentials(base, controller)),
        delegation_tokens=cache(lambda: _delegation_tokens(security)),
        controlled_shutdown=ControlledShutdownHandler(controller),
        elect_leaders=ElectLeadersHandler(controller),
        partition_reassignments=PartitionReassignmentHandlers(controller),
        alter_partition=AlterPartitionHandler(controller),
        update_features=UpdateFeaturesHandler(controller),
        features=base.features,
        allocate_producer_ids=AllocateProducerIdsHandler(controller),
        acl_admin=AclAdminHandlers(access_control.rules, access_control.store),
    )
    if coordinators.share is None or groups.shares is None:
        return handlers
    # Imported late: most brokers serve no share groups.
    from ottla.broker.handlers.groups.share_groups import ShareGroupHandlers
    from ottla.broker.handlers.groups.share_offsets import ShareOffsetsHandlers
    from ottla.broker.handlers.share.share_acknowledge import ShareAcknowledgeHandler
    from ottla.broker.handlers.share.share_fetch import ShareFetchHandler
    from ottla.broker.handlers.share.share_state import ShareStateHandlers
    from ottla.broker.share.group_report import report

    shares, share_sessions = coordinators.share.partitions, coordinators.share.sessions
    describer.group_texts[GROUP_SHARES] = lambda group_id: report(
        shares, group_id, base.clock.now_ms()
    )
    return handlers._replace(
        share_groups=ShareGroupHandlers(groups.shares, metadata, coordinators.share.support.check),
        share_state=ShareStateHandlers(coordinators.share.coordinator),
        share_offsets=ShareOffsetsHandlers(
            groups.shares, metadata, access_control.allows, coordinators.share.latest_offsets.find
        ),
        share_fetch=ShareFetchHandler(
            *(shares, share_sessions, manager, metadata, hints, base.clock, base.timer),
            *(config.fetch_max_bytes, quotas.clients.fetch, access_control.may_read),
        ),
        share_acknowledge=ShareAcknowledgeHandler(
            *(shares, share_sessions, metadata, hints, access_control.may_read)
        ),
    )


def _share_partition_for(coordinators: Coordinators) -> Callable[[str], int] | None:
    share = coordinators.share
    return None if share is None else share.coordinator.partitions.partition_for


def _consumer_groups(
    coordinators: Coordinators, group_errors: GroupRequestErrorLog
) -> ConsumerGroupHandlers | ConsumerGroupsNotEnabled:
    from ottla.broker.handlers.groups.consumer_groups import (
        ConsumerGroupHandlers,
        ConsumerGroupsNotEnabled,
    )

    consumers = coordinators.groups.consumers
    if consumers is None:
        return ConsumerGroupsNotEnabled(group_errors)
    shares = coordinators.groups.shares
    return ConsumerGroupHandlers(consumers, group_errors, None if shares is None else shares.has)


def _user_credentials(base: Foundation, controller: Controller) -> UserCredentialHandlers:
    from ottla.broker.handlers.security.user_scram_credentials import UserCredentialHandlers

    return UserCredentialHandlers(base.dynamic_config, lambda: controller.is_active)


def _delegation_tokens(security: SecurityParts) -> DelegationTokenHandlers:
    from ottla.broker.handlers.security.delegation_tokens import DelegationTokenHandlers

    return DelegationTokenHandlers(security.delegation_tokens, security.access_control.allows)


def _config_alterer(
    base: Foundation, cluster: ClusterParts, coordinators: Coordinators
) -> ConfigAlterer:
    def validate_listeners(config: BrokerConfig, names: list[str]) -> None:
        cluster.tls.validate(config, names)
        if not set(LISTENERS).isdisjoint(names):
            present = base.config.listener_endpoints()
            check_new_ports(config, present)
            check_new_logins(config, present)

    return ConfigAlterer(
        base.broker_id,
        base.config,
        base.dynamic_config,
        base.metadata,
        base.policies.admit_change,
        validate_listeners,
        None if coordinators.share is None else coordinators.share.support.check,
    )
