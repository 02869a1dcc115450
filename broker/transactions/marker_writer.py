"""Appends transaction markers to partitions led here, and sends them to other leaders."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from ottla.broker.cluster.metadata_cache import MetadataSnapshot
from ottla.broker.coordination.ports import GROUP_METADATA_TOPIC
from ottla.broker.runtime.tasks import spawn
from ottla.broker.transactions.markers import NO_LEADER, OnResponse
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.transactions")

REQUEST_TIMEOUT_SECONDS = 30.0  # as request.timeout.ms

AppendMarker = Callable[[TopicPartition, bytes, Callable[[int], None]], None]
"""Appends a control batch with acks=-1 to a partition led here; the callback gets the error."""

OnTransactionCompleted = Callable[[int, int, bool], None]
"""Gets (producer id, partition of the offsets topic, committed) when a marker is committed."""

SendToBroker = Callable[[int, WriteTxnMarkersRequest], Coroutine[Any, Any, WriteTxnMarkersResponse]]
"""Sends a request to another broker; raises when it cannot be reached."""


class Metadata(Protocol):
    """The metadata cache, as far as it is used here."""

    @property
    def snapshot(self) -> MetadataSnapshot: ...


class MarkerWriter:
    """Handles WriteTxnMarkers of the network and of the coordinator in this process."""

    def __init__(
        self,
        append_marker: AppendMarker,
        on_transaction_completed: OnTransactionCompleted,
        now_ms: Callable[[], int],
    ) -> None:
        self._append_marker = append_marker
        self._on_transaction_completed = on_transaction_completed
        self._now_ms = now_ms

    def write(
        self,
        request: WriteTxnMarkersRequest,
        response_callback: Callable[[WriteTxnMarkersResponse], None],
    ) -> None:
        """Appends all markers; responds when the last of them is committed or failed."""
        results: dict[int, dict[TopicPartition, int]] = {}
        work = []
        for marker in request.markers:
            results.setdefault(marker.producer_id, {})
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    work.append((marker, TopicPartition(topic.name, index)))
        remaining = len(work)

        def on_result(marker: WritableTxnMarker, where: TopicPartition, error: int) -> None:
            nonlocal remaining
            remaining -= 1
            results[marker.producer_id][where] = error
            if error == ErrorCode.NONE and where.topic == GROUP_METADATA_TOPIC:
                # The offsets of a committed transaction become visible.
                self._on_transaction_completed(
                    marker.producer_id, where.partition, marker.transaction_result
                )
            if remaining == 0:
                response_callback(_response(results))

        if not work:
            response_callback(_response(results))
        for marker, where in work:
            batch = end_transaction_marker(
                committed=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                timestamp_ms=self._now_ms(),
            )
            self._append_marker(where, batch, partial(on_result, marker, where))


def _response(results: dict[int, dict[TopicPartition, int]]) -> WriteTxnMarkersResponse:
    markers = []
    for producer_id, errors in results.items():
        topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
        for where, error in errors.items():
            topics.setdefault(where.topic, []).append(
                WritableTxnMarkerPartitionResult(where.partition, error)
            )
        rows = [WritableTxnMarkerTopicResult(name, found) for name, found in topics.items()]
        markers.append(WritableTxnMarkerResult(producer_id, rows))
    return WriteTxnMarkersResponse(markers)


class BrokerMarkerTransport:
    """Implements `MarkerTransport`: this broker by a call, other brokers over the network."""

    def __init__(
        self, broker_id: int, metadata: Metadata, writer: MarkerWriter, send_to_broker: SendToBroker
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._writer = writer
        self._send_to_broker = send_to_broker

    def leader_of(self, partition: TopicPartition) -> int | None:
        snapshot = self._metadata.snapshot
        found = snapshot.partition(*partition)
        if found is None:
            return None
        return found.leader if found.leader in snapshot.brokers else NO_LEADER

    def send(
        self, broker_id: int, request: WriteTxnMarkersRequest, on_response: OnResponse
    ) -> None:
        if broker_id == self._broker_id:
            self._writer.write(request, on_response)
        else:
            spawn(self._send(broker_id, request, on_response), name=f"markers-to-{broker_id}")

    async def _send(
        self, broker_id: int, request: WriteTxnMarkersRequest, on_response: OnResponse
    ) -> None:
        response = None
        try:
            response = await asyncio.wait_for(
                self._send_to_broker(broker_id, request), REQUEST_TIMEOUT_SECONDS
            )
        except Exception as problem:
            logger.info(
                "Failed to send transaction markers to broker %d: %s",
                broker_id,
                problem,
                extra={"broker": broker_id},
            )
        on_response(response)
