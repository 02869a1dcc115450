"""The table of the APIs that this broker serves: key, versions, handler.

The ApiVersions response is built from it, the network layer decodes only what is in it, and it is
the only module that imports all handlers. Every listed version of an API works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.handlers.cluster.controller_requests import handle_envelope
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
    from ottla.broker.cluster.features import FeatureCache
    from ottla.broker.handlers.admin.alter_configs import ConfigAlterer
    from ottla.broker.handlers.admin.client_quotas import QuotaAdminHandlers
    from ottla.broker.handlers.admin.client_telemetry import ClientMetricsHandlers
    from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
    from ottla.broker.handlers.admin.log_dirs import LogDirsHandlers
    from ottla.broker.handlers.admin.topics import TopicAdminHandlers
    from ottla.broker.handlers.cluster.controller_requests import (
        AllocateProducerIdsHandler,
        AlterPartitionHandler,
        ControlledShutdownHandler,
    )
    from ottla.broker.handlers.cluster.elect_leaders import ElectLeadersHandler
    from ottla.broker.handlers.cluster.partition_reassignments import PartitionReassignmentHandlers
    from ottla.broker.handlers.cluster.replica_control import ReplicaControl
    from ottla.broker.handlers.cluster.update_features import UpdateFeaturesHandler
    from ottla.broker.handlers.groups.consumer_groups import (
        ConsumerGroupHandlers,
        ConsumerGroupsNotEnabled,
    )
    from ottla.broker.handlers.groups.group_admin import GroupAdminHandlers
    from ottla.broker.handlers.groups.membership import GroupMembershipHandlers
    from ottla.broker.handlers.groups.offset_commit import OffsetCommitHandler
    from ottla.broker.handlers.groups.offset_delete import OffsetDeleteHandler
    from ottla.broker.handlers.groups.offset_fetch import OffsetFetchHandler
    from ottla.broker.handlers.groups.share_groups import ShareGroupHandlers
    from ottla.broker.handlers.groups.share_offsets import ShareOffsetsHandlers
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
    from ottla.broker.handlers.security.delegation_tokens import DelegationTokenHandlers
    from ottla.broker.handlers.security.user_scram_credentials import UserCredentialHandlers
    from ottla.broker.handlers.share.share_acknowledge import ShareAcknowledgeHandler
    from ottla.broker.handlers.share.share_fetch import ShareFetchHandler
    from ottla.broker.handlers.share.share_state import ShareStateHandlers
    from ottla.broker.handlers.transactions.add_partitions_to_txn import AddPartitionsToTxnHandlers
    from ottla.broker.handlers.transactions.describe_producers import DescribeProducersHandler
    from ottla.broker.handlers.transactions.describe_transactions import TransactionQueryHandlers
    from ottla.broker.handlers.transactions.end_txn import EndTxnHandler
    from ottla.broker.handlers.transactions.init_producer_id import InitProducerIdHandler
    from ottla.broker.handlers.transactions.txn_offset_commit import TxnOffsetCommitHandler
    from ottla.broker.handlers.transactions.write_txn_markers import WriteTxnMarkersHandler


class Handlers(NamedTuple):
    """All handlers of a broker; `ottla.broker.server.handler_assembly` builds them."""

    produce: ProduceHandler
    fetch: FetchHandler
    list_offsets: ListOffsetsHandler
    metadata: MetadataHandler
    replica_control: ReplicaControl
    offset_commit: OffsetCommitHandler
    offset_fetch: OffsetFetchHandler
    offset_delete: OffsetDeleteHandler
    find_coordinator: FindCoordinatorHandler
    features: FeatureCache
    group_membership: GroupMembershipHandlers
    group_admin: GroupAdminHandlers
    consumer_groups: ConsumerGroupHandlers | ConsumerGroupsNotEnabled
    topic_admin: TopicAdminHandlers
    delete_records: DeleteRecordsHandler
    offset_for_leader_epoch: OffsetForLeaderEpochHandler
    init_producer_id: InitProducerIdHandler
    add_partitions_to_txn: AddPartitionsToTxnHandlers
    end_txn: EndTxnHandler
    write_txn_markers: WriteTxnMarkersHandler
    txn_offset_commit: TxnOffsetCommitHandler
    describe_producers: DescribeProducersHandler
    transaction_queries: TransactionQueryHandlers
    config_describe: ConfigDescriber
    config_alter: ConfigAlterer
    describe_cluster: DescribeClusterHandler
    controlled_shutdown: ControlledShutdownHandler
    elect_leaders: ElectLeadersHandler
    partition_reassignments: PartitionReassignmentHandlers
    alter_partition: AlterPartitionHandler
    update_features: UpdateFeaturesHandler
    allocate_producer_ids: AllocateProducerIdsHandler
    quota_admin: QuotaAdminHandlers
    # Built for the first request: most brokers get none.
    user_credentials: Callable[[], UserCredentialHandlers]
    delegation_tokens: Callable[[], DelegationTokenHandlers]
    log_dirs: LogDirsHandlers
    acl_admin: AclAdminHandlers
    topic_partitions: TopicPartitionsHandler
    client_metrics: ClientMetricsHandlers | None  # None: no exporter takes what clients push
    share_groups: ShareGroupHandlers | None = None
    share_offsets: ShareOffsetsHandlers | None = None
    share_fetch: ShareFetchHandler | None = None  # None: share groups are not enabled
    share_acknowledge: ShareAcknowledgeHandler | None = None
    share_state: ShareStateHandlers | None = None


# Brokers send these to each other: a request quota of all users must not mute a controller. Kafka
# has the same list: `sendResponseExemptThrottle`. A fetch of a follower is exempt, too.
_OF_BROKERS = frozenset(
    (
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.ALTER_PARTITION,
    )
)


def build_table(handlers: Handlers) -> list[HandlerEntry]:
    """One entry for each API, with all versions of Kafka 3.9; where consumer groups are enabled
    they have those of Kafka 4 as well."""
    groups, membership = handlers.group_admin, handlers.group_membership
    topics, replicas = handlers.topic_admin, handlers.replica_control
    add_to_txn, transactions = handlers.add_partitions_to_txn, handlers.transaction_queries
    reassignments, consumer_groups = handlers.partition_reassignments, handlers.consumer_groups
    users, tokens = handlers.user_credentials, handlers.delegation_tokens
    entries = [
        _entry(ApiKey.PRODUCE, handlers.produce.handle),
        _entry(ApiKey.FETCH, handlers.fetch.handle),
        _entry(ApiKey.LIST_OFFSETS, handlers.list_offsets.handle),
        _entry(ApiKey.METADATA, handlers.metadata.handle_after_first_metadata),
        _entry(ApiKey.LEADER_AND_ISR, replicas.handle_leader_and_isr),
        _entry(ApiKey.STOP_REPLICA, replicas.handle_stop_replica),
        _entry(ApiKey.UPDATE_METADATA, replicas.handle_update_metadata),
        _entry(ApiKey.CONTROLLED_SHUTDOWN, handlers.controlled_shutdown.handle),
        _entry(ApiKey.OFFSET_COMMIT, handlers.offset_commit.handle),
        _entry(ApiKey.OFFSET_FETCH, handlers.offset_fetch.handle),
        _entry(ApiKey.FIND_COORDINATOR, handlers.find_coordinator.handle),
        _entry(ApiKey.JOIN_GROUP, membership.join_group),
        _entry(ApiKey.HEARTBEAT, membership.heartbeat),
        _entry(ApiKey.LEAVE_GROUP, membership.leave_group),
        _entry(ApiKey.SYNC_GROUP, membership.sync_group),
        _entry(ApiKey.DESCRIBE_GROUPS, groups.describe_groups),
        _entry(ApiKey.LIST_GROUPS, groups.list_groups),
        _entry(ApiKey.SASL_HANDSHAKE, sasl.handshake)._replace(before_authentication=True),
        _entry(ApiKey.CREATE_TOPICS, topics.create_topics),
        _entry(ApiKey.DELETE_TOPICS, topics.delete_topics),
        _entry(ApiKey.DELETE_RECORDS, handlers.delete_records.handle),
        _entry(ApiKey.INIT_PRODUCER_ID, handlers.init_producer_id.handle),
        _entry(ApiKey.OFFSET_FOR_LEADER_EPOCH, handlers.offset_for_leader_epoch.handle),
        _entry(ApiKey.ADD_PARTITIONS_TO_TXN, add_to_txn.add_partitions_to_txn),
        _entry(ApiKey.ADD_OFFSETS_TO_TXN, add_to_txn.add_offsets_to_txn),
        _entry(ApiKey.END_TXN, handlers.end_txn.handle),
        _entry(ApiKey.WRITE_TXN_MARKERS, handlers.write_txn_markers.handle),
        _entry(ApiKey.TXN_OFFSET_COMMIT, handlers.txn_offset_commit.handle),
        _entry(ApiKey.DESCRIBE_ACLS, handlers.acl_admin.describe),
        _entry(ApiKey.CREATE_ACLS, handlers.acl_admin.create),
        _entry(ApiKey.DELETE_ACLS, handlers.acl_admin.delete),
        _entry(ApiKey.DESCRIBE_CONFIGS, handlers.config_describe.handle),
        _entry(ApiKey.ALTER_CONFIGS, handlers.config_alter.alter),
        _entry(ApiKey.ALTER_REPLICA_LOG_DIRS, handlers.log_dirs.alter_replica_log_dirs),
        _entry(ApiKey.DESCRIBE_LOG_DIRS, handlers.log_dirs.describe_log_dirs),
        _entry(ApiKey.SASL_AUTHENTICATE, sasl.authenticate)._replace(before_authentication=True),
        _entry(ApiKey.CREATE_PARTITIONS, topics.create_partitions),
        _entry(ApiKey.CREATE_DELEGATION_TOKEN, _late(lambda: tokens().create)),
        _entry(ApiKey.RENEW_DELEGATION_TOKEN, _late(lambda: tokens().renew)),
        _entry(ApiKey.EXPIRE_DELEGATION_TOKEN, _late(lambda: tokens().expire)),
        _entry(ApiKey.DESCRIBE_DELEGATION_TOKEN, _late(lambda: tokens().describe)),
        _entry(ApiKey.DELETE_GROUPS, groups.delete_groups),
        _entry(ApiKey.ELECT_LEADERS, handlers.elect_leaders.handle),
        _entry(ApiKey.INCREMENTAL_ALTER_CONFIGS, handlers.config_alter.alter_incrementally),
        _entry(ApiKey.ALTER_PARTITION_REASSIGNMENTS, reassignments.alter),
        _entry(ApiKey.LIST_PARTITION_REASSIGNMENTS, reassignments.list_ongoing),
        _entry(ApiKey.OFFSET_DELETE, handlers.offset_delete.handle),
        _entry(ApiKey.DESCRIBE_CLIENT_QUOTAS, handlers.quota_admin.describe),
        _entry(ApiKey.ALTER_CLIENT_QUOTAS, handlers.quota_admin.alter),
        _entry(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, _late(lambda: users().describe)),
        _entry(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, _late(lambda: users().alter)),
        _entry(ApiKey.ALTER_PARTITION, handlers.alter_partition.handle),
        _entry(ApiKey.UPDATE_FEATURES, handlers.update_features.handle),
        _entry(ApiKey.ENVELOPE, handle_envelope),
        _entry(ApiKey.DESCRIBE_CLUSTER, handlers.describe_cluster.handle_after_first_metadata),
        _entry(ApiKey.DESCRIBE_PRODUCERS, handlers.describe_producers.handle),
        _entry(ApiKey.DESCRIBE_TRANSACTIONS, transactions.describe_transactions),
        _entry(ApiKey.LIST_TRANSACTIONS, transactions.list_transactions),
        _entry(ApiKey.ALLOCATE_PRODUCER_IDS, handlers.allocate_producer_ids.handle),
        _entry(ApiKey.DESCRIBE_TOPIC_PARTITIONS, handlers.topic_partitions.handle),
        _entry(ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer_groups.heartbeat)._replace(
            max_version=consumer_groups.max_version
        ),
        _entry(ApiKey.CONSUMER_GROUP_DESCRIBE, consumer_groups.describe)._replace(
            max_version=consumer_groups.max_version
        ),
    ]
    metrics = handlers.client_metrics
    if metrics is not None:
        entries += [
            _entry(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, metrics.get_subscriptions),
            _entry(ApiKey.PUSH_TELEMETRY, metrics.push),
            _entry(ApiKey.LIST_CLIENT_METRICS_RESOURCES, metrics.list_resources),
        ]
    if handlers.share_fetch is not None and handlers.share_acknowledge is not None:
        entries += [
            _entry(ApiKey.SHARE_FETCH, handlers.share_fetch.handle),
            _entry(ApiKey.SHARE_ACKNOWLEDGE, handlers.share_acknowledge.handle),
        ]
    share_groups = handlers.share_groups
    if share_groups is not None:
        entries += [
            _entry(ApiKey.SHARE_GROUP_HEARTBEAT, share_groups.heartbeat),
            _entry(ApiKey.SHARE_GROUP_DESCRIBE, share_groups.describe),
        ]
    share_offsets = handlers.share_offsets
    if share_offsets is not None:
        entries += [
            _entry(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, share_offsets.describe),
            _entry(ApiKey.ALTER_SHARE_GROUP_OFFSETS, share_offsets.alter),
            _entry(ApiKey.DELETE_SHARE_GROUP_OFFSETS, share_offsets.delete),
        ]
    share_state = handlers.share_state
    if share_state is not None:
        entries += [
            _entry(ApiKey.INITIALIZE_SHARE_GROUP_STATE, share_state.initialize),
            _entry(ApiKey.READ_SHARE_GROUP_STATE, share_state.read),
            _entry(ApiKey.WRITE_SHARE_GROUP_STATE, share_state.write),
            _entry(ApiKey.DELETE_SHARE_GROUP_STATE, share_state.delete),
            _entry(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, share_state.summary),
        ]
    api = API[ApiKey.API_VERSIONS]
    line = HandlerEntry(
        api.key, api.name, api.min_version, api.max_version, _replaced, before_authentication=True
    )
    versions = ApiVersionsHandler([*entries, line], handlers.features)
    entries.append(line._replace(handler=versions.handle))
    return entries


def _entry(key: int, handler: Handler) -> HandlerEntry:
    api = API[key]
    return HandlerEntry(
        key,
        api.name,
        api.min_version,
        api.max_version,
        handler,
        exempt_from_request_quota=key in _OF_BROKERS,
    )


def _late(find: Callable[[], Handler]) -> Handler:
    """A handler that is built when the first request comes."""

    def handle(context: RequestContext, request: Any) -> HandlerResult:
        return find()(context, request)

    return handle


def _replaced(*_: object) -> None:
    raise AssertionError("the entry of ApiVersions is replaced before it is used")
