"""WriteTxnMarkers (27), versions 0 and 1: ends transactions in the partitions led here.

Coordinators of Ottla send few partitions in a request, those of Kafka all that they have: such
requests are handled in slices.
"""

from collections.abc import Coroutine
from typing import Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import CONTROL
from ottla.broker.runtime.slices import run_in_slices
from ottla.broker.transactions.marker_writer import MarkerWriter
from ottla.broker.transactions.markers import MAX_PARTITIONS_PER_REQUEST
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
)
from ottla.protocol.registry import ApiKey


class WriteTxnMarkersHandler:
    """Hands the markers to the writer, which sends the response."""

    def __init__(self, marker_writer: MarkerWriter) -> None:
        self._marker_writer = marker_writer

    def handle(
        self, context: RequestContext, request: WriteTxnMarkersRequest
    ) -> Deferred | Coroutine[Any, Any, Deferred]:
        partitions = sum(
            len(topic.partition_indexes) for marker in request.markers for topic in marker.topics
        )
        if partitions > MAX_PARTITIONS_PER_REQUEST:
            return self._handle_in_slices(context, request)
        self._marker_writer.write(request, context.respond)
        return DEFERRED

    async def _handle_in_slices(
        self, context: RequestContext, request: WriteTxnMarkersRequest
    ) -> Deferred:
        await run_in_slices(self._marker_writer.write_in_steps(request, context.respond))
        return DEFERRED


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for marker in request.markers:
        topics = [
            WritableTxnMarkerTopicResult(
                topic.name,
                [
                    WritableTxnMarkerPartitionResult(index, code)
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        response.markers.append(WritableTxnMarkerResult(marker.producer_id, topics))


ROUTES = (
    ApiRoute(
        ApiKey.WRITE_TXN_MARKERS,
        WriteTxnMarkersHandler.handle,
        check="write_txn_markers",
        errors=_error_rows,
        limits=CONTROL,
        of_brokers=True,
    ),
)
