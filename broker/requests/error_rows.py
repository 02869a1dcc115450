"""The rows of the response to a request whose handler failed: one for each requested item.

Mirrors `getErrorResponse` of Kafka's request classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Requests and responses of many APIs: only Any can name them all.
Builder = Callable[[Any, Any, int, "str | None"], None]


def _import(api: str) -> Any:
    from importlib import import_module

    return import_module(f"ottla.protocol.messages.{api}")


def _produce(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("produce")
    for topic in request.topic_data:
        rows = [
            module.PartitionProduceResponse(data.index, code, -1, -1, -1, error_message=message)
            for data in topic.partition_data
        ]
        response.responses.append(module.TopicProduceResponse(topic.name, rows))


def _fetch(request: Any, response: Any, code: int, message: str | None) -> None:
    if request.session_id:
        return  # The top-level code stands for the whole session.
    module = _import("fetch")
    for topic in request.topics:
        rows = [
            module.PartitionData(requested.partition, code, -1, -1, -1, records=b"")
            for requested in topic.partitions
        ]
        response.responses.append(module.FetchableTopicResponse(topic.topic, topic.topic_id, rows))


def _list_offsets(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("list_offsets")
    for topic in request.topics:
        rows = [
            module.ListOffsetsPartitionResponse(requested.partition_index, code)
            for requested in topic.partitions
        ]
        response.topics.append(module.ListOffsetsTopicResponse(topic.name, rows))


def _metadata(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("metadata")
    for topic in request.topics or ():
        response.topics.append(module.MetadataResponseTopic(code, topic.name or "", topic.topic_id))


def _create_topics(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("create_topics")
    for topic in request.topics:
        response.topics.append(
            module.CreatableTopicResult(topic.name, error_code=code, error_message=message)
        )


def _delete_topics(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("delete_topics")
    for name in request.topic_names:
        response.responses.append(module.DeletableTopicResult(name, error_code=code))
    for topic in request.topics:
        response.responses.append(
            module.DeletableTopicResult(topic.name, topic.topic_id, code, message)
        )


def _create_partitions(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("create_partitions")
    for topic in request.topics:
        response.results.append(module.CreatePartitionsTopicResult(topic.name, code, message))


def _delete_records(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("delete_records")
    for topic in request.topics:
        rows = [
            module.DeleteRecordsPartitionResult(requested.partition_index, -1, code)
            for requested in topic.partitions
        ]
        response.topics.append(module.DeleteRecordsTopicResult(topic.name, rows))


def _offset_for_leader_epoch(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("offset_for_leader_epoch")
    for topic in request.topics:
        rows = [
            module.EpochEndOffset(code, requested.partition, -1, -1)
            for requested in topic.partitions
        ]
        response.topics.append(module.OffsetForLeaderTopicResult(topic.topic, rows))


def _describe_configs(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("describe_configs")
    for resource in request.resources:
        response.results.append(
            module.DescribeConfigsResult(
                code, message, resource.resource_type, resource.resource_name
            )
        )


def _alter_configs(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("alter_configs")
    for resource in request.resources:
        response.responses.append(
            module.AlterConfigsResourceResponse(
                code, message, resource.resource_type, resource.resource_name
            )
        )


def _incremental_alter_configs(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("incremental_alter_configs")
    for resource in request.resources:
        response.responses.append(
            module.AlterConfigsResourceResponse(
                code, message, resource.resource_type, resource.resource_name
            )
        )


def _stop_replica(request: Any, response: Any, code: int, message: str | None) -> None:
    from ottla.broker.requests.refused_requests import stop_replica_refused

    response.partition_errors = stop_replica_refused(request, code).partition_errors


def _offset_commit(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("offset_commit")
    for topic in request.topics:
        rows = [
            module.OffsetCommitResponsePartition(requested.partition_index, code)
            for requested in topic.partitions
        ]
        response.topics.append(module.OffsetCommitResponseTopic(topic.name, rows))


def _describe_groups(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("describe_groups")
    for group_id in request.groups:
        response.groups.append(module.DescribedGroup(error_code=code, group_id=group_id))


def _consumer_group_describe(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("consumer_group_describe")
    for group_id in request.group_ids:
        response.groups.append(module.DescribedGroup(code, message, group_id))


def _share_group_describe(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("share_group_describe")
    for group_id in request.group_ids:
        response.groups.append(module.DescribedGroup(code, message, group_id))


def _describe_share_offsets(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("describe_share_group_offsets")
    for group in request.groups:
        response.groups.append(
            module.DescribeShareGroupOffsetsResponseGroup(
                group.group_id, error_code=code, error_message=message
            )
        )


def _share_state(api: str, row: str) -> Builder:
    """The rows of a ShareGroupState request: an error for each partition."""

    def build(request: Any, response: Any, code: int, message: str | None) -> None:
        module = _import(api)
        for topic in request.topics:
            rows = [
                module.PartitionResult(each.partition, error_code=code, error_message=message)
                for each in topic.partitions
            ]
            response.results.append(getattr(module, row)(topic.topic_id, rows))

    return build


def _delete_groups(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("delete_groups")
    for group_id in request.groups_names:
        response.results.append(module.DeletableGroupResult(group_id, code))


def _describe_client_quotas(request: Any, response: Any, code: int, message: str | None) -> None:
    response.entries = None


def _alter_client_quotas(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("alter_client_quotas")
    for entry in request.entries:
        entity = [
            module.AlterClientQuotasResponseEntityData(part.entity_type, part.entity_name)
            for part in entry.entity
        ]
        response.entries.append(module.AlterClientQuotasResponseEntryData(code, message, entity))


def _offset_fetch(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("offset_fetch")
    # Below version 2 there is no other place; from version 8 on there are groups instead.
    for topic in request.topics or ():
        rows = [
            module.OffsetFetchResponsePartition(index, -1, -1, "", code)
            for index in topic.partition_indexes
        ]
        response.topics.append(module.OffsetFetchResponseTopic(topic.name, rows))
    for group in request.groups:
        response.groups.append(module.OffsetFetchResponseGroup(group.group_id, [], code))


def _find_coordinator(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("find_coordinator")
    for key in request.coordinator_keys:
        response.coordinators.append(module.Coordinator(key, -1, "", -1, code, message))


def _add_partitions_to_txn(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("add_partitions_to_txn")
    for topic in request.v3_and_below_topics:
        rows = [module.AddPartitionsToTxnPartitionResult(index, code) for index in topic.partitions]
        response.results_by_topic_v3_and_below.append(
            module.AddPartitionsToTxnTopicResult(topic.name, rows)
        )


def _write_txn_markers(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("write_txn_markers")
    for marker in request.markers:
        topics = [
            module.WritableTxnMarkerTopicResult(
                topic.name,
                [
                    module.WritableTxnMarkerPartitionResult(index, code)
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        response.markers.append(module.WritableTxnMarkerResult(marker.producer_id, topics))


def _txn_offset_commit(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("txn_offset_commit")
    for topic in request.topics:
        rows = [
            module.TxnOffsetCommitResponsePartition(requested.partition_index, code)
            for requested in topic.partitions
        ]
        response.topics.append(module.TxnOffsetCommitResponseTopic(topic.name, rows))


def _alter_replica_log_dirs(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("alter_replica_log_dirs")
    for directory in request.dirs:
        for topic in directory.topics:
            rows = [
                module.AlterReplicaLogDirPartitionResult(index, code) for index in topic.partitions
            ]
            response.results.append(module.AlterReplicaLogDirTopicResult(topic.name, rows))


def _elect_leaders(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("elect_leaders")
    for topic in request.topic_partitions or ():
        rows = [module.PartitionResult(index, code, message) for index in topic.partitions]
        response.replica_election_results.append(module.ReplicaElectionResult(topic.topic, rows))


def _describe_producers(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("describe_producers")
    for topic in request.topics:
        rows = [module.PartitionResponse(index, code, message) for index in topic.partition_indexes]
        response.topics.append(module.TopicResponse(topic.name, rows))


def _describe_transactions(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("describe_transactions")
    for each in request.transactional_ids:
        response.transaction_states.append(module.TransactionState(code, each))


def _create_acls(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("create_acls")
    response.results = [module.AclCreationResult(code, message) for _ in request.creations]


def _delete_acls(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("delete_acls")
    response.filter_results = [
        module.DeleteAclsFilterResult(code, message) for _ in request.filters
    ]


def _init_producer_id(request: Any, response: Any, code: int, message: str | None) -> None:
    response.producer_id = response.producer_epoch = -1


def _alter_reassignments(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("alter_partition_reassignments")
    for topic in request.topics:
        rows = [
            module.ReassignablePartitionResponse(requested.partition_index, code, message)
            for requested in topic.partitions
        ]
        response.responses.append(module.ReassignableTopicResponse(topic.name, rows))


def _describe_topic_partitions(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("describe_topic_partitions")
    for topic in request.topics:
        response.topics.append(module.DescribeTopicPartitionsResponseTopic(code, topic.name))


def _describe_scram(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("describe_user_scram_credentials")
    for _ in request.users or ():
        response.results.append(module.DescribeUserScramCredentialsResult("", code, message))


def _alter_scram(request: Any, response: Any, code: int, message: str | None) -> None:
    module = _import("alter_user_scram_credentials")
    for user in sorted({change.name for change in (*request.deletions, *request.upsertions)}):
        response.results.append(module.AlterUserScramCredentialsResult(user, code, message))


BUILDERS: dict[int, Builder] = {
    0: _produce,
    1: _fetch,
    2: _list_offsets,
    3: _metadata,
    5: _stop_replica,
    8: _offset_commit,
    9: _offset_fetch,
    10: _find_coordinator,
    15: _describe_groups,
    19: _create_topics,
    20: _delete_topics,
    21: _delete_records,
    22: _init_producer_id,
    23: _offset_for_leader_epoch,
    24: _add_partitions_to_txn,
    27: _write_txn_markers,
    28: _txn_offset_commit,
    30: _create_acls,
    31: _delete_acls,
    32: _describe_configs,
    33: _alter_configs,
    34: _alter_replica_log_dirs,
    37: _create_partitions,
    42: _delete_groups,
    43: _elect_leaders,
    44: _incremental_alter_configs,
    45: _alter_reassignments,
    48: _describe_client_quotas,
    49: _alter_client_quotas,
    50: _describe_scram,
    51: _alter_scram,
    61: _describe_producers,
    65: _describe_transactions,
    75: _describe_topic_partitions,
    69: _consumer_group_describe,
    77: _share_group_describe,
    83: _share_state("initialize_share_group_state", "InitializeStateResult"),
    84: _share_state("read_share_group_state", "ReadStateResult"),
    85: _share_state("write_share_group_state", "WriteStateResult"),
    86: _share_state("delete_share_group_state", "DeleteStateResult"),
    87: _share_state("read_share_group_state_summary", "ReadStateSummaryResult"),
    90: _describe_share_offsets,
}
