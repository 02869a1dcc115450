"""AlterPartitionReassignments (45), versions 0 and 1, and ListPartitionReassignments (46), version
0 (KIP-455). Version 1 may forbid that replication factors change (KIP-860).

Sent to the active controller; any other broker responds with NOT_CONTROLLER.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.broker.requests.request_parts import LARGE
from ottla.protocol.messages import alter_partition_reassignments, list_partition_reassignments
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import Steps, run_in_turns
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.controller.controller import Controller
    from ottla.controller.model import ReplicaAssignment


class PartitionReassignmentHandlers:
    """Hands requests to the controller in this process and builds the responses."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def alter(
        self,
        context: RequestContext,
        request: alter_partition_reassignments.AlterPartitionReassignmentsRequest,
    ) -> alter_partition_reassignments.AlterPartitionReassignmentsResponse:
        module = alter_partition_reassignments
        targets: dict[TopicPartition, tuple[int, ...] | None] = {}
        for topic in request.topics:
            for row in topic.partitions:
                key = TopicPartition(topic.name, row.partition_index)
                targets[key] = None if row.replicas is None else tuple(row.replicas)
        may_change_count = request.allow_replication_factor_change
        rows = await self._controller.alter_partition_reassignments(
            targets, may_change_count=may_change_count
        )
        response = module.AlterPartitionReassignmentsResponse(
            error_message=None, allow_replication_factor_change=may_change_count
        )
        for name, partitions in _by_topic(rows).items():
            response.responses.append(
                module.ReassignableTopicResponse(
                    name,
                    [
                        module.ReassignablePartitionResponse(each.partition, *rows[each])
                        for each in partitions
                    ],
                )
            )
        return response

    async def list_ongoing(
        self,
        context: RequestContext,
        request: list_partition_reassignments.ListPartitionReassignmentsRequest,
    ) -> list_partition_reassignments.ListPartitionReassignmentsResponse:
        requested = None
        if request.topics is not None:
            requested = [
                TopicPartition(topic.name, index)
                for topic in request.topics
                for index in topic.partition_indexes
            ]
        found = await self._controller.list_partition_reassignments(requested)
        return await run_in_turns(_listed(found))


def _listed(
    found: Mapping[TopicPartition, ReplicaAssignment],
) -> Steps[list_partition_reassignments.ListPartitionReassignmentsResponse]:
    module = list_partition_reassignments
    topics: dict[str, list_partition_reassignments.OngoingTopicReassignment] = {}
    for partition, assignment in found.items():
        yield
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = module.OngoingTopicReassignment(partition.topic, [])
        topic.partitions.append(
            module.OngoingPartitionReassignment(
                partition.partition,
                [*assignment.replicas],
                [*assignment.adding],
                [*assignment.removing],
            )
        )
    # Kafka's message of a success is empty, not null.
    return module.ListPartitionReassignmentsResponse(error_message="", topics=list(topics.values()))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    return topics


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        rows = [
            alter_partition_reassignments.ReassignablePartitionResponse(
                requested.partition_index, code, message
            )
            for requested in topic.partitions
        ]
        response.responses.append(
            alter_partition_reassignments.ReassignableTopicResponse(topic.name, rows)
        )


ROUTES = (
    ApiRoute(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        PartitionReassignmentHandlers.alter,
        check=OnCluster("ALTER"),
        errors=_error_rows,
        limits=LARGE,
    ),
    ApiRoute(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        PartitionReassignmentHandlers.list_ongoing,
        check=OnCluster("DESCRIBE"),
        limits=LARGE,
    ),
)
