"""WriteTxnMarkers (27), versions 0 and 1: ends transactions in the partitions led here."""

from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.transactions.marker_writer import MarkerWriter
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest


class WriteTxnMarkersHandler:
    """Hands the markers to the writer, which sends the response."""

    def __init__(self, marker_writer: MarkerWriter) -> None:
        self._marker_writer = marker_writer

    def handle(self, context: RequestContext, request: WriteTxnMarkersRequest) -> Deferred:
        self._marker_writer.write(request, context.respond)
        return DEFERRED
