"""ElectLeaders (43), versions 0 to 2: preferred and unclean leader elections (KIP-183, KIP-460).

Sent to the active controller; any other broker responds with NOT_CONTROLLER.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.broker.requests.request_parts import LARGE
from ottla.controller.errors import ApiError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import Steps, run_in_turns
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.controller.controller import Controller

_PREFERRED = 0
_UNCLEAN = 1


class ElectLeadersHandler:
    """Hands the request to the controller in this process."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def handle(
        self, context: RequestContext, request: ElectLeadersRequest
    ) -> ElectLeadersResponse:
        topics = request.topic_partitions
        partitions = None
        if topics is not None:
            partitions = [TopicPartition(t.topic, index) for t in topics for index in t.partitions]
        # Version 0 has no election type: it knows preferred elections only.
        election_type = _PREFERRED if context.header.api_version == 0 else request.election_type
        if election_type not in (_PREFERRED, _UNCLEAN):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}.")
        top_level_code = 0
        try:
            rows = await self._controller.elect_leaders(
                partitions, election_type, timeout_ms=request.timeout_ms
            )
        except KafkaError as error:
            if context.header.api_version >= 1:  # Version 0 has no error code at the top level.
                top_level_code = error.code
            failed = ApiError(error.code, error_message(error))
            rows = dict.fromkeys(partitions or (), failed)
        return await run_in_turns(_response(top_level_code, rows))


def _response(code: int, rows: Mapping[TopicPartition, ApiError]) -> Steps[ElectLeadersResponse]:
    results: list[ReplicaElectionResult] = []
    for partition, row in rows.items():
        yield
        if not results or results[-1].topic != partition.topic:
            results.append(ReplicaElectionResult(partition.topic))
        results[-1].partition_result.append(
            PartitionResult(partition.partition, row.code, row.message)
        )
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topic_partitions or ():
        rows = [PartitionResult(index, code, message) for index in topic.partitions]
        response.replica_election_results.append(ReplicaElectionResult(topic.topic, rows))


ROUTES = (
    ApiRoute(
        ApiKey.ELECT_LEADERS,
        ElectLeadersHandler.handle,
        check=OnCluster("ALTER"),
        errors=_error_rows,
        limits=LARGE,
    ),
)
