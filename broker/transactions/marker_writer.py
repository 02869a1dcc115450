"""Appends transaction markers to partitions led here, and sends them to other leaders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.runtime.tasks import spawn
from ottla.broker.transactions.markers import NO_LEADER, OnResponse
from ottla.broker.transactions.state import TRANSACTION_VERSION_2
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
from ottla.protocol.steps import Steps, run
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache

logger = logging.getLogger("ottla.transactions")

REQUEST_TIMEOUT_SECONDS = 30.0  # as request.timeout.ms

AppendMarker = Callable[[TopicPartition, bytes, bool, Callable[[int], None]], None]
"""Appends a control batch with acks=-1 to a partition led here; the callback gets the error. The
third argument is whether its epoch is above that of the records (transaction version 2)."""

OnTransactionCompleted = Callable[[int, int, bool], None]
"""Gets (producer id, partition of the offsets topic, committed) when a marker is committed."""

SendToBroker = Callable[[int, WriteTxnMarkersRequest], Coroutine[Any, Any, WriteTxnMarkersResponse]]
"""Sends a request to another broker; raises when it cannot be reached."""

ExistingPartitions = Callable[[str], Coroutine[Any, Any, frozenset[int]]]
"""Returns the partitions of a topic in the znode tree, none if the topic does not exist; raises if
the tree cannot be read."""


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
    ) -> Steps[None]:
        """Append all markers; respond when the last of them is committed or failed.

        The appends are independent: a partition may move to another leader in a pause.
        """
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
                try:
                    self._on_transaction_completed(
                        marker.producer_id, where.partition, marker.transaction_result
                    )
                except Exception:
                    # A defect, and without a response no marker would be sent to this broker.
                    logger.exception("Unexpected error completing the offsets of a transaction")
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
            is_raised = marker.transaction_version >= TRANSACTION_VERSION_2
            self._append_marker(where, batch, is_raised, partial(on_result, marker, where))
            yield


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
    """Finds the leaders of partitions; sends markers to them, to this broker by a call.

    The metadata cache is empty at first, and the controller fills it in several requests, so a
    partition that the cache does not have is looked up in the znode tree.
    """

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        writer: MarkerWriter,
        send_to_broker: SendToBroker,
        existing_partitions: ExistingPartitions,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._writer = writer
        self._send_to_broker = send_to_broker
        self._existing_partitions = existing_partitions
        # Partitions to look up, by topic: one read at a time, shared by those that wait for it.
        self._to_check: dict[str, list[tuple[int, Callable[[bool], None]]]] = {}
        self._is_checking = False

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Return a broker id, NO_LEADER, or None if the partition is not known here."""
        snapshot = self._metadata.snapshot
        found = snapshot.partition(*partition)
        if found is None:
            return None
        return found.leader if found.leader in snapshot.brokers else NO_LEADER

    def check_deleted(self, partition: TopicPartition, on_result: Callable[[bool], None]) -> None:
        """Find out whether a partition that is not known here has been deleted.

        `on_result` runs once: with True if the partition does not exist, with False if it exists
        or if that could not be found out.
        """
        self._to_check.setdefault(partition.topic, []).append((partition.partition, on_result))
        if not self._is_checking:
            self._is_checking = True
            spawn(self._check_all(), name="transaction-marker-partitions")

    async def _check_all(self) -> None:
        try:
            while self._to_check:
                # What comes during the read waits for the next one: the topic may have been
                # created again meanwhile.
                topic = next(iter(self._to_check))
                await self._check(topic, self._to_check.pop(topic))
        finally:
            self._is_checking = False

    async def _check(self, topic: str, waiting: list[tuple[int, Callable[[bool], None]]]) -> None:
        existing = None
        try:
            existing = await self._existing_partitions(topic)
        except Exception as problem:
            logger.info(
                "Failed to read whether topic %s exists, retrying: %s",
                topic,
                problem,
                extra={"topic": topic},
            )
        finally:
            for index, on_result in waiting:
                on_result(existing is not None and index not in existing)

    def send(
        self, broker_id: int, request: WriteTxnMarkersRequest, on_response: OnResponse
    ) -> None:
        """Send markers; `on_response` gets None if the request failed or timed out."""
        if broker_id == self._broker_id:
            rest = run(self._writer.write(request, on_response))
            if rest is not None:
                spawn(rest, name="markers-here")
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
