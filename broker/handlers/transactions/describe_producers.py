"""DescribeProducers (61), version 0: the active producers of partitions led here (KIP-664).

A partition has as many as there were producers in the last day: a response with very many is built
and encoded in slices.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.long_responses import respond_when_built
from ottla.broker.requests.request_channel import Deferred, RequestContext
from ottla.broker.requests.request_parts import INDEXES
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.protocol.steps import Steps
    from ottla.storage.log.log import Log

_ROWS_PER_STEP = 64


class DescribeProducersHandler:
    """Reads the producer state of local logs."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    def handle(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse | Coroutine[Any, Any, Deferred]:
        return respond_when_built(context, self._describe(request))

    def _describe(self, request: DescribeProducersRequest) -> Steps[DescribeProducersResponse]:
        response = DescribeProducersResponse()
        for topic in request.topics:
            # One row for an index that is requested again and again: it may have many producers.
            rows: dict[int, PartitionResponse] = {}
            for index in topic.partition_indexes:
                if index not in rows:
                    rows[index] = yield from self._partition(topic.name, index)
            found = [rows[index] for index in topic.partition_indexes]
            response.topics.append(TopicResponse(topic.name, found))
        return response

    def _partition(self, topic: str, index: int) -> Steps[PartitionResponse]:
        row = PartitionResponse(index)
        try:
            log = self._replica_manager.partition(topic, index).leader_log()
            row.active_producers = yield from _producers(log)
        except Exception as error:
            row.error_code = error_code(error)
            row.error_message = error_message(error)
        return row


def _producers(log: Log) -> Steps[list[ProducerState]]:
    found = []
    for number, entry in enumerate(list(log.producer_state.producers.values()), 1):
        if number % _ROWS_PER_STEP == 0:
            yield
        found.append(
            ProducerState(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
    return found


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        rows = [PartitionResponse(index, code, message) for index in topic.partition_indexes]
        response.topics.append(TopicResponse(topic.name, rows))


ROUTES = (
    ApiRoute(
        ApiKey.DESCRIBE_PRODUCERS,
        DescribeProducersHandler.handle,
        check="describe_producers",
        errors=_error_rows,
        items=(INDEXES,),
    ),
)
