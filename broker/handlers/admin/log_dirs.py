"""AlterReplicaLogDirs (34), versions 0 to 2: moves replicas to other disks of this broker.

The answer says whether a move has begun; DescribeLogDirs shows how far it is (`is_future_key`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests.error_map import error_code
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.replication.log_dir_mover import LogDirMover


class LogDirsAdminHandler:
    """Hands moves to the mover."""

    def __init__(self, mover: LogDirMover) -> None:
        self._mover = mover

    def handle(
        self, context: RequestContext, request: AlterReplicaLogDirsRequest
    ) -> AlterReplicaLogDirsResponse:
        topics: dict[str, AlterReplicaLogDirTopicResult] = {}
        for directory in request.dirs:
            for topic in directory.topics:
                rows = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic.name))
                for index in topic.partitions:
                    code = ErrorCode.NONE
                    try:
                        self._mover.move(TopicPartition(topic.name, index), directory.path)
                    except Exception as error:
                        code = error_code(error)
                    rows.partitions.append(AlterReplicaLogDirPartitionResult(index, code))
        return AlterReplicaLogDirsResponse(results=list(topics.values()))
