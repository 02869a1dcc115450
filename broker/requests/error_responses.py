"""The response to a request whose handler raised an exception, and the error code of an exception.

`error_code` is the only place that maps exceptions of this broker to Kafka's error codes. It
searches the bases of an exception too, so a subclass without a row gets its base's code. An
unexpected exception becomes UNKNOWN_SERVER_ERROR and is logged with its traceback: it is a defect
of this broker, not a client's mistake.

Most responses have one error code at the top level. The others have it in the row of each requested
item, and some changed from one to the other between versions. The rows mirror `getErrorResponse` of
Kafka's request classes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ottla.broker.runtime.log_limiter import LogLimiter
from ottla.controller.tree.store import ConnectionLost, InvalidPath, SessionExpired
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from ottla.protocol.records import errors as records
from ottla.protocol.registry import API
from ottla.storage import errors as storage
from ottla.storage.log.batch_scan import CorruptLog

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import RequestContext

_PRODUCE, _LEADER_AND_ISR, _FIND_COORDINATOR, _JOIN_GROUP, _ELECT_LEADERS = 0, 4, 10, 11, 43


def error_response(context: RequestContext, error: Exception) -> Message | None:
    """The response with the code of `error` in the layout of the request's API; None when there is
    none to send."""
    request = context.request
    if request is None:
        return None
    key, version = context.header.api_key, context.header.api_version
    if key == _PRODUCE and getattr(request, "acks", 1) == 0:
        context.close("a produce request with acks=0 failed")
        return None
    code = error_code(error)
    message = error_message(error)
    if key == _LEADER_AND_ISR:  # its rows are at another place in later versions
        return leader_and_isr_refused(cast("LeaderAndIsrRequest", request), version, code)
    reply: Any = API[key].response()  # each API has fields of its own
    builder = BUILDERS.get(key)
    if builder is not None:
        builder(request, reply, code, message)
    if hasattr(reply, "error_code") and _has_top_level_code(key, version):
        reply.error_code = code
        if hasattr(reply, "error_message"):
            reply.error_message = message
        if key == _FIND_COORDINATOR:
            reply.node_id = reply.port = -1
        elif key == _JOIN_GROUP and version >= 7:
            reply.protocol_name = None  # before it is an empty name
    elif builder is None:
        raise error
    return cast(Message, reply)


def _has_top_level_code(key: int, version: int) -> bool:
    """Whether a version has a top-level error code. The encoder leaves it out of the others."""
    if key == _FIND_COORDINATOR:
        return version < 4
    return key != _ELECT_LEADERS or version >= 1


logger = logging.getLogger("ottla.broker")

_CODES: dict[type[BaseException], int] = {
    records.CorruptRecordError: ErrorCode.CORRUPT_MESSAGE,
    records.InvalidTimestampError: ErrorCode.INVALID_TIMESTAMP,
    records.InvalidRecordError: ErrorCode.INVALID_RECORD,
    records.UnsupportedCompressionError: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    records.UnsupportedFormatError: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    records.RecordTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
    records.RecordsError: ErrorCode.CORRUPT_MESSAGE,
    storage.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    storage.BatchTooLargeForSegment: ErrorCode.RECORD_LIST_TOO_LARGE,
    storage.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    storage.InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    storage.InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    storage.TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    storage.LogDirectoryOffline: ErrorCode.KAFKA_STORAGE_ERROR,
    storage.DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
    storage.ResourceExhausted: ErrorCode.KAFKA_STORAGE_ERROR,
    storage.LogClosed: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    storage.CorruptFile: ErrorCode.KAFKA_STORAGE_ERROR,
    CorruptLog: ErrorCode.CORRUPT_MESSAGE,
    storage.SegmentOffsetOverflow: ErrorCode.KAFKA_STORAGE_ERROR,
    storage.InconsistentMetadata: ErrorCode.INCONSISTENT_TOPIC_ID,
    # Kafka's request waits for ZooKeeper, so its clients time out, and retry as after this code.
    ConnectionLost: ErrorCode.REQUEST_TIMED_OUT,
    SessionExpired: ErrorCode.REQUEST_TIMED_OUT,
    # As of Kafka; a client may call a group or a user so.
    InvalidPath: ErrorCode.UNKNOWN_SERVER_ERROR,
    ProtocolError: ErrorCode.INVALID_REQUEST,
    OSError: ErrorCode.KAFKA_STORAGE_ERROR,
    TimeoutError: ErrorCode.REQUEST_TIMED_OUT,
}

_unwritten = LogLimiter()


def error_code(error: BaseException) -> int:
    """The code that the client gets for `error`; logs an unexpected one."""
    if isinstance(error, KafkaError):
        return error.code
    for cls in type(error).__mro__:
        code = _CODES.get(cls)
        if code is not None:
            if cls in (ConnectionLost, SessionExpired) and _unwritten.allows(str(error)):
                logger.warning("A request failed, the client gets REQUEST_TIMED_OUT: %s", error)
            return code
    logger.error(
        "Unexpected %s, the client gets UNKNOWN_SERVER_ERROR: %s",
        type(error).__name__,
        error,
        exc_info=error,
    )
    return ErrorCode.UNKNOWN_SERVER_ERROR


def error_message(error: BaseException) -> str | None:
    """The error message of the response, or None; never details of the implementation."""
    if isinstance(error, KafkaError):
        return error.message or None
    if any(cls in _CODES for cls in type(error).__mro__) and not isinstance(error, OSError):
        return str(error) or None
    return None


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
    from ottla.broker.requests.error_responses import stop_replica_refused

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


# The first version whose rows are grouped by topic id.
_FIRST_WITH_TOPIC_IDS = 5


def leader_and_isr_refused(
    request: LeaderAndIsrRequest, version: int, code: int
) -> LeaderAndIsrResponse:
    """The response in a version, with `code` for each partition."""
    response = LeaderAndIsrResponse(error_code=code)
    if version < _FIRST_WITH_TOPIC_IDS:
        named = [(state.topic_name, state) for state in request.ungrouped_partition_states]
        named += [
            (topic.topic_name, state)
            for topic in request.topic_states
            for state in topic.partition_states
        ]
        response.partition_errors = [
            LeaderAndIsrPartitionError(name, state.partition_index, code) for name, state in named
        ]
    else:
        response.topics = [
            LeaderAndIsrTopicError(
                topic.topic_id,
                [
                    LeaderAndIsrPartitionError("", state.partition_index, code)
                    for state in topic.partition_states
                ],
            )
            for topic in request.topic_states
        ]
    return response


def stop_replica_refused(request: StopReplicaRequest, code: int) -> StopReplicaResponse:
    """The response with `code` for each partition."""
    named = [(each.topic_name, each.partition_index) for each in request.ungrouped_partitions]
    for topic in request.topics:
        named += [(topic.name, index) for index in topic.partition_indexes]
    for group in request.topic_states:
        named += [(group.topic_name, state.partition_index) for state in group.partition_states]
    return StopReplicaResponse(
        error_code=code,
        partition_errors=[StopReplicaPartitionError(name, index, code) for name, index in named],
    )
