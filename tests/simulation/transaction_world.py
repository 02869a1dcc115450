"""Transactional producers, their coordinator and partitions, simulated under every kind of trouble.

Everything that can happen is one step: a producer starts, adds partitions, writes, commits or
aborts; a record or a marker request gets through or fails; time passes; the coordinator crashes
and another one loads the log, while requests of the old one are still on their way. A seed
chooses the steps. The rules:

* a transaction ends in all its partitions, everywhere the same way;
* what was confirmed as committed is committed, what was confirmed as aborted is aborted;
* a producer that was fenced by a newer one changes nothing any more;
* what a transactional id is given (producer id and epoch) only grows;
* in the end no partition holds a transaction that stays open.

Some producers use transaction version 2: their epoch rises with each transaction, a partition is
added when they write to it, and a retried end is known by its epoch. A marker request may come a
second time, late.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ottla.broker.transactions.markers import OnResponse
from ottla.broker.transactions.state import TRANSACTION_VERSION_2, Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.coordinator_log import MemoryLog
from tests.unit.broker.transactions.helpers import Ids, Setup

PARTITIONS = [TopicPartition("t", index) for index in range(4)]
TRANSACTIONAL_IDS = ("a", "b", "c")
TIMEOUT_MS = 30_000
APPEND_ERRORS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT)
MARKER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class Open(NamedTuple):
    """What an open transaction has written into one partition."""

    epoch: int
    transaction: int


class PartitionModel:
    """What a partition's leader does with transactional writes and markers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.open: dict[int, Open] = {}
        self.epochs: dict[int, int] = {}
        self.coordinator_epochs: dict[int, int] = {}

    def write(self, producer: Producer, transaction: int) -> bool:
        """False when the producer is fenced here."""
        if producer.epoch < self.epochs.get(producer.producer_id, -1):
            return False
        self.epochs[producer.producer_id] = producer.epoch
        found = self.open.get(producer.producer_id)
        if found is not None and found.epoch < producer.epoch:
            raise AssertionError("a transaction begins before the last one has its marker")
        assert found is None or found.transaction == transaction, "a transaction was never ended"
        self.open[producer.producer_id] = Open(producer.epoch, transaction)
        return True

    def mark(
        self, producer: Producer, committed: bool, coordinator_epoch: int, version: int
    ) -> int:
        if coordinator_epoch < self.coordinator_epochs.get(producer.producer_id, -1):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if producer.epoch < self.epochs.get(producer.producer_id, -1):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        found = self.open.get(producer.producer_id)
        if version >= TRANSACTION_VERSION_2 and found and found.epoch == producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH  # of the transaction before
        self.coordinator_epochs[producer.producer_id] = coordinator_epoch
        self.epochs[producer.producer_id] = producer.epoch
        ended = self.open.pop(producer.producer_id, None)
        if ended is not None:
            self._world.ended(ended.transaction, committed)
        return ErrorCode.NONE


class Network:
    """Stands for `BrokerMarkerTransport`. A step lets requests through or drops them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.requests: list[tuple[WriteTxnMarkersRequest, OnResponse]] = []
        self.sent_again: list[WriteTxnMarkersRequest] = []

    def leader_of(self, partition: TopicPartition) -> int | None:
        if self._world.random.random() < 0.1 and not self._world.is_finishing:
            return -1
        return partition.partition % 2

    def check_deleted(self, partition: TopicPartition, on_result: Callable[[bool], None]) -> None:
        raise AssertionError("all partitions are known")

    def send(
        self, broker_id: int, request: WriteTxnMarkersRequest, on_response: OnResponse
    ) -> None:
        self.requests.append((request, on_response))

    def deliver(self) -> None:
        request, on_response = self.requests.pop(self._world.random.randrange(len(self.requests)))
        if all(marker.transaction_version >= TRANSACTION_VERSION_2 for marker in request.markers):
            self.sent_again = [*self.sent_again[-9:], request]
        on_response(self._write(request))

    def deliver_late(self) -> None:
        """A copy of a request that was on its way when it was sent again."""
        if self.sent_again:
            self._write(self._world.random.choice(self.sent_again))

    def lose(self) -> None:
        """The request or its response is lost: the markers may be written or not."""
        request, on_response = self.requests.pop()
        if self._world.random.random() < 0.5:
            self._write(request)
        on_response(None)

    def _write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        results = []
        for marker in request.markers:
            rows = []
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    error = self._mark(marker, index)
                    rows.append(WritableTxnMarkerPartitionResult(index, error))
            topics = [WritableTxnMarkerTopicResult("t", rows)]
            results.append(WritableTxnMarkerResult(marker.producer_id, topics))
        return WriteTxnMarkersResponse(results)

    def _mark(self, marker: WritableTxnMarker, index: int) -> int:
        world = self._world
        if world.random.random() < 0.1 and not world.is_finishing:
            return world.random.choice(MARKER_ERRORS)
        return world.partitions[PARTITIONS[index]].mark(
            Producer(marker.producer_id, marker.producer_epoch),
            marker.transaction_result,
            marker.coordinator_epoch,
            marker.transaction_version,
        )


class Application:
    """A producer of one transactional id; several of the same id may be alive at once."""

    def __init__(self, world: World, transactional_id: str) -> None:
        self.world = world
        self.transactional_id = transactional_id
        self.version = world.random.choice((0, TRANSACTION_VERSION_2))
        self.producer: Producer | None = None
        self.transaction: int | None = None
        self.added: set[TopicPartition] = set()
        # How it wants to end its transaction, until it knows that it did.
        self.ending: bool | None = None
        self.is_waiting = False
        self.is_dead = False

    def act(self) -> None:
        if self.is_waiting or self.is_dead:
            return
        if self.producer is None:
            self.start()
        elif self.ending is not None:
            self.end(self.ending)
        elif self.transaction is None or self.world.random.random() < 0.6:
            self.write()
        else:
            self.end(self.world.random.random() < 0.6)

    def start(self) -> None:
        self.is_waiting = True
        self.world.setup.coordinator.init_producer_id(
            self.transactional_id, TIMEOUT_MS, None, self.started
        )

    def started(self, error: int, producer: Producer) -> None:
        self.is_waiting = False
        if error == ErrorCode.NONE and not self.is_dead:
            self.producer = producer
            self.world.given(self.transactional_id, producer)

    def write(self) -> None:
        """Add a partition to the transaction, then write to it."""
        assert self.producer is not None
        if self.transaction is None:
            self.transaction = self.world.new_transaction()
            self.added = set()
        where = self.world.random.choice(PARTITIONS)
        if where in self.added:
            self.write_to(where)
            return
        self.is_waiting = True
        self.world.setup.coordinator.add_partitions(
            self.transactional_id,
            self.producer,
            frozenset((where,)),
            partial(self.is_added, where),
            self.version,
        )

    def is_added(self, where: TopicPartition, error: int) -> None:
        self.is_waiting = False
        if self.is_dead:
            return
        assert self.producer is not None
        if error == ErrorCode.NONE:
            self.world.check_current(self, "add partitions")
            self.added.add(where)
            self.write_to(where)
        elif error in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            self.is_dead = True

    def write_to(self, where: TopicPartition) -> None:
        assert self.producer is not None
        assert self.transaction is not None
        if not self.world.partitions[where].write(self.producer, self.transaction):
            self.is_dead = True

    def end(self, committed: bool) -> None:
        assert self.producer is not None
        self.is_waiting = True
        self.ending = committed
        self.world.setup.coordinator.end_transaction(
            self.transactional_id,
            self.producer,
            committed,
            partial(self.ended, committed),
            self.version,
        )

    def ended(self, committed: bool, error: int, given: Producer) -> None:
        self.is_waiting = False
        if self.is_dead:
            return
        if error == ErrorCode.NONE:
            self.world.check_current(self, "end a transaction")
            assert self.transaction is not None
            if self.version:
                self.producer = given
                self.world.given(self.transactional_id, given)
            if self.added:
                self.world.confirmed(self.transaction, committed)
            self.transaction = self.ending = None
        elif error == ErrorCode.CONCURRENT_TRANSACTIONS:
            pass  # retried unchanged
        elif error in (
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ):
            self.is_dead = True  # a client gives up here


class World:
    """The applications, the coordinator of the present term, the partitions, and the rules."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.is_finishing = False
        self.log = MemoryLog()
        self.log.hold = True
        self.ids = Ids()
        self.partitions = {partition: PartitionModel(self) for partition in PARTITIONS}
        self.applications: list[Application] = []
        self.transactions = 0
        self.outcomes: dict[int, bool] = {}
        self.promised: dict[int, bool] = {}
        self.newest: dict[str, Producer] = {}
        self.term = -1
        self.start_term()

    def start_term(self) -> None:
        """A coordinator that knows nothing but the log."""
        self.term += 1
        self.network = Network(self)
        self.setup = Setup(self.log, ids=self.ids, transport=self.network, epoch=self.term)

    # What may happen.

    def step(self) -> None:
        actions: list[tuple[float, Callable[[], None]]] = [
            (20, self.application_acts),
            (12, self.record_is_committed),
            (8, self.marker_request_arrives),
            (1, self.marker_request_is_lost),
            (1, self.network.deliver_late),
            (2, self.time_passes),
            (1.5, self.application_starts),
            (0.5, self.application_dies),
            (0.3, self.records_fail),
            (0.25, self.coordinator_crashes),
        ]
        weights = [weight for weight, _ in actions]
        self.random.choices([action for _, action in actions], weights)[0]()

    def application_starts(self) -> None:
        if len(self.applications) < 5:
            self.applications.append(Application(self, self.random.choice(TRANSACTIONAL_IDS)))

    def application_acts(self) -> None:
        if self.applications:
            application = self.random.choice(self.applications)
            application.act()
            if application.is_dead:
                self.applications.remove(application)

    def application_dies(self) -> None:
        if self.applications:
            application = self.random.choice(self.applications)
            application.is_dead = True
            self.applications.remove(application)

    def record_is_committed(self) -> None:
        if self.log.held:
            self.log.commit_one()

    def records_fail(self) -> None:
        self.log.fail_all(self.random.choice(APPEND_ERRORS))

    def marker_request_arrives(self) -> None:
        if self.network.requests:
            self.network.deliver()

    def marker_request_is_lost(self) -> None:
        if self.network.requests:
            self.network.lose()

    def time_passes(self) -> None:
        self.setup.timer.advance(self.random.choice((50, 150, 1_000, 12_000)))

    def coordinator_crashes(self) -> None:
        """Requests of the old coordinator may arrive, its records may be lost or be there."""
        for application in self.applications:
            application.is_waiting = False
        if self.random.random() < 0.5:
            self.log.lose_held()
        else:
            self.log.held.clear()
        old = self.network.requests
        self.start_term()
        for request, _ in old:
            if self.random.random() < 0.5:
                self.network._write(request)

    # The rules.

    def new_transaction(self) -> int:
        self.transactions += 1
        return self.transactions

    def given(self, transactional_id: str, producer: Producer) -> None:
        before = self.newest.get(transactional_id)
        assert before is None or producer > before, "a producer got what another one has"
        self.newest[transactional_id] = producer

    def check_current(self, application: Application, what: str) -> None:
        newest = self.newest[application.transactional_id]
        assert application.producer == newest, f"a fenced producer could {what}"

    def confirmed(self, transaction: int, committed: bool) -> None:
        self.promised[transaction] = committed
        assert self.outcomes.get(transaction, committed) == committed

    def ended(self, transaction: int, committed: bool) -> None:
        known = self.outcomes.setdefault(transaction, committed)
        assert known == committed, "a transaction ended differently in two partitions"
        assert self.promised.get(transaction, committed) == committed, "a promise was broken"

    def finish(self) -> None:
        """No more trouble, no more producers: everything that is open comes to an end."""
        self.is_finishing = True
        for _ in range(60):
            self.log.commit_all()
            while self.network.requests:
                self.network.deliver()
            self.setup.timer.advance(5_000)
        for model in self.partitions.values():
            assert not model.open, "a transaction that stays open"
        home = self.setup.coordinator.partitions.get_active(0)
        assert home is not None
        for transaction in home.transactions.values():
            assert transaction.state.label in ("Empty", "CompleteCommit", "CompleteAbort")
            assert transaction.pending_state is None
        assert self.setup.coordinator.markers.pending == 0
