"""Sending the markers that end a transaction to the leaders of its partitions.

One WriteTxnMarkers request per broker is under way at a time; what comes meanwhile goes into the
next one, so that many small transactions share requests. A partition that cannot be reached is
tried again for as long as this broker coordinates the transaction; one that was deleted is left
out. The transaction is complete when no partition is left.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

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

logger = logging.getLogger("ottla.transactions")

RETRY_DELAY_MS = 100  # as a client's retry.backoff.ms: leaders change in about that time
MAX_MARKERS_PER_REQUEST = 1_000  # some hundred kilobytes
NO_LEADER = -1

FENCED = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))
"""A newer coordinator or producer took over: it is for them to end the transaction."""

NEVER_WRITTEN = frozenset((ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION))
"""The producer cannot have written there either, so there is nothing to end."""

OnResponse = Callable[[WriteTxnMarkersResponse | None], None]


class MarkerTransport(Protocol):
    """How the leaders of partitions are found and reached."""

    def leader_of(self, partition: TopicPartition) -> int | None:
        """A broker id; NO_LEADER when there is none now, None when the partition is unknown."""
        ...

    def send(
        self, broker_id: int, request: WriteTxnMarkersRequest, on_response: OnResponse
    ) -> None:
        """`on_response` gets None when the broker could not be reached in time."""
        ...


class Ending:
    """A transaction whose markers are being written."""

    __slots__ = ("committed", "home", "left", "transaction")

    def __init__(self, home: TransactionPartition, transaction: Transaction) -> None:
        self.home = home
        self.transaction = transaction
        self.committed = transaction.state is TransactionState.PREPARE_COMMIT
        self.left = set(transaction.value.partitions)

    @property
    def key(self) -> tuple[int, str]:
        return (self.home.index, self.transaction.transactional_id)


class MarkerSender:
    """Ends transactions. Loop only."""

    def __init__(
        self,
        transport: MarkerTransport,
        timer: DelayQueue,
        on_done: Callable[[TransactionPartition, Transaction], None],
    ) -> None:
        """`on_done` is called when all markers of a transaction are written."""
        self._transport = transport
        self._timer = timer
        self._on_done = on_done
        self._endings: dict[tuple[int, str], Ending] = {}
        self._queues: dict[int, list[tuple[Ending, list[TopicPartition]]]] = {}
        self._in_flight: set[int] = set()
        self._to_retry: list[tuple[Ending, list[TopicPartition]]] = []
        self._retry_timer: TimerTask | None = None

    @property
    def endings(self) -> int:
        """How many transactions wait for their markers."""
        return len(self._endings)

    def start(self, home: TransactionPartition, transaction: Transaction) -> None:
        """Write the markers of a transaction that is in PrepareCommit or PrepareAbort."""
        ending = Ending(home, transaction)
        self._endings[ending.key] = ending
        self._dispatch([(ending, list(ending.left))])
        self._check_done(ending)

    def cancel_partition(self, index: int) -> None:
        """Another broker coordinates this partition now and goes on from the log."""
        for key in [key for key in self._endings if key[0] == index]:
            del self._endings[key]

    def close(self) -> None:
        self._endings.clear()
        self._queues.clear()
        self._to_retry.clear()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def _dispatch(self, work: Iterable[tuple[Ending, list[TopicPartition]]]) -> None:
        """Put partitions into the queues of their leaders, as they are now."""
        brokers = set()
        for ending, partitions in work:
            by_leader: dict[int, list[TopicPartition]] = {}
            for topic_partition in partitions:
                leader = self._transport.leader_of(topic_partition)
                if leader is None:
                    logger.info(
                        "transactional id %s: %s-%d is gone, no marker is needed there",
                        ending.transaction.transactional_id,
                        *topic_partition,
                        extra={"transactional_id": ending.transaction.transactional_id},
                    )
                    ending.left.discard(topic_partition)
                else:
                    by_leader.setdefault(leader, []).append(topic_partition)
            for leader, led in by_leader.items():
                if leader == NO_LEADER:
                    self._retry(ending, led)
                else:
                    self._queues.setdefault(leader, []).append((ending, led))
                    brokers.add(leader)
        for broker_id in brokers:
            self._flush(broker_id)

    def _flush(self, broker_id: int) -> None:
        queue = self._queues.get(broker_id)
        if not queue or broker_id in self._in_flight:
            return
        # What was cancelled while it waited is left out.
        batch = [entry for entry in queue[:MAX_MARKERS_PER_REQUEST] if self._is_wanted(entry[0])]
        del queue[:MAX_MARKERS_PER_REQUEST]
        if not queue:
            del self._queues[broker_id]
        if batch:
            self._in_flight.add(broker_id)
            request = WriteTxnMarkersRequest([_marker(*entry) for entry in batch])
            self._transport.send(broker_id, request, partial(self._on_response, broker_id, batch))
        else:
            self._flush(broker_id)

    def _on_response(
        self,
        broker_id: int,
        batch: list[tuple[Ending, list[TopicPartition]]],
        response: WriteTxnMarkersResponse | None,
    ) -> None:
        self._in_flight.discard(broker_id)
        results = None if response is None else _results(response)
        for ending, partitions in batch:
            if not self._is_wanted(ending):
                continue
            if results is None:
                self._retry(ending, partitions)
            else:
                errors = results.get(ending.transaction.value.producer_id, {})
                self._take_results(ending, partitions, errors)
        self._flush(broker_id)

    def _take_results(
        self, ending: Ending, partitions: list[TopicPartition], errors: dict[TopicPartition, int]
    ) -> None:
        failed = []
        for topic_partition in partitions:
            # A partition that is missing from the answer was not written.
            error = errors.get(topic_partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if error == ErrorCode.NONE or error in NEVER_WRITTEN:
                ending.left.discard(topic_partition)
            elif error in FENCED:
                logger.info(
                    "transactional id %s: its marker for %s-%d was refused (%s), another "
                    "coordinator or producer took over",
                    ending.transaction.transactional_id,
                    *topic_partition,
                    error_name(error),
                    extra={"transactional_id": ending.transaction.transactional_id},
                )
                del self._endings[ending.key]
                return
            else:
                failed.append(topic_partition)
                logger.info(
                    "transactional id %s: no marker in %s-%d yet (%s), trying again",
                    ending.transaction.transactional_id,
                    *topic_partition,
                    error_name(error),
                    extra={"transactional_id": ending.transaction.transactional_id},
                )
        if failed:
            self._retry(ending, failed)
        self._check_done(ending)

    def _retry(self, ending: Ending, partitions: list[TopicPartition]) -> None:
        self._to_retry.append((ending, partitions))
        if self._retry_timer is None:
            self._retry_timer = self._timer.schedule(RETRY_DELAY_MS, self._retry_all)

    def _retry_all(self) -> None:
        self._retry_timer = None
        work, self._to_retry = self._to_retry, []
        wanted = [entry for entry in work if self._is_wanted(entry[0])]
        self._dispatch(wanted)
        for ending, _ in wanted:
            self._check_done(ending)

    def _is_wanted(self, ending: Ending) -> bool:
        return self._endings.get(ending.key) is ending

    def _check_done(self, ending: Ending) -> None:
        if not ending.left and self._is_wanted(ending):
            del self._endings[ending.key]
            self._on_done(ending.home, ending.transaction)


def _marker(ending: Ending, partitions: list[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic_partition in partitions:
        topics.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    value = ending.transaction.value
    return WritableTxnMarker(
        producer_id=value.producer_id,
        producer_epoch=value.epoch,
        transaction_result=ending.committed,
        topics=[WritableTxnMarkerTopic(name, indexes) for name, indexes in topics.items()],
        coordinator_epoch=ending.home.leader_epoch,
    )


def _results(response: WriteTxnMarkersResponse) -> dict[int, dict[TopicPartition, int]]:
    results: dict[int, dict[TopicPartition, int]] = {}
    for marker in response.markers:
        errors = results.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for row in topic.partitions:
                errors[TopicPartition(topic.name, row.partition_index)] = row.error_code
    return results
