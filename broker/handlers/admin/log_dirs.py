"""AlterReplicaLogDirs (34), versions 0 to 2, and DescribeLogDirs (35), versions 0 to 5.

AlterReplicaLogDirs starts to move replicas to other log directories of this broker; the response
says whether a move has begun. DescribeLogDirs shows its progress (`is_future_key`) (KIP-113).

Both may be about all replicas of a broker: they pause between replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.broker.requests.request_parts import LARGE
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.replication.log_dir_mover import LogDirMover
    from ottla.protocol.steps import Steps
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.log import Log


class LogDirsHandlers:
    """The log directories of this broker and the replicas in them."""

    def __init__(self, mover: LogDirMover, log_manager: LogManager) -> None:
        self._mover = mover
        self._log_manager = log_manager

    def alter_replica_log_dirs(
        self, context: RequestContext, request: AlterReplicaLogDirsRequest
    ) -> Steps[AlterReplicaLogDirsResponse]:
        # As in Kafka, the last directory of a partition that is there twice.
        paths: dict[TopicPartition, str] = {}
        for directory in request.dirs:
            for topic in directory.topics:
                for index in topic.partitions:
                    paths[TopicPartition(topic.name, index)] = directory.path
                yield
        topics: dict[str, AlterReplicaLogDirTopicResult] = {}
        for partition, path in paths.items():
            name, index = partition
            rows = topics.setdefault(name, AlterReplicaLogDirTopicResult(name))
            code = ErrorCode.NONE
            try:
                self._mover.move(partition, path)
            except Exception as error:
                code = error_code(error)
            rows.partitions.append(AlterReplicaLogDirPartitionResult(index, code))
            yield  # the directory and the files of a log take more than 0.1 ms
        return AlterReplicaLogDirsResponse(results=list(topics.values()))

    def describe_log_dirs(
        self, context: RequestContext, request: DescribeLogDirsRequest
    ) -> Steps[DescribeLogDirsResponse]:
        requested = None
        if request.topics is not None:
            requested = {(t.topic, index) for t in request.topics for index in t.partitions}
        response = DescribeLogDirsResponse()
        for directory in self._log_manager.directories.all:
            result = DescribeLogDirsResult(log_dir=directory.path)
            response.results.append(result)
            if directory.is_offline:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            result.total_bytes, result.usable_bytes = _total_and_usable_bytes(directory.path)
            result.topics = yield from self._topics_in(directory.path, requested)
        return response

    def _topics_in(
        self, directory: str, requested: set[tuple[str, int]] | None
    ) -> Steps[list[DescribeLogDirsTopic]]:
        topics: dict[str, DescribeLogDirsTopic] = {}
        # A log that is deleted at a pause has its row all the same, as if it were deleted later.
        for log in self._log_manager.logs_in(directory):
            yield
            if requested is not None and (log.topic, log.partition) not in requested:
                continue
            topic = topics.get(log.topic)
            if topic is None:
                topic = topics[log.topic] = DescribeLogDirsTopic(log.topic)
            current = self._log_manager.get(log.topic, log.partition)
            is_future = log is not current
            topic.partitions.append(
                DescribeLogDirsPartition(
                    log.partition, log.local.size_in_bytes, _offset_lag(log, current), is_future
                )
            )
        return list(topics.values())


def _total_and_usable_bytes(path: str) -> tuple[int, int]:
    import os

    try:
        found = os.statvfs(path)
    except OSError:
        return -1, -1
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _offset_lag(log: Log, current: Log | None) -> int:
    """The lag of a future log behind the current one, or of a log behind its high watermark."""
    if current is not None and log is not current:
        return current.log_end_offset - log.log_end_offset
    return max(log.high_watermark - log.log_end_offset, 0)


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for directory in request.dirs:
        for topic in directory.topics:
            rows = [AlterReplicaLogDirPartitionResult(index, code) for index in topic.partitions]
            response.results.append(AlterReplicaLogDirTopicResult(topic.name, rows))


ROUTES = (
    ApiRoute(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        LogDirsHandlers.alter_replica_log_dirs,
        check=OnCluster("ALTER"),
        errors=_error_rows,
        limits=LARGE,
    ),
    ApiRoute(
        ApiKey.DESCRIBE_LOG_DIRS,
        LogDirsHandlers.describe_log_dirs,
        check=OnCluster("DESCRIBE"),
        limits=LARGE,
    ),
)
