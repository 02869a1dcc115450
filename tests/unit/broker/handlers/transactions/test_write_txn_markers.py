"""WriteTxnMarkers in every version."""

import pytest

from ottla.broker.handlers.transactions.write_txn_markers import WriteTxnMarkersHandler
from ottla.broker.transactions.marker_writer import MarkerWriter
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.doubles.request_context import Asked


@pytest.mark.parametrize("version", [0, 1])
def test_markers_from_other_coordinators(version: int) -> None:
    handler = WriteTxnMarkersHandler(
        MarkerWriter(lambda where, batch, on_result: on_result(0), lambda *_: None, lambda: 1)
    )
    request = WriteTxnMarkersRequest(
        [WritableTxnMarker(7, 0, True, [WritableTxnMarkerTopic("t", [0, 1])], 0)]
    )
    asked = Asked(handler.handle, request, version)
    (marker,) = asked.response(WriteTxnMarkersResponse).markers
    assert [row.error_code for topic in marker.topics for row in topic.partitions] == [0, 0]
