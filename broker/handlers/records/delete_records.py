"""DeleteRecords (21), versions 0 to 2: moves the log start offset of partitions led here.

The response is sent when every live replica has moved its log start offset, or after `timeout_ms`.
Offset -1 stands for the high watermark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.replication.delayed_writes import DelayedDeleteRecords, WaitingDeletion
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import TOPICS
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager

_HIGH_WATERMARK = -1
_UNKNOWN = -1


class DeleteRecordsHandler:
    """Deletes records before an offset, and delays the response until the replicas follow."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    def handle(self, context: RequestContext, request: DeleteRecordsRequest) -> Deferred:
        response = DeleteRecordsResponse()
        waiting: list[WaitingDeletion] = []
        # As in Kafka, the last offset of a partition that is there twice.
        offsets: dict[str, dict[int, int]] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                of_topic = offsets.setdefault(topic.name, {})
                of_topic[partition.partition_index] = partition.offset
        for name, of_topic in offsets.items():
            rows = DeleteRecordsTopicResult(name)
            response.topics.append(rows)
            for index, offset in of_topic.items():
                result = DeleteRecordsPartitionResult(index, _UNKNOWN)
                rows.partitions.append(result)
                try:
                    entry = self._delete(name, index, offset, result)
                except Exception as error:
                    result.error_code = error_code(error)
                else:
                    waiting.append(entry)
        operation = DelayedDeleteRecords(
            request.timeout_ms, waiting, lambda: context.respond(response)
        )
        keys = [partition.key for partition, _, _ in waiting]
        self._replica_manager.delete_records_purgatory.try_complete_else_watch(operation, keys)
        return DEFERRED

    def _delete(
        self, topic: str, index: int, offset: int, result: DeleteRecordsPartitionResult
    ) -> WaitingDeletion:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of {topic}."
            )
        partition = self._replica_manager.partition(topic, index)
        log = partition.leader_log()
        if not log.config.delete:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Records of {topic}-{index} cannot be deleted: cleanup.policy is compact.",
            )
        target = log.high_watermark if offset == _HIGH_WATERMARK else offset
        if target < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.truncator.delete_records_before(target)
        # Not for what waits there, but for what its next response has: the new log start, too.
        self._replica_manager.complete_delayed_requests(partition)
        result.low_watermark = partition.low_watermark()
        return partition, target, result


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        rows = [
            DeleteRecordsPartitionResult(requested.partition_index, -1, code)
            for requested in topic.partitions
        ]
        response.topics.append(DeleteRecordsTopicResult(topic.name, rows))


ROUTES = (
    ApiRoute(
        ApiKey.DELETE_RECORDS,
        DeleteRecordsHandler.handle,
        check="delete_records",
        errors=_error_rows,
        items=(TOPICS,),
    ),
)
