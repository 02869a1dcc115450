"""The response to a request whose handler raised an exception, and the error code of an exception.

`error_code` is the only place that maps exceptions of this broker to Kafka's error codes. It
searches the bases of an exception too, so a subclass without a row gets its base's code. An
unexpected exception becomes UNKNOWN_SERVER_ERROR and is logged with its traceback: it is a defect
of this broker, not a client's mistake.

Most responses have one error code at the top level. The others have it in the row of each requested
item, and some changed from one to the other between versions. The rows mirror `getErrorResponse` of
Kafka's request classes; the route of an API adds them (`ottla.broker.requests.api_routes`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from ottla.broker.runtime.log_limiter import LogLimiter
from ottla.controller.tree.store import (
    ConnectionLost,
    InvalidPath,
    SessionExpired,
    StoreError,
    TooLarge,
)
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError, error_name
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

MAX_MESSAGE = 8_000
"""Characters of an error message; each may take four of the 32,767 bytes of a string."""

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
    add_rows = context.route.entry.errors
    if add_rows is not None:
        add_rows(request, reply, code, message)
    if hasattr(reply, "error_code") and _has_top_level_code(key, version):
        reply.error_code = code
        if hasattr(reply, "error_message"):
            reply.error_message = message
        if key == _FIND_COORDINATOR:
            reply.node_id = reply.port = -1
        elif key == _JOIN_GROUP and version >= 7:
            reply.protocol_name = None  # before it is an empty name
    elif add_rows is None:
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
    TooLarge: ErrorCode.INVALID_REQUEST,
    StoreError: ErrorCode.UNKNOWN_SERVER_ERROR,
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
            is_of_tree = isinstance(error, StoreError) and cls is not InvalidPath
            if is_of_tree and _unwritten.allows(str(error)):
                name = error_name(code)
                logger.warning("A request failed, the client gets %s: %s", name, error)
            return code
    logger.error(
        "Unexpected %s, the client gets UNKNOWN_SERVER_ERROR: %s",
        type(error).__name__,
        error,
        exc_info=error,
    )
    return ErrorCode.UNKNOWN_SERVER_ERROR


def error_message(error: BaseException) -> str | None:
    """The error message of the response, or None; never details of the implementation.

    At most `MAX_MESSAGE` characters: a response with a longer string cannot be encoded, and its
    client would not know why the connection is closed.
    """
    if isinstance(error, KafkaError):
        return error.message[:MAX_MESSAGE] or None
    if any(cls in _CODES for cls in type(error).__mro__) and not isinstance(error, OSError):
        return str(error)[:MAX_MESSAGE] or None
    return None


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
