"""Sends the markers of a transaction to the leaders of its partitions.

One WriteTxnMarkers request for each broker is in flight; markers that come meanwhile are queued for
the next ones, so that small transactions share requests. Markers of a partition that cannot be
reached are retried while this broker coordinates the transaction. Deleted partitions are skipped,
but only those that are known to be deleted: a partition may be missing in the metadata cache
because the controller has not sent it yet. The transaction is completed when all partitions have a
marker. Mirrors `TransactionMarkerChannelManager`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.runtime.timer import DelayQueue
from ottla.broker.runtime.wheel import TimerTask
from ottla.broker.transactions.partition import TransactionPartition
from ottla.broker.transactions.state import Transaction, TransactionState
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.transactions.marker_writer import BrokerMarkerTransport

logger = logging.getLogger("ottla.transactions")

RETRY_DELAY_MS = 100  # as retry.backoff.ms of clients
MAX_PARTITIONS_PER_REQUEST = 500  # an append each: some tens of milliseconds
NO_LEADER = -1

FENCED = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))
"""A newer coordinator or producer has fenced this one, and completes the transaction."""

NEVER_WRITTEN = frozenset((ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION))
"""The producer cannot have written to the partition, so no marker is needed."""

OnResponse = Callable[[WriteTxnMarkersResponse | None], None]


class PendingMarkers:
    """A transaction with partitions that have no marker yet (`PendingCompleteTxn`)."""

    __slots__ = ("committed", "remaining", "state_partition", "transaction")

    def __init__(self, state_partition: TransactionPartition, transaction: Transaction) -> None:
        self.state_partition = state_partition
        self.transaction = transaction
        self.committed = transaction.state is TransactionState.PREPARE_COMMIT
        self.remaining = set(transaction.value.partitions)

    @property
    def key(self) -> tuple[int, str]:
        return (self.state_partition.index, self.transaction.transactional_id)


class MarkerSender:
    """Sends the markers of all transactions of this coordinator. Loop only."""

    def __init__(
        self,
        transport: BrokerMarkerTransport,
        timer: DelayQueue,
        on_completed: Callable[[TransactionPartition, Transaction], None],
    ) -> None:
        """`on_completed` is called when all markers of a transaction are written."""
        self._transport = transport
        self._timer = timer
        self._on_completed = on_completed
        self._pending: dict[tuple[int, str], PendingMarkers] = {}
        self._queues: dict[int, deque[tuple[PendingMarkers, list[TopicPartition]]]] = {}
        self._in_flight: set[int] = set()
        self._to_retry: list[tuple[PendingMarkers, list[TopicPartition]]] = []
        self._retry_timer: TimerTask | None = None

    @property
    def pending(self) -> int:
        """How many transactions have markers to be written."""
        return len(self._pending)

    def start(self, state_partition: TransactionPartition, transaction: Transaction) -> None:
        """Send the markers of a transaction in PrepareCommit or PrepareAbort."""
        pending = PendingMarkers(state_partition, transaction)
        self._pending[pending.key] = pending
        self._dispatch([(pending, list(pending.remaining))])
        self._check_completed(pending)

    def cancel_partition(self, index: int) -> None:
        """Another broker coordinates this partition now: it sends the markers."""
        for key in [key for key in self._pending if key[0] == index]:
            del self._pending[key]

    def close(self) -> None:
        self._pending.clear()
        self._queues.clear()
        self._to_retry.clear()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def _dispatch(self, work: Iterable[tuple[PendingMarkers, list[TopicPartition]]]) -> None:
        """Queue markers for the current leaders of the partitions."""
        brokers = set()
        unknown = []
        for pending, partitions in work:
            by_leader: dict[int, list[TopicPartition]] = {}
            for topic_partition in partitions:
                leader = self._transport.leader_of(topic_partition)
                if leader is None:
                    unknown.append((pending, topic_partition))
                else:
                    by_leader.setdefault(leader, []).append(topic_partition)
            for leader, led in by_leader.items():
                if leader == NO_LEADER:
                    self._retry(pending, led)
                    continue
                queue = self._queues.setdefault(leader, deque())
                for start in range(0, len(led), MAX_PARTITIONS_PER_REQUEST):
                    queue.append((pending, led[start : start + MAX_PARTITIONS_PER_REQUEST]))
                brokers.add(leader)
        for broker_id in brokers:
            self._flush(broker_id)
        for pending, topic_partition in unknown:
            self._transport.check_deleted(
                topic_partition, partial(self._on_deletion_checked, pending, topic_partition)
            )

    def _on_deletion_checked(
        self, pending: PendingMarkers, topic_partition: TopicPartition, is_deleted: bool
    ) -> None:
        if not self._is_pending(pending):
            return
        if not is_deleted:
            self._retry(pending, [topic_partition])
            return
        logger.info(
            "TransactionalId %s: skipping the marker of %s-%d, which does not exist",
            pending.transaction.transactional_id,
            *topic_partition,
            extra={"transactional_id": pending.transaction.transactional_id},
        )
        pending.remaining.discard(topic_partition)
        self._check_completed(pending)

    def _flush(self, broker_id: int) -> None:
        queue = self._queues.get(broker_id)
        if not queue or broker_id in self._in_flight:
            return
        batch: list[tuple[PendingMarkers, list[TopicPartition]]] = []
        partitions = 0
        while queue and partitions + len(queue[0][1]) <= MAX_PARTITIONS_PER_REQUEST:
            entry = queue.popleft()
            # Markers that were cancelled while queued are left out.
            if self._is_pending(entry[0]):
                batch.append(entry)
                partitions += len(entry[1])
        if not queue:
            del self._queues[broker_id]
        if batch:
            self._in_flight.add(broker_id)
            request = WriteTxnMarkersRequest([_marker(*entry) for entry in batch])
            self._transport.send(broker_id, request, partial(self._on_response, broker_id, batch))

    def _on_response(
        self,
        broker_id: int,
        batch: list[tuple[PendingMarkers, list[TopicPartition]]],
        response: WriteTxnMarkersResponse | None,
    ) -> None:
        self._in_flight.discard(broker_id)
        results = None if response is None else _results(response)
        for pending, partitions in batch:
            if not self._is_pending(pending):
                continue
            if results is None:
                self._retry(pending, partitions)
            else:
                errors = results.get(pending.transaction.value.producer_id, {})
                self._handle_results(pending, partitions, errors)
        self._flush(broker_id)

    def _handle_results(
        self,
        pending: PendingMarkers,
        partitions: list[TopicPartition],
        errors: dict[TopicPartition, int],
    ) -> None:
        failed = []
        for topic_partition in partitions:
            # A partition without a row in the response has no marker.
            error = errors.get(topic_partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if error == ErrorCode.NONE or error in NEVER_WRITTEN:
                pending.remaining.discard(topic_partition)
            elif error in FENCED:
                logger.info(
                    "TransactionalId %s: fenced while writing the marker of %s-%d (%s), not "
                    "completing the transaction",
                    pending.transaction.transactional_id,
                    *topic_partition,
                    error_name(error),
                    extra={"transactional_id": pending.transaction.transactional_id},
                )
                del self._pending[pending.key]
                return
            else:
                failed.append(topic_partition)
                logger.info(
                    "TransactionalId %s: failed to write the marker of %s-%d (%s), retrying",
                    pending.transaction.transactional_id,
                    *topic_partition,
                    error_name(error),
                    extra={"transactional_id": pending.transaction.transactional_id},
                )
        if failed:
            self._retry(pending, failed)
        self._check_completed(pending)

    def _retry(self, pending: PendingMarkers, partitions: list[TopicPartition]) -> None:
        self._to_retry.append((pending, partitions))
        if self._retry_timer is None:
            self._retry_timer = self._timer.schedule(RETRY_DELAY_MS, self._retry_all)

    def _retry_all(self) -> None:
        self._retry_timer = None
        work, self._to_retry = self._to_retry, []
        self._dispatch([entry for entry in work if self._is_pending(entry[0])])

    def _is_pending(self, pending: PendingMarkers) -> bool:
        return self._pending.get(pending.key) is pending

    def _check_completed(self, pending: PendingMarkers) -> None:
        if not pending.remaining and self._is_pending(pending):
            del self._pending[pending.key]
            logger.debug(
                "Completed sending transaction markers of TransactionalId %s",
                pending.transaction.transactional_id,
                extra={"transactional_id": pending.transaction.transactional_id},
            )
            self._on_completed(pending.state_partition, pending.transaction)


def _marker(pending: PendingMarkers, partitions: list[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic_partition in partitions:
        topics.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    value = pending.transaction.value
    return WritableTxnMarker(
        producer_id=value.producer_id,
        producer_epoch=value.epoch,
        transaction_result=pending.committed,
        topics=[WritableTxnMarkerTopic(name, indexes) for name, indexes in topics.items()],
        coordinator_epoch=pending.state_partition.leader_epoch,
        transaction_version=value.client_version,
    )


def _results(response: WriteTxnMarkersResponse) -> dict[int, dict[TopicPartition, int]]:
    results: dict[int, dict[TopicPartition, int]] = {}
    for marker in response.markers:
        errors = results.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for row in topic.partitions:
                errors[TopicPartition(topic.name, row.partition_index)] = row.error_code
    return results
