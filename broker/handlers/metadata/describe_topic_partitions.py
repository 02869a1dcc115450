"""DescribeTopicPartitions (75), version 0: topics and their partitions, in pages (KIP-966).

Kafka lists it in KRaft mode only. Admin clients prefer it, because the response is bounded, where
Metadata returns all partitions at once. ZooKeeper mode has no eligible leader replicas: those lists
are empty (the schema allows null, but Kafka's admin client fails on it).
Mirrors `DescribeTopicPartitionsRequestHandler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.endpoints import Endpoints
from ottla.broker.handlers.common.authorized_operations import TOPIC_OPERATIONS
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_parts import LARGE
from ottla.controller.admin.topic_limits import name_problem
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache, PartitionMetadata
    from ottla.protocol.steps import Steps


class TopicPartitionsHandler:
    """Reads the metadata cache."""

    def __init__(self, metadata: MetadataCache, endpoints: Endpoints, limit: int) -> None:
        """`limit`: max.request.partition.size.limit, partitions in one response."""
        self._metadata = metadata
        self._endpoints = endpoints
        self._limit = limit

    def handle(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> Steps[DescribeTopicPartitionsResponse]:
        topics = self._metadata.snapshot.topics
        names = self._wanted(request)
        left = max(min(self._limit, request.response_partition_limit), 1)
        reachable = {node.node_id for node in self._endpoints.nodes(context)}
        response = DescribeTopicPartitionsResponse()
        cursor = request.cursor
        for name in names:
            yield
            if left == 0:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(name, 0)
                break
            topic = topics.get(name)
            if topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if name_problem(name) is not None:
                    code = ErrorCode.INVALID_TOPIC_EXCEPTION
                response.topics.append(
                    DescribeTopicPartitionsResponseTopic(
                        code,
                        name,
                        is_internal=name in INTERNAL_TOPICS,
                        topic_authorized_operations=TOPIC_OPERATIONS,
                    )
                )
                continue
            first = cursor.partition_index if cursor and cursor.topic_name == name else 0
            indexes = [index for index in sorted(topic.partitions) if index >= first]
            rows = []
            for index in indexes[:left]:
                rows.append(_partition(topic.partitions[index], reachable))
                yield
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    ErrorCode.NONE,
                    name,
                    topic.topic_id,
                    name in INTERNAL_TOPICS,
                    rows,
                    TOPIC_OPERATIONS,
                )
            )
            if len(indexes) > left:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(name, indexes[left])
                break
            left -= len(rows)
        return response

    def _wanted(self, request: DescribeTopicPartitionsRequest) -> list[str]:
        """The requested topics, sorted, from the cursor on."""
        cursor = request.cursor
        requested = {topic.name for topic in request.topics}
        names = sorted(requested or self._metadata.snapshot.topics)
        if cursor is None:
            return names
        if requested and cursor.topic_name not in requested:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "DescribeTopicPartitionsRequest topic list should contain the cursor topic: "
                f"{cursor.topic_name}",
            )
        if cursor.partition_index < 0:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "DescribeTopicPartitionsRequest cursor partition must be valid: "
                f"{cursor.partition_index}",
            )
        return [name for name in names if name >= cursor.topic_name]


def _partition(
    state: PartitionMetadata, reachable: set[int]
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        ErrorCode.NONE,
        state.partition,
        state.leader if state.leader in reachable else -1,
        state.leader_epoch,
        list(state.replicas),
        list(state.isr),
        [],
        [],
        list(state.offline_replicas),
    )


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        response.topics.append(DescribeTopicPartitionsResponseTopic(code, topic.name))


ROUTES = (
    ApiRoute(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        TopicPartitionsHandler.handle,
        check="describe_topic_partitions",
        errors=_error_rows,
        limits=LARGE,
    ),
)
