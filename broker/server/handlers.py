"""The handlers of a broker; each gets only the parts that it uses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.cluster.endpoints import LeaderHints
from ottla.broker.config.listeners import LISTENERS
from ottla.broker.coordination.auto_topic_creation import AutoTopicCreation
from ottla.broker.coordination.znodes import ZnodeConsumerOffsets
from ottla.broker.groups.cluster_support import SHARE
from ottla.broker.handlers.admin.alter_configs import ConfigAlterer
from ottla.broker.handlers.admin.client_quotas import QuotaAdminHandlers
from ottla.broker.handlers.admin.client_telemetry import ClientMetricsHandlers
from ottla.broker.handlers.admin.config_resources import ConfigResourcesHandler
from ottla.broker.handlers.admin.describe_configs import GROUP_SHARES, has_group_settings
from ottla.broker.handlers.admin.log_dirs import LogDirsHandlers
from ottla.broker.handlers.admin.topics import TopicAdminHandlers
from ottla.broker.handlers.cluster import envelope
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
from ottla.broker.handlers.groups.consumer_groups import (
    ConsumerGroupHandlers,
    ConsumerGroupsNotEnabled,
)
from ottla.broker.handlers.groups.group_admin import GroupAdminHandlers
from ottla.broker.handlers.groups.membership import GroupMembershipHandlers
from ottla.broker.handlers.groups.offsets import (
    OffsetCommitHandler,
    OffsetDeleteHandler,
    OffsetFetchHandler,
)
from ottla.broker.handlers.metadata.describe_cluster import DescribeClusterHandler
from ottla.broker.handlers.metadata.describe_topic_partitions import TopicPartitionsHandler
from ottla.broker.handlers.metadata.find_coordinator import FindCoordinatorHandler
from ottla.broker.handlers.metadata.metadata import MetadataHandler
from ottla.broker.handlers.records.delete_records import DeleteRecordsHandler
from ottla.broker.handlers.records.fetch import FetchHandler
from ottla.broker.handlers.records.list_offsets import ListOffsetsHandler
from ottla.broker.handlers.records.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from ottla.broker.handlers.records.produce import ProduceHandler
from ottla.broker.handlers.security import sasl
from ottla.broker.handlers.security.acls import AclAdminHandlers
from ottla.broker.handlers.security.delegation_tokens import DelegationTokenHandlers
from ottla.broker.handlers.security.user_scram_credentials import UserCredentialHandlers
from ottla.broker.handlers.transactions.descriptions import (
    DescribeProducersHandler,
    TransactionQueryHandlers,
)
from ottla.broker.handlers.transactions.transactions import (
    AddPartitionsToTxnHandlers,
    EndTxnHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
    WriteTxnMarkersHandler,
)
from ottla.broker.server.start_checks import check_new_logins, check_new_ports
from ottla.broker.transactions.queries import TransactionQueries

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.server.broker import Broker
    from ottla.broker.server.coordinators import Coordinators


def build_handlers(broker: Broker) -> list[object]:
    """The handlers of all APIs; the routes of their modules make them the handler table."""
    config, metadata, dynamic_config = broker.config, broker.metadata, broker.dynamic_config
    now_ms, manager, quotas = broker.clock.now_ms, broker.replica_manager, broker.quotas.clients
    coordinators, controller = broker.coordinators, broker.controller
    groups, transactions = coordinators.groups, coordinators.transactions
    verifier, endpoints = coordinators.verifier, broker.endpoints
    access_control, describer = broker.access_control, broker.config_describer
    creation = AutoTopicCreation(config, metadata, broker.controller_channel.create_topics)
    hints = LeaderHints(metadata, endpoints)
    group_errors = GroupRequestErrorLog(groups.events, now_ms)
    transaction_errors = TransactionRequestErrorLog(now_ms)
    znode_offsets = ZnodeConsumerOffsets(broker.store)
    has_share_group = None if groups.shares is None else groups.shares.has
    handlers: list[object] = [
        ProduceHandler(
            manager,
            hints,
            TransactionalProduce(
                manager, verifier, broker.timer, now_ms, broker.features.transaction_version
            ),
            quotas.produce,
        ),
        FetchHandler(
            manager,
            metadata,
            broker.fetch_sessions,
            hints,
            DownConversion(
                broker.workers,
                dynamic_config.log_config,
                lambda topic, partition: broker.logs.get(topic, partition) is not None,
                manager.context.topics,
                broker.memory.records,
            ),
            config.fetch_max_bytes,
            quotas,
            access_control.may_read,
        ),
        ListOffsetsHandler(manager, broker.deferred_validation.workers, now_ms),
        DeleteRecordsHandler(manager),
        OffsetForLeaderEpochHandler(manager),
        MetadataHandler(
            metadata, endpoints, broker.cluster_id, creation, config.auto_create_topics_enable
        ),
        DescribeClusterHandler(broker.cluster_id, metadata, endpoints),
        TopicPartitionsHandler(metadata, endpoints, config.max_request_partition_size_limit),
        FindCoordinatorHandler(
            metadata,
            groups.partition_for,
            transactions.partitions.partition_for,
            creation.ensure,
            endpoints.node,
            share_partition_for=_share_partition_for(coordinators),
            waits_for_creation=config.embedded,
        ),
        GroupMembershipHandlers(groups.membership, group_errors, has_share_group),
        _consumer_groups(coordinators, group_errors, has_share_group),
        GroupAdminHandlers(groups.admin, groups.shares),
        OffsetCommitHandler(
            groups.commits,
            metadata,
            znode_offsets,
            now_ms,
            group_errors,
            config.offset_metadata_max_bytes,
        ),
        OffsetFetchHandler(groups.commits, metadata, znode_offsets),
        OffsetDeleteHandler(groups.admin, metadata),
        TxnOffsetCommitHandler(
            groups.commits,
            verifier,
            metadata,
            groups.partition_for,
            now_ms,
            broker.timer,
            group_errors,
            broker.features.transaction_version,
        ),
        InitProducerIdHandler(transactions, transaction_errors),
        AddPartitionsToTxnHandlers(
            transactions, metadata, groups.partition_for, transaction_errors
        ),
        EndTxnHandler(transactions, transaction_errors),
        WriteTxnMarkersHandler(coordinators.marker_writer),
        DescribeProducersHandler(manager),
        TransactionQueryHandlers(TransactionQueries(transactions.partitions, now_ms)),
        TopicAdminHandlers(controller, config, metadata, describer, quotas.mutation),
        describer,
        _config_alterer(broker),
        LogDirsHandlers(broker.mover, broker.logs),
        QuotaAdminHandlers(dynamic_config),
        AclAdminHandlers(access_control.rules, access_control.store),
        sasl,
        UserCredentialHandlers(dynamic_config, lambda: controller.is_active),
        DelegationTokenHandlers(broker.delegation_tokens, access_control.allows),
        broker.replica_control,
        ControlledShutdownHandler(controller),
        ElectLeadersHandler(controller),
        PartitionReassignmentHandlers(controller),
        AlterPartitionHandler(controller),
        UpdateFeaturesHandler(controller),
        AllocateProducerIdsHandler(controller),
        envelope,
    ]
    if broker.client_metrics is not None:
        handlers.append(ClientMetricsHandlers(*broker.client_metrics, broker.workers))
    if broker.client_metrics is not None or has_group_settings(config):
        handlers.append(ConfigResourcesHandler(metadata, dynamic_config))
    if coordinators.share is None or groups.shares is None:
        return handlers
    # Imported late: most brokers serve no share groups.
    from ottla.broker.handlers.groups.share_groups import ShareGroupHandlers, ShareOffsetsHandlers
    from ottla.broker.handlers.share.share_acknowledge import ShareAcknowledgeHandler
    from ottla.broker.handlers.share.share_fetch import ShareFetchHandler
    from ottla.broker.handlers.share.share_state import ShareStateHandlers
    from ottla.broker.share.group_report import report

    share = coordinators.share
    shares, share_sessions = share.partitions, share.sessions
    describer.group_texts[GROUP_SHARES] = lambda group_id: report(shares, group_id, now_ms())
    return [
        *handlers,
        ShareGroupHandlers(
            groups.shares, metadata, partial(coordinators.support.check, SHARE), group_errors
        ),
        ShareStateHandlers(share.coordinator),
        ShareOffsetsHandlers(
            groups.shares, metadata, access_control.allows, share.latest_offsets.find
        ),
        ShareFetchHandler(
            shares,
            share_sessions,
            manager,
            metadata,
            hints,
            broker.clock,
            broker.timer,
            config.fetch_max_bytes,
            quotas.fetch,
            access_control.may_read_shares,
        ),
        ShareAcknowledgeHandler(shares, share_sessions, metadata, hints, access_control.may_read),
    ]


def _share_partition_for(coordinators: Coordinators) -> Callable[[str], int] | None:
    share = coordinators.share
    return None if share is None else share.coordinator.partitions.partition_for


def _consumer_groups(
    coordinators: Coordinators,
    group_errors: GroupRequestErrorLog,
    has_share_group: Callable[[str], bool] | None,
) -> ConsumerGroupHandlers | ConsumerGroupsNotEnabled:
    consumers = coordinators.groups.consumers
    if consumers is None:
        return ConsumerGroupsNotEnabled(group_errors)
    return ConsumerGroupHandlers(consumers, group_errors, coordinators.support, has_share_group)


def _config_alterer(broker: Broker) -> ConfigAlterer:
    def validate_listeners(config: BrokerConfig, names: list[str]) -> None:
        broker.tls.validate(config, names)
        broker.listeners.validate(config, names)
        if not set(LISTENERS).isdisjoint(names):
            present = broker.config.listener_endpoints()
            check_new_ports(config, present)
            check_new_logins(config, present)

    share = broker.coordinators.share
    return ConfigAlterer(
        broker.broker_id,
        broker.config,
        broker.dynamic_config,
        broker.metadata,
        broker.policies.admit_change,
        validate_listeners,
        None if share is None else partial(broker.coordinators.support.check, SHARE),
    )
