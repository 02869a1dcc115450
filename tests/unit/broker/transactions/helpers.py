"""A transaction coordinator with its surroundings in memory and time by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.broker.cluster.producer_ids import IdReply
from ottla.broker.transactions.coordinator import TransactionCoordinator, TransactionSettings
from ottla.broker.transactions.markers import NO_LEADER, OnResponse
from ottla.broker.transactions.queries import TransactionQueries
from ottla.broker.transactions.state import (
    TRANSACTION_VERSION_2,
    Producer,
    Transaction,
    TransactionState,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.coordinator_log import MemoryLog
from tests.doubles.manual_timer import ManualTimer

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
U0 = TopicPartition("u", 0)
ID = "txn"
TIMEOUT_MS = 60_000


class Ids:
    """Producer ids from 100 on; `error` fails the next."""

    def __init__(self) -> None:
        self.next_id = 100
        self.error = 0
        self.waiting: list[IdReply] = []
        self.hold = False

    def take(self, response_callback: IdReply) -> None:
        if self.hold:
            self.waiting.append(response_callback)
        elif self.error:
            error, self.error = self.error, 0
            response_callback(error, -1)
        else:
            self.next_id += 1
            response_callback(ErrorCode.NONE, self.next_id - 1)

    def release(self) -> None:
        self.hold = False
        waiting, self.waiting = self.waiting, []
        for response_callback in waiting:
            self.take(response_callback)


class Leaders:
    """Stands for `BrokerMarkerTransport`: records markers, and responds at once by default.

    `leaders` says who leads what (broker 1 unless named, None for a partition that is not known);
    `existing` are the unknown partitions that exist; `errors` fail single partitions, once each;
    brokers in `unreachable` do not respond; `hold` keeps requests back, `hold_checks` the results
    of checks for deletion.
    """

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int | None] = {}
        self.existing: set[TopicPartition] = set()
        self.hold_checks = False
        self.held_checks: list[tuple[TopicPartition, Callable[[bool], None]]] = []
        self.errors: dict[TopicPartition, list[int]] = {}
        self.unreachable: set[int] = set()
        self.hold = False
        self.held: list[tuple[int, WriteTxnMarkersRequest, OnResponse]] = []
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.written: list[tuple[TopicPartition, int, int, bool]] = []

    def leader_of(self, partition: TopicPartition) -> int | None:
        return self.leaders.get(partition, 1)

    def check_deleted(self, partition: TopicPartition, on_result: Callable[[bool], None]) -> None:
        if self.hold_checks:
            self.held_checks.append((partition, on_result))
        else:
            on_result(partition not in self.existing)

    def release_checks(self) -> None:
        self.hold_checks = False
        held, self.held_checks = self.held_checks, []
        for partition, on_result in held:
            self.check_deleted(partition, on_result)

    def send(
        self, broker_id: int, request: WriteTxnMarkersRequest, on_response: OnResponse
    ) -> None:
        self.requests.append((broker_id, request))
        if self.hold:
            self.held.append((broker_id, request, on_response))
        else:
            on_response(self._response(broker_id, request))

    def release(self) -> None:
        self.hold = False
        held, self.held = self.held, []
        for broker_id, request, on_response in held:
            on_response(self._response(broker_id, request))

    def _response(
        self, broker_id: int, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse | None:
        if broker_id in self.unreachable:
            return None
        results = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                rows = []
                for index in topic.partition_indexes:
                    where = TopicPartition(topic.name, index)
                    errors = self.errors.get(where)
                    error = errors.pop(0) if errors else ErrorCode.NONE
                    if not error:
                        self.written.append(
                            (
                                where,
                                marker.producer_id,
                                marker.producer_epoch,
                                marker.transaction_result,
                            )
                        )
                    rows.append(WritableTxnMarkerPartitionResult(index, error))
                topics.append(WritableTxnMarkerTopicResult(topic.name, rows))
            results.append(WritableTxnMarkerResult(marker.producer_id, topics))
        return WriteTxnMarkersResponse(results)


class Setup:
    """One coordinator of one partition of the transaction topic, loaded and active."""

    def __init__(
        self,
        log: MemoryLog | None = None,
        *,
        ids: Ids | None = None,
        transport: Any = None,
        epoch: int = 0,
        **settings: int,
    ) -> None:
        settings.setdefault("transaction_state_log_num_partitions", 1)
        self.settings = TransactionSettings(**settings)
        self.log = log or MemoryLog()
        self.timer = ManualTimer()
        self.deferred: list[Callable[[], None]] = []
        self.ids = ids or Ids()
        self.leaders = Leaders()
        self.transaction_version = 0
        self.coordinator = TransactionCoordinator(
            self.settings,
            self.log,
            self.timer,
            self.timer.clock,
            self.deferred.append,
            self.ids,
            transport or self.leaders,
            lambda: self.transaction_version,
        )
        self.queries = TransactionQueries(self.coordinator.partitions, self.timer.clock.now_ms)
        self.coordinator.startup()
        self.elect(epoch)

    def elect(self, epoch: int = 0) -> None:
        self.coordinator.on_elected(0, epoch)
        while self.deferred:
            self.deferred.pop(0)()

    def transaction(self, transactional_id: str = ID) -> Transaction:
        home = self.coordinator.partitions.get_active(0)
        assert home is not None
        return home.transactions[transactional_id]

    def state(self, transactional_id: str = ID) -> TransactionState:
        return self.transaction(transactional_id).state

    # Requests.

    def init(
        self,
        transactional_id: str | None = ID,
        expected: Producer | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> tuple[int, Producer]:
        responses = self.init_later(transactional_id, expected, timeout_ms)
        (response,) = responses
        return response

    def init_later(
        self,
        transactional_id: str | None = ID,
        expected: Producer | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[tuple[int, Producer]]:
        responses: list[tuple[int, Producer]] = []
        self.coordinator.init_producer_id(
            transactional_id,
            timeout_ms,
            expected,
            lambda error, producer: responses.append((error, producer)),
        )
        return responses

    def producer(self, transactional_id: str = ID) -> Producer:
        error, producer = self.init(transactional_id)
        assert error == ErrorCode.NONE
        return producer

    def add(
        self,
        producer: Producer,
        *partitions: TopicPartition,
        transactional_id: str | None = ID,
        client_version: int = 0,
    ) -> int:
        responses: list[int] = []
        self.coordinator.add_partitions(
            transactional_id, producer, frozenset(partitions), responses.append, client_version
        )
        (response,) = responses
        return response

    def end(
        self, producer: Producer, *, committed: bool = True, transactional_id: str | None = ID
    ) -> int:
        (response,) = self.end_later(
            producer, committed=committed, transactional_id=transactional_id
        )
        return response

    def end_later(
        self, producer: Producer, *, committed: bool = True, transactional_id: str | None = ID
    ) -> list[int]:
        responses: list[int] = []
        self.coordinator.end_transaction(
            transactional_id, producer, committed, lambda error, _: responses.append(error)
        )
        return responses

    def end_and_raise(
        self, producer: Producer, *, committed: bool = True
    ) -> list[tuple[int, Producer]]:
        """The responses to a client of transaction version 2."""
        responses: list[tuple[int, Producer]] = []
        self.coordinator.end_transaction(
            ID,
            producer,
            committed,
            lambda error, given: responses.append((error, given)),
            TRANSACTION_VERSION_2,
        )
        return responses

    def ongoing(self, *partitions: TopicPartition, transactional_id: str = ID) -> Producer:
        """A producer with an open transaction in these partitions."""
        producer = self.producer(transactional_id)
        assert self.add(producer, *partitions, transactional_id=transactional_id) == 0
        return producer


__all__ = ["ID", "NO_LEADER", "T0", "T1", "U0", "Leaders", "Setup"]
