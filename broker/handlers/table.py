"""The one table of what this broker answers: key, versions, handler.

ApiVersions is derived from it, the network layer decodes nothing that is not in it, and it is the
only module that knows all handlers. What stands here works in every listed version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.handlers.metadata.api_versions import ApiVersionsHandler
from ottla.broker.handlers.security import sasl
from ottla.broker.requests.request_channel import (
    Handler,
    HandlerEntry,
    HandlerResult,
    RequestContext,
)
from ottla.protocol.registry import API, ApiKey

if TYPE_CHECKING:
    from ottla.broker.handlers.admin.alter_configs import ConfigAlterer
    from ottla.broker.handlers.admin.client_quotas import QuotaAdminHandlers
    from ottla.broker.handlers.admin.client_telemetry import ClientMetricsHandlers
    from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
    from ottla.broker.handlers.admin.log_dirs import LogDirsAdminHandler
    from ottla.broker.handlers.admin.topics import TopicAdminHandlers
    from ottla.broker.handlers.cluster.controller_api import ControllerHandlers
    from ottla.broker.handlers.cluster.replica_control import ReplicaControl
    from ottla.broker.handlers.groups.consumer_groups import ConsumerGroupHandlers
    from ottla.broker.handlers.groups.find_coordinator import FindCoordinatorHandler
    from ottla.broker.handlers.groups.group_admin import GroupAdminHandlers
    from ottla.broker.handlers.groups.membership import GroupMembershipHandlers
    from ottla.broker.handlers.groups.offsets import GroupOffsetHandlers
    from ottla.broker.handlers.metadata.describe_cluster import ClusterHandlers
    from ottla.broker.handlers.metadata.describe_topic_partitions import TopicPartitionsHandler
    from ottla.broker.handlers.metadata.metadata import MetadataHandler
    from ottla.broker.handlers.records.fetch import FetchHandler
    from ottla.broker.handlers.records.list_offsets import ListOffsetsHandler
    from ottla.broker.handlers.records.produce import ProduceHandler
    from ottla.broker.handlers.records.records_admin import RecordsAdminHandlers
    from ottla.broker.handlers.security.acls import AclAdminHandlers
    from ottla.broker.handlers.security.delegation_tokens import DelegationTokenHandlers
    from ottla.broker.handlers.security.user_scram_credentials import UserCredentialHandlers
    from ottla.broker.handlers.transactions.transactions import TransactionHandlers
    from ottla.broker.handlers.transactions.txn_offset_commit import TransactionalOffsetHandlers


class Handlers(NamedTuple):
    """All handlers of a broker; `ottla.broker.server.handler_assembly` builds them."""

    produce: ProduceHandler
    fetch: FetchHandler
    list_offsets: ListOffsetsHandler
    metadata: MetadataHandler
    replica_control: ReplicaControl
    group_offsets: GroupOffsetHandlers
    find_coordinator: FindCoordinatorHandler
    group_membership: GroupMembershipHandlers
    group_admin: GroupAdminHandlers
    consumer_groups: ConsumerGroupHandlers | None  # where that protocol is enabled
    topic_admin: TopicAdminHandlers
    records_admin: RecordsAdminHandlers
    transactions: TransactionHandlers
    transactional_offsets: TransactionalOffsetHandlers
    config_describe: ConfigDescriber
    config_alter: ConfigAlterer
    cluster: ClusterHandlers
    controller: ControllerHandlers
    quota_admin: QuotaAdminHandlers
    # Made when they are first asked: most brokers never are.
    user_credentials: Callable[[], UserCredentialHandlers]
    delegation_tokens: Callable[[], DelegationTokenHandlers]
    log_dirs_admin: LogDirsAdminHandler
    acl_admin: AclAdminHandlers
    topic_partitions: TopicPartitionsHandler
    client_metrics: ClientMetricsHandlers | None  # None: there is nowhere to show what they push


def build_table(handlers: Handlers) -> list[HandlerEntry]:
    """One line an API; the versions are all that Kafka 3.9 has, and of consumer groups Kafka 4's
    too."""
    groups, membership = handlers.group_admin, handlers.group_membership
    offsets, transactions = handlers.group_offsets, handlers.transactions
    topics, records = handlers.topic_admin, handlers.records_admin
    replicas, controller = handlers.replica_control, handlers.controller
    consumer_groups = handlers.consumer_groups
    users, tokens = handlers.user_credentials, handlers.delegation_tokens
    entries = [
        _entry(ApiKey.PRODUCE, handlers.produce.handle),
        _entry(ApiKey.FETCH, handlers.fetch.handle),
        _entry(ApiKey.LIST_OFFSETS, handlers.list_offsets.handle),
        _entry(ApiKey.METADATA, handlers.metadata.handle_once_known),
        _entry(ApiKey.LEADER_AND_ISR, replicas.handle_leader_and_isr),
        _entry(ApiKey.STOP_REPLICA, replicas.handle_stop_replica),
        _entry(ApiKey.UPDATE_METADATA, replicas.handle_update_metadata),
        _entry(ApiKey.CONTROLLED_SHUTDOWN, controller.controlled_shutdown),
        _entry(ApiKey.OFFSET_COMMIT, offsets.offset_commit),
        _entry(ApiKey.OFFSET_FETCH, offsets.offset_fetch),
        _entry(ApiKey.FIND_COORDINATOR, handlers.find_coordinator.find_coordinator),
        _entry(ApiKey.JOIN_GROUP, membership.join_group),
        _entry(ApiKey.HEARTBEAT, membership.heartbeat),
        _entry(ApiKey.LEAVE_GROUP, membership.leave_group),
        _entry(ApiKey.SYNC_GROUP, membership.sync_group),
        _entry(ApiKey.DESCRIBE_GROUPS, groups.describe_groups),
        _entry(ApiKey.LIST_GROUPS, groups.list_groups),
        _entry(ApiKey.SASL_HANDSHAKE, sasl.handshake)._replace(before_authentication=True),
        _entry(ApiKey.CREATE_TOPICS, topics.create_topics),
        _entry(ApiKey.DELETE_TOPICS, topics.delete_topics),
        _entry(ApiKey.DELETE_RECORDS, records.delete_records),
        _entry(ApiKey.INIT_PRODUCER_ID, transactions.init_producer_id),
        _entry(ApiKey.OFFSET_FOR_LEADER_EPOCH, records.offset_for_leader_epoch),
        _entry(ApiKey.ADD_PARTITIONS_TO_TXN, transactions.add_partitions_to_txn),
        _entry(ApiKey.ADD_OFFSETS_TO_TXN, transactions.add_offsets_to_txn),
        _entry(ApiKey.END_TXN, transactions.end_txn),
        _entry(ApiKey.WRITE_TXN_MARKERS, transactions.write_txn_markers),
        _entry(ApiKey.TXN_OFFSET_COMMIT, handlers.transactional_offsets.txn_offset_commit),
        _entry(ApiKey.DESCRIBE_ACLS, handlers.acl_admin.describe),
        _entry(ApiKey.CREATE_ACLS, handlers.acl_admin.create),
        _entry(ApiKey.DELETE_ACLS, handlers.acl_admin.delete),
        _entry(ApiKey.DESCRIBE_CONFIGS, handlers.config_describe.handle),
        _entry(ApiKey.ALTER_CONFIGS, handlers.config_alter.alter),
        _entry(ApiKey.ALTER_REPLICA_LOG_DIRS, handlers.log_dirs_admin.handle),
        _entry(ApiKey.DESCRIBE_LOG_DIRS, handlers.cluster.describe_log_dirs),
        _entry(ApiKey.SASL_AUTHENTICATE, sasl.authenticate)._replace(before_authentication=True),
        _entry(ApiKey.CREATE_PARTITIONS, topics.create_partitions),
        _entry(ApiKey.CREATE_DELEGATION_TOKEN, _late(lambda: tokens().create)),
        _entry(ApiKey.RENEW_DELEGATION_TOKEN, _late(lambda: tokens().renew)),
        _entry(ApiKey.EXPIRE_DELEGATION_TOKEN, _late(lambda: tokens().expire)),
        _entry(ApiKey.DESCRIBE_DELEGATION_TOKEN, _late(lambda: tokens().describe)),
        _entry(ApiKey.DELETE_GROUPS, groups.delete_groups),
        _entry(ApiKey.ELECT_LEADERS, controller.elect_leaders),
        _entry(ApiKey.INCREMENTAL_ALTER_CONFIGS, handlers.config_alter.alter_incrementally),
        _entry(ApiKey.ALTER_PARTITION_REASSIGNMENTS, controller.alter_reassignments),
        _entry(ApiKey.LIST_PARTITION_REASSIGNMENTS, controller.list_reassignments),
        _entry(ApiKey.OFFSET_DELETE, groups.offset_delete),
        _entry(ApiKey.DESCRIBE_CLIENT_QUOTAS, handlers.quota_admin.describe),
        _entry(ApiKey.ALTER_CLIENT_QUOTAS, handlers.quota_admin.alter),
        _entry(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, _late(lambda: users().describe)),
        _entry(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, _late(lambda: users().alter)),
        _entry(ApiKey.ALTER_PARTITION, controller.alter_partition),
        _entry(ApiKey.UPDATE_FEATURES, controller.update_features),
        _entry(ApiKey.ENVELOPE, controller.envelope),
        _entry(ApiKey.DESCRIBE_CLUSTER, handlers.cluster.describe_once_known),
        _entry(ApiKey.DESCRIBE_PRODUCERS, handlers.cluster.describe_producers),
        _entry(ApiKey.DESCRIBE_TRANSACTIONS, transactions.describe_transactions),
        _entry(ApiKey.LIST_TRANSACTIONS, transactions.list_transactions),
        _entry(ApiKey.ALLOCATE_PRODUCER_IDS, controller.allocate_producer_ids),
        _entry(ApiKey.DESCRIBE_TOPIC_PARTITIONS, handlers.topic_partitions.handle),
    ]
    metrics = handlers.client_metrics
    if metrics is not None:
        entries += [
            _entry(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, metrics.get_subscriptions),
            _entry(ApiKey.PUSH_TELEMETRY, metrics.push),
            _entry(ApiKey.LIST_CLIENT_METRICS_RESOURCES, metrics.list_resources),
        ]
    if consumer_groups is not None:
        entries += [
            _entry(ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer_groups.heartbeat),
            _entry(ApiKey.CONSUMER_GROUP_DESCRIBE, consumer_groups.describe),
        ]
    api = API[ApiKey.API_VERSIONS]
    line = HandlerEntry(
        api.key, api.name, api.min_version, api.max_version, _not_yet, before_authentication=True
    )
    versions = ApiVersionsHandler([*entries, line])
    entries.append(line._replace(handler=versions.handle))
    return entries


def _entry(key: int, handler: Handler) -> HandlerEntry:
    api = API[key]
    return HandlerEntry(key, api.name, api.min_version, api.max_version, handler)


def _late(find: Callable[[], Handler]) -> Handler:
    """A handler that is looked for when the first request comes."""

    def handle(context: RequestContext, request: Any) -> HandlerResult:
        return find()(context, request)

    return handle


def _not_yet(*_: object) -> None:
    raise AssertionError("the line of ApiVersions is replaced before it is used")
