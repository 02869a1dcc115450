"""DeleteRecords (21) and OffsetForLeaderEpoch (23), all versions.

DeleteRecords moves the log start of a partition up; it is answered when every live replica has
followed, at most after `timeout_ms`. Offset -1 stands for the high watermark.

OffsetForLeaderEpoch tells a follower or consumer where an epoch ended, so that it finds out what of
its own log, or of its position, the leader does not have (KIP-101, KIP-279, KIP-320).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.replication.delayed_delete_records import DelayedDeleteRecords, Waiting
from ottla.broker.requests.error_map import error_code
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager

_HIGH_WATERMARK = -1
_UNKNOWN = -1


class RecordsAdminHandlers:
    """Both APIs work on the partitions led here."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    def delete_records(self, context: RequestContext, request: DeleteRecordsRequest) -> Deferred:
        response = DeleteRecordsResponse()
        waiting: list[Waiting] = []
        for topic in request.topics:
            rows = DeleteRecordsTopicResult(topic.name)
            response.topics.append(rows)
            for asked in topic.partitions:
                result = DeleteRecordsPartitionResult(asked.partition_index, _UNKNOWN)
                rows.partitions.append(result)
                try:
                    entry = self._delete(topic.name, asked.partition_index, asked.offset, result)
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
    ) -> Waiting:
        if topic in ("__consumer_offsets", "__transaction_state"):
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
        log.delete_records_before(target)
        result.low_watermark = partition.low_watermark()
        return partition, target, result

    def offset_for_leader_epoch(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        response = OffsetForLeaderEpochResponse()
        for topic in request.topics:
            rows = OffsetForLeaderTopicResult(topic.topic)
            response.topics.append(rows)
            for asked in topic.partitions:
                row = EpochEndOffset(ErrorCode.NONE, asked.partition, _UNKNOWN, _UNKNOWN)
                rows.partitions.append(row)
                try:
                    partition = self._replica_manager.partition(topic.topic, asked.partition)
                    log = partition.log_for(asked.current_leader_epoch, leader_only=True)
                    found = partition.end_offset_for_epoch(log, asked.leader_epoch)
                except Exception as error:
                    row.error_code = error_code(error)
                else:
                    row.leader_epoch, row.end_offset = found
        return response
