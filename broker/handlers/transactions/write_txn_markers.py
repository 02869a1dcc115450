"""WriteTxnMarkers (27), versions 0 and 1: ends transactions in the partitions led here.

Coordinators of Ottla send few partitions in a request, those of Kafka all that they have: such
requests are handled in slices.
"""

from collections.abc import Coroutine
from typing import Any

from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.runtime.slices import run_in_slices
from ottla.broker.transactions.marker_writer import MarkerWriter
from ottla.broker.transactions.markers import MAX_PARTITIONS_PER_REQUEST
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest


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
