"""OffsetForLeaderEpoch (23), versions 0 to 4: the end offset of a leader epoch.

A follower or consumer that compares it with its own log or position finds where the two diverge
(KIP-101, KIP-279, KIP-320).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_parts import TOPICS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager

_UNKNOWN = -1


class OffsetForLeaderEpochHandler:
    """Looks epochs up in the leader epoch caches of partitions led here."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    def handle(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        response = OffsetForLeaderEpochResponse()
        for topic in request.topics:
            rows = OffsetForLeaderTopicResult(topic.topic)
            response.topics.append(rows)
            for requested in topic.partitions:
                row = EpochEndOffset(ErrorCode.NONE, requested.partition, _UNKNOWN, _UNKNOWN)
                rows.partitions.append(row)
                try:
                    partition = self._replica_manager.partition(topic.topic, requested.partition)
                    log = partition.log_for(requested.current_leader_epoch, leader_only=True)
                    found = partition.end_offset_for_epoch(log, requested.leader_epoch)
                except Exception as error:
                    row.error_code = error_code(error)
                else:
                    row.leader_epoch, row.end_offset = found
        return response


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        rows = [EpochEndOffset(code, requested.partition, -1, -1) for requested in topic.partitions]
        response.topics.append(OffsetForLeaderTopicResult(topic.topic, rows))


ROUTES = (
    ApiRoute(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        OffsetForLeaderEpochHandler.handle,
        check="offset_for_leader_epoch",
        errors=_error_rows,
        items=(TOPICS,),
    ),
)
