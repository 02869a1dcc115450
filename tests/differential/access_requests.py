"""Requests of every kind that access control may refuse, by name, as functions of the version."""

from __future__ import annotations

from collections.abc import Callable

from ottla.protocol.message import Message
from ottla.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    controlled_shutdown,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_transactions,
    elect_leaders,
    end_txn,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_partition_reassignments,
    list_transactions,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)

Ask = Callable[[int], Message]

OPEN, CLOSED, SEEN = "open", "closed", "seen"
"""Topics, groups and transactional ids: all allowed to the client, nothing, describing only."""

NAMES = (OPEN, CLOSED, SEEN, "missing", "open-missing")


def whole_cluster() -> dict[str, Ask]:
    """Requests about the cluster, for administrators and brokers."""
    quota = alter_client_quotas.AlterClientQuotasRequestEntryData(
        [alter_client_quotas.AlterClientQuotasRequestEntityData("user", "a")],
        [alter_client_quotas.OpData("producer_byte_rate", 1.0)],
    )
    marker = write_txn_markers.WritableTxnMarker(
        1, 0, False, [write_txn_markers.WritableTxnMarkerTopic(OPEN, [0])]
    )
    acl = create_acls.AclCreation(2, OPEN, 3, "User:a", "*", 3, 3)
    return {
        "acls": lambda version: describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1),
        "new acls": lambda version: create_acls.CreateAclsRequest([acl, acl]),
        "no more acls": lambda version: delete_acls.DeleteAclsRequest(
            [delete_acls.DeleteAclsFilter(1, None, 3, None, None, 1, 1)]
        ),
        "directories": lambda version: describe_log_dirs.DescribeLogDirsRequest(None),
        "moves": lambda version: alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            [
                alter_replica_log_dirs.AlterReplicaLogDir(
                    "/nowhere", [alter_replica_log_dirs.AlterReplicaLogDirTopic(OPEN, [0])]
                )
            ]
        ),
        "elections": lambda version: elect_leaders.ElectLeadersRequest(
            0, [elect_leaders.TopicPartitions(OPEN, [0])]
        ),
        "reassignments": lambda version: (
            alter_partition_reassignments.AlterPartitionReassignmentsRequest(
                topics=[
                    alter_partition_reassignments.ReassignableTopic(
                        OPEN, [alter_partition_reassignments.ReassignablePartition(0, [0])]
                    )
                ]
            )
        ),
        "listed reassignments": lambda version: (
            list_partition_reassignments.ListPartitionReassignmentsRequest(topics=None)
        ),
        "quotas": lambda version: describe_client_quotas.DescribeClientQuotasRequest([], False),
        "new quotas": lambda version: alter_client_quotas.AlterClientQuotasRequest([quota], False),
        "features": lambda version: update_features.UpdateFeaturesRequest(),
        "shutdown": lambda version: controlled_shutdown.ControlledShutdownRequest(0, 0),
        "producer ids": lambda version: allocate_producer_ids.AllocateProducerIdsRequest(0, 0),
        "isr": lambda version: alter_partition.AlterPartitionRequest(0, 0),
        "markers": lambda version: write_txn_markers.WriteTxnMarkersRequest([marker]),
        "cluster": lambda version: describe_cluster.DescribeClusterRequest(True),
    }


def of_groups() -> dict[str, Ask]:
    """Requests of members, and about groups; of one that is open and one that is closed."""
    groups = [OPEN, CLOSED, SEEN]
    asked = [
        offset_fetch.OffsetFetchRequestGroup(
            group, topics=[offset_fetch.OffsetFetchRequestTopics(name, [0]) for name in NAMES]
        )
        for group in groups
    ]
    committed = [
        offset_commit.OffsetCommitRequestTopic(
            name, [offset_commit.OffsetCommitRequestPartition(0, 1)]
        )
        for name in NAMES
    ]
    forgotten = [
        offset_delete.OffsetDeleteRequestTopic(
            name, [offset_delete.OffsetDeleteRequestPartition(0)]
        )
        for name in NAMES
    ]
    fetched = [offset_fetch.OffsetFetchRequestTopic(name, [0]) for name in NAMES]
    found: dict[str, Ask] = {
        "described": lambda version: describe_groups.DescribeGroupsRequest(groups, version >= 3),
        "deleted": lambda version: delete_groups.DeleteGroupsRequest(["open-none", CLOSED, SEEN]),
        "listed": lambda version: list_groups.ListGroupsRequest(),
    }
    for group in groups:
        found |= {
            f"join {group}": lambda version, g=group: join_group.JoinGroupRequest(
                g, 10_000, 10_000, "absent", protocol_type="consumer"
            ),
            f"sync {group}": lambda version, g=group: sync_group.SyncGroupRequest(
                g, 1, "absent", protocol_type="consumer", protocol_name="range"
            ),
            f"heartbeat {group}": lambda version, g=group: heartbeat.HeartbeatRequest(
                g, 1, "absent"
            ),
            f"leave {group}": lambda version, g=group: leave_group.LeaveGroupRequest(
                g, "absent", [leave_group.MemberIdentity("absent")]
            ),
            f"commit {group}": lambda version, g=group: offset_commit.OffsetCommitRequest(
                g, topics=committed
            ),
            f"offsets {group}": lambda version, g=group: offset_fetch.OffsetFetchRequest(
                g, fetched, asked
            ),
            f"forget {group}": lambda version, g=group: offset_delete.OffsetDeleteRequest(
                g, forgotten
            ),
            f"coordinator {group}": lambda version, g=group: (
                find_coordinator.FindCoordinatorRequest(g, 0, groups)
            ),
        }
    return found


def of_transactions() -> dict[str, Ask]:
    """Requests of transactional producers, and about them."""
    ids = [OPEN, CLOSED, SEEN]
    found: dict[str, Ask] = {
        "idempotent": lambda version: init_producer_id.InitProducerIdRequest(None, 1000),
        "described": lambda version: describe_transactions.DescribeTransactionsRequest(ids),
        "listed": lambda version: list_transactions.ListTransactionsRequest(),
        "producers": lambda version: describe_producers.DescribeProducersRequest(
            [describe_producers.TopicRequest(name, [0]) for name in (OPEN, CLOSED, SEEN)]
        ),
    }
    for each in (CLOSED, SEEN):
        topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(OPEN, [0, 1])]
        found |= {
            f"init {each}": lambda version, i=each: init_producer_id.InitProducerIdRequest(i, 1000),
            f"add {each}": lambda version, i=each, t=topics: (
                add_partitions_to_txn.AddPartitionsToTxnRequest(
                    transactions=[
                        add_partitions_to_txn.AddPartitionsToTxnTransaction(i, 1, 0, False, t)
                    ],
                    v3_and_below_transactional_id=i,
                    v3_and_below_producer_id=1,
                    v3_and_below_topics=t,
                )
            ),
            f"offsets {each}": lambda version, i=each: add_offsets_to_txn.AddOffsetsToTxnRequest(
                i, 1, 0, OPEN
            ),
            f"end {each}": lambda version, i=each: end_txn.EndTxnRequest(i, 1, 0, True),
            f"commit {each}": lambda version, i=each: txn_offset_commit.TxnOffsetCommitRequest(
                i,
                OPEN,
                1,
                topics=[
                    txn_offset_commit.TxnOffsetCommitRequestTopic(
                        OPEN, [txn_offset_commit.TxnOffsetCommitRequestPartition(0, 1)]
                    )
                ],
            ),
            f"coordinator {each}": lambda version, i=each: find_coordinator.FindCoordinatorRequest(
                i, 1, ids
            ),
        }
    found["offsets of a closed group"] = lambda version: add_offsets_to_txn.AddOffsetsToTxnRequest(
        OPEN, 1, 0, CLOSED
    )
    found["partitions of a closed topic"] = lambda version: (
        add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=OPEN,
            v3_and_below_producer_id=1,
            v3_and_below_topics=[
                add_partitions_to_txn.AddPartitionsToTxnTopic(OPEN, [0, 1]),
                add_partitions_to_txn.AddPartitionsToTxnTopic(CLOSED, [0]),
            ],
        )
    )
    return found


def of_topics() -> dict[str, Ask]:
    """Requests about topics and their settings that change nothing."""
    kinds = [(2, name) for name in (OPEN, CLOSED, SEEN)] + [(4, "0"), (8, "0")]
    new = [create_topics.CreatableTopic(name, 1, 1) for name in ("closed-new", "open-new", OPEN)]
    more = [create_partitions.CreatePartitionsTopic(name, 3) for name in (OPEN, CLOSED, SEEN)]
    cut = [
        delete_records.DeleteRecordsTopic(name, [delete_records.DeleteRecordsPartition(1, 0)])
        for name in (OPEN, CLOSED, SEEN)
    ]
    return {
        "create": lambda version: create_topics.CreateTopicsRequest(new, 30_000, version >= 1),
        "partitions": lambda version: create_partitions.CreatePartitionsRequest(more, 30_000, True),
        "delete": lambda version: delete_topics.DeleteTopicsRequest(
            [delete_topics.DeleteTopicState(name) for name in (CLOSED, SEEN, "open-none")],
            [CLOSED, SEEN, "open-none"],
            30_000,
        ),
        "records": lambda version: delete_records.DeleteRecordsRequest(cut, 30_000),
        "settings": lambda version: describe_configs.DescribeConfigsRequest(
            [
                describe_configs.DescribeConfigsResource(kind, name, ["retention.ms"])
                for kind, name in kinds
            ]
        ),
        "new settings": lambda version: alter_configs.AlterConfigsRequest(
            [
                alter_configs.AlterConfigsResource(kind, name, [])
                for kind, name in kinds
                if kind != 8
            ],
            True,
        ),
        "changed settings": lambda version: (
            incremental_alter_configs.IncrementalAlterConfigsRequest(
                [
                    incremental_alter_configs.AlterConfigsResource(kind, name, [])
                    for kind, name in kinds
                ],
                True,
            )
        ),
    }
