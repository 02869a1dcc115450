"""Requests that only the active controller answers, all versions.

ControlledShutdown (7), ElectLeaders (43), AlterPartitionReassignments (45),
ListPartitionReassignments (46), AlterPartition (56), UpdateFeatures (57), AllocateProducerIds (67).
On another broker they are NOT_CONTROLLER.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.broker.requests.error_map import error_code, error_message
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.controller.admin.features import FeatureUpdate
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    allocate_producer_ids,
    alter_partition,
    alter_partition_reassignments,
    controlled_shutdown,
    elect_leaders,
    list_partition_reassignments,
    update_features,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.controller.controller import Controller
    from ottla.protocol.message import Message

logger = logging.getLogger("ottla.requests")

_PREFERRED = 0


class ControllerHandlers:
    """Hands requests to the controller in this process and shapes its rows."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def envelope(self, context: RequestContext, request: Message) -> Deferred:
        """Envelope (58) carries requests to a KRaft controller. Without one it is listed, and
        whoever sends it is cut off, as by Kafka."""
        logger.info(
            "%s:%d sent an Envelope request, but nothing is forwarded here",
            context.client_host,
            context.client_port,
            extra={"peer": context.client_host},
        )
        context.close("it sent an Envelope request")
        return DEFERRED

    async def controlled_shutdown(
        self, context: RequestContext, request: controlled_shutdown.ControlledShutdownRequest
    ) -> controlled_shutdown.ControlledShutdownResponse:
        left = await self._controller.controlled_shutdown(request.broker_id, request.broker_epoch)
        return controlled_shutdown.ControlledShutdownResponse(
            remaining_partitions=[
                controlled_shutdown.RemainingPartition(each.topic, each.partition) for each in left
            ]
        )

    async def alter_partition(
        self, context: RequestContext, request: alter_partition.AlterPartitionRequest
    ) -> alter_partition.AlterPartitionResponse:
        return await self._controller.alter_partition(request, context.header.api_version)

    async def allocate_producer_ids(
        self, context: RequestContext, request: allocate_producer_ids.AllocateProducerIdsRequest
    ) -> allocate_producer_ids.AllocateProducerIdsResponse:
        block = await self._controller.allocate_producer_ids(
            request.broker_id, request.broker_epoch
        )
        return allocate_producer_ids.AllocateProducerIdsResponse(
            producer_id_start=block.first, producer_id_len=block.size
        )

    async def elect_leaders(
        self, context: RequestContext, request: elect_leaders.ElectLeadersRequest
    ) -> elect_leaders.ElectLeadersResponse:
        asked = request.topic_partitions
        wanted = None
        if asked is not None:
            wanted = [TopicPartition(t.topic, index) for t in asked for index in t.partitions]
        # Version 0 knows preferred elections only and has no field for it.
        kind = _PREFERRED if context.header.api_version == 0 else request.election_type
        if kind not in (0, 1):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no election type {kind}.")
        response = elect_leaders.ElectLeadersResponse()
        try:
            rows = await self._controller.elect_leaders(wanted, kind, timeout_ms=request.timeout_ms)
        except KafkaError as error:
            if context.header.api_version >= 1:  # Version 0 has no code for the whole answer.
                response.error_code = error.code
            rows = {}
            for partition in wanted or ():
                _election_row(response, partition, error.code, error_message(error))
        for partition, row in rows.items():
            _election_row(response, partition, row.code, row.message)
        return response

    async def alter_reassignments(
        self,
        context: RequestContext,
        request: alter_partition_reassignments.AlterPartitionReassignmentsRequest,
    ) -> alter_partition_reassignments.AlterPartitionReassignmentsResponse:
        module = alter_partition_reassignments
        targets: dict[TopicPartition, tuple[int, ...] | None] = {}
        for topic in request.topics:
            for asked in topic.partitions:
                key = TopicPartition(topic.name, asked.partition_index)
                targets[key] = None if asked.replicas is None else tuple(asked.replicas)
        rows = await self._controller.alter_partition_reassignments(targets)
        response = module.AlterPartitionReassignmentsResponse(error_message=None)
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

    async def list_reassignments(
        self,
        context: RequestContext,
        request: list_partition_reassignments.ListPartitionReassignmentsRequest,
    ) -> list_partition_reassignments.ListPartitionReassignmentsResponse:
        module = list_partition_reassignments
        wanted = None
        if request.topics is not None:
            wanted = [
                TopicPartition(topic.name, index)
                for topic in request.topics
                for index in topic.partition_indexes
            ]
        found = await self._controller.list_partition_reassignments(wanted)
        response = module.ListPartitionReassignmentsResponse(error_message="")  # as Kafka says it
        for name, partitions in _by_topic(found).items():
            rows = [
                module.OngoingPartitionReassignment(
                    each.partition,
                    list(found[each].replicas),
                    list(found[each].adding),
                    list(found[each].removing),
                )
                for each in partitions
            ]
            response.topics.append(module.OngoingTopicReassignment(name, rows))
        return response

    async def update_features(
        self, context: RequestContext, request: update_features.UpdateFeaturesRequest
    ) -> update_features.UpdateFeaturesResponse:
        updates = [
            FeatureUpdate(
                each.feature,
                each.max_version_level,
                # Version 0 says whether a downgrade is allowed, later ones of which kind.
                (2 if each.allow_downgrade else 1)
                if context.header.api_version == 0
                else each.upgrade_type,
            )
            for each in request.feature_updates
        ]
        try:
            rows = await self._controller.update_features(
                updates, validate_only=request.validate_only
            )
        except KafkaError as error:
            return update_features.UpdateFeaturesResponse(
                error_code=error_code(error), error_message=error_message(error)
            )
        return update_features.UpdateFeaturesResponse(
            error_message=None,
            results=[
                update_features.UpdatableFeatureResult(name, row.code, row.message)
                for name, row in rows.items()
            ],
        )


def _election_row(
    response: elect_leaders.ElectLeadersResponse,
    partition: TopicPartition,
    code: int,
    message: str | None,
) -> None:
    results = response.replica_election_results
    if not results or results[-1].topic != partition.topic:
        results.append(elect_leaders.ReplicaElectionResult(partition.topic))
    results[-1].partition_result.append(
        elect_leaders.PartitionResult(partition.partition, code, message)
    )


def _by_topic(
    rows: Mapping[TopicPartition, object] | Iterable[TopicPartition],
) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in rows:
        topics.setdefault(partition.topic, []).append(partition)
    return topics
