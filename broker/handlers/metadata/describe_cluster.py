"""DescribeCluster (60), DescribeLogDirs (35), DescribeProducers (61), all versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.handlers.metadata.first_metadata import once_known
from ottla.broker.handlers.metadata.metadata import CLUSTER_OPERATIONS
from ottla.broker.requests.error_map import error_code, error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.endpoints import Endpoints
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.log import Log

_BROKERS = 1


class ClusterHandlers:
    """Answers questions about the cluster and about this broker's disks and producers."""

    def __init__(
        self,
        cluster_id: str,
        metadata: MetadataCache,
        endpoints: Endpoints,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
    ) -> None:
        self._cluster_id = cluster_id
        self._metadata = metadata
        self._endpoints = endpoints
        self._log_manager = log_manager
        self._replica_manager = replica_manager
        #: `describe_cluster`, for requests that may come before the first UpdateMetadata.
        self.describe_once_known = once_known(metadata, self.describe_cluster)

    def describe_cluster(
        self, context: RequestContext, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        if request.endpoint_type != _BROKERS:
            # Controllers with endpoints of their own exist in KRaft only.
            known = request.endpoint_type == 2
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else 0
            return DescribeClusterResponse(
                error_code=code or ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"Unsupported endpoint type {request.endpoint_type}",
            )
        nodes = self._endpoints.nodes(context)
        controller_id = self._metadata.snapshot.controller_id
        response = DescribeClusterResponse(
            cluster_id=self._cluster_id,
            controller_id=controller_id if any(n.node_id == controller_id for n in nodes) else -1,
            brokers=[DescribeClusterBroker(*node) for node in nodes],
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    def describe_log_dirs(
        self, context: RequestContext, request: DescribeLogDirsRequest
    ) -> DescribeLogDirsResponse:
        wanted = None
        if request.topics is not None:
            wanted = {(t.topic, index) for t in request.topics for index in t.partitions}
        response = DescribeLogDirsResponse()
        for directory in self._log_manager.directories.all:
            result = DescribeLogDirsResult(log_dir=directory.path)
            response.results.append(result)
            if directory.is_offline:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            result.total_bytes, result.usable_bytes = _disk_room(directory.path)
            result.topics = self._topics_in(directory.path, wanted)
        return response

    def _topics_in(
        self, directory: str, wanted: set[tuple[str, int]] | None
    ) -> list[DescribeLogDirsTopic]:
        topics: dict[str, DescribeLogDirsTopic] = {}
        for log in self._log_manager.logs_in(directory):
            if wanted is not None and (log.topic, log.partition) not in wanted:
                continue
            topic = topics.get(log.topic)
            if topic is None:
                topic = topics[log.topic] = DescribeLogDirsTopic(log.topic)
            current = self._log_manager.get(log.topic, log.partition)
            is_future = log is not current
            topic.partitions.append(
                DescribeLogDirsPartition(
                    log.partition, log.size_in_bytes, _lag(log, current), is_future
                )
            )
        return list(topics.values())

    def describe_producers(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse:
        response = DescribeProducersResponse()
        for topic in request.topics:
            rows = []
            for index in topic.partition_indexes:
                row = PartitionResponse(index)
                try:
                    log = self._replica_manager.partition(topic.name, index).leader_log()
                    row.active_producers = _producers(log)
                except Exception as error:
                    row.error_code = error_code(error)
                    row.error_message = error_message(error)
                rows.append(row)
            response.topics.append(TopicResponse(topic.name, rows))
        return response


def _disk_room(path: str) -> tuple[int, int]:
    import os

    try:
        found = os.statvfs(path)
    except OSError:
        return -1, -1
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _lag(log: Log, current: Log | None) -> int:
    """How far a log is behind: a copy behind its original, a log behind its high watermark."""
    if current is not None and log is not current:
        return current.log_end_offset - log.log_end_offset
    return max(log.high_watermark - log.log_end_offset, 0)


def _producers(log: Log) -> list[ProducerState]:
    return [
        ProducerState(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
        for entry in log.producer_state.producers.values()
    ]
