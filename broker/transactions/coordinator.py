"""The transaction coordinator: who may write under a transactional id, and how that ends.

Every change is a record in `__transaction_state` first. A transaction that was decided
(PrepareCommit or PrepareAbort is committed there) is carried out whatever happens: its markers
are sent until every partition has one, by this coordinator or by the next.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ottla.broker.cluster.producer_ids import IdReply
from ottla.broker.coordination.coordinated_partitions import CoordinatedPartitions
from ottla.broker.coordination.ports import (
    MOVED_ERRORS,
    TRANSACTION_STATE_TOPIC,
    UNAVAILABLE_ERRORS,
    CoordinatorLog,
    Defer,
)
from ottla.broker.runtime.clock import Clock
from ottla.broker.runtime.timer import DelayQueue
from ottla.broker.runtime.wheel import TimerTask
from ottla.broker.transactions.markers import RETRY_DELAY_MS, MarkerSender, MarkerTransport
from ottla.broker.transactions.partition import TransactionPartition
from ottla.broker.transactions.records import transaction_key, transaction_value
from ottla.broker.transactions.settings import TransactionSettings
from ottla.broker.transactions.state import (
    COMPLETING,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NeedsProducerId,
    Producer,
    Refused,
    Transaction,
    TransactionState,
    TransactionValue,
)
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.records.builder import build_batch
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.transactions")

# Tombstones of expired ids are spread over batches, far below any sane max.message.bytes.
MAX_TOMBSTONES_PER_BATCH = 1_000

NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

ErrorReply = Callable[[int], None]
InitReply = Callable[[int, Producer], None]


class ProducerIds(Protocol):
    """Where fresh producer ids come from."""

    def take(self, reply: IdReply) -> None: ...


class TransactionCoordinator:
    """All transactional ids whose partition this broker leads. Loop only."""

    def __init__(
        self,
        settings: TransactionSettings,
        log: CoordinatorLog,
        timer: DelayQueue,
        clock: Clock,
        defer: Defer,
        producer_ids: ProducerIds,
        transport: MarkerTransport,
    ) -> None:
        self._settings = settings
        self._log = log
        self._timer = timer
        self._clock = clock
        self._producer_ids = producer_ids
        self._timers: dict[str, TimerTask] = {}
        self.markers = MarkerSender(transport, timer, self._complete)
        self.partitions: CoordinatedPartitions[TransactionPartition] = CoordinatedPartitions(
            TRANSACTION_STATE_TOPIC,
            settings.transaction_state_log_num_partitions,
            log,
            clock,
            defer,
            TransactionPartition,
        )
        self.partitions.on_loaded = self._loaded
        self.partitions.on_unloaded = self._unloaded

    # Life.

    def startup(self, partition_count: int | None = None) -> None:
        """Begin to abort what timed out; `partition_count` is that of an existing topic."""
        if partition_count is not None:
            self.partitions.partition_count = partition_count
        settings = self._settings
        self._repeat(
            "abort",
            settings.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            self.abort_timed_out,
        )
        self._repeat(
            "expire",
            settings.transaction_remove_expired_transaction_cleanup_interval_ms,
            self.remove_expired,
        )

    def _repeat(self, name: str, interval_ms: int, job: Callable[[], None]) -> None:
        def run() -> None:
            try:
                job()
            finally:
                self._repeat(name, interval_ms, job)

        self._timers[name] = self._timer.schedule(interval_ms, run)

    def shutdown(self) -> None:
        for task in self._timers.values():
            task.cancel()
        self._timers.clear()
        self.partitions.stop()
        self.markers.close()

    def partition_for(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` that a transactional id lives in."""
        return self.partitions.partition_for(transactional_id)

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """This broker leads a partition of the topic: load it and end what was decided."""
        self.partitions.elect(partition, leader_epoch)

    def on_resigned(self, partition: int, leader_epoch: int | None = None) -> None:
        self.partitions.resign(partition, leader_epoch)

    def _loaded(self, home: TransactionPartition) -> None:
        for transaction in list(home.transactions.values()):
            if transaction.state in COMPLETING:
                self.markers.start(home, transaction)

    def _unloaded(self, home: TransactionPartition) -> None:
        self.markers.cancel_partition(home.index)

    # InitProducerId.

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        expected: Producer | None,
        reply: InitReply,
    ) -> None:
        """A producer id for one that is merely idempotent (no transactional id) or transactional.

        `expected` is what the producer has now, when it wants its epoch counted up (KIP-360).
        """
        if transactional_id is None:
            self._producer_ids.take(lambda error, fresh: reply(error, _first_epoch(error, fresh)))
        elif not transactional_id:
            reply(ErrorCode.INVALID_REQUEST, NO_PRODUCER)
        elif not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            reply(ErrorCode.INVALID_TRANSACTION_TIMEOUT, NO_PRODUCER)
        else:
            self._init(transactional_id, timeout_ms, expected, None, reply)

    def _init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer | None,
        fresh_id: int | None,
        reply: InitReply,
    ) -> None:
        """Runs once more, from the start, when it turns out that a fresh id is needed."""
        error = self.partitions.status_of(transactional_id)
        home = self.partitions.home_of(transactional_id)
        if error or home is None:
            reply(error or ErrorCode.NOT_COORDINATOR, NO_PRODUCER)
            return
        now_ms = self._clock.now_ms()
        try:
            transaction = home.transactions.get(transactional_id)
            if transaction is None:
                if fresh_id is None:
                    raise NeedsProducerId
                transaction = home.transactions[transactional_id] = Transaction(
                    transactional_id,
                    TransactionValue(
                        TransactionState.EMPTY,
                        fresh_id,
                        NO_PRODUCER_EPOCH,
                        timeout_ms,
                        update_timestamp_ms=now_ms,
                    ),
                )
            value = transaction.init_producer(timeout_ms, expected, fresh_id, now_ms)
        except Refused as refused:
            reply(refused.code, NO_PRODUCER)
            return
        except NeedsProducerId:
            self._producer_ids.take(
                lambda error, fresh: (
                    reply(error, NO_PRODUCER)
                    if error
                    else self._init(transactional_id, timeout_ms, expected, fresh, reply)
                )
            )
            return
        if value.state is TransactionState.PREPARE_ABORT:
            logger.info(
                "transactional id %s: a producer starts while a transaction is open; it is "
                "aborted first",
                transactional_id,
                extra={"transactional_id": transactional_id},
            )
            self._decide(
                home,
                transaction,
                value,
                lambda error: reply(error or ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER),
            )
            return
        producer = Producer(value.producer_id, value.epoch)
        self._append(
            home,
            transaction,
            value,
            lambda error: reply(error, NO_PRODUCER if error else producer),
        )

    # A transaction's partitions and its end.

    def add_partitions(
        self,
        transactional_id: str | None,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        reply: ErrorReply,
    ) -> None:
        """The producer is about to write to these partitions in its transaction."""
        try:
            home, transaction = self._find(transactional_id)
            value = transaction.add_partitions(producer, partitions, self._clock.now_ms())
        except Refused as refused:
            reply(refused.code)
            return
        if value is None:
            reply(ErrorCode.NONE)
        else:
            self._append(home, transaction, value, reply)

    def verify_partitions(
        self,
        transactional_id: str | None,
        producer: Producer,
        partitions: frozenset[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """Whether the partitions are in the producer's open transaction; changes nothing."""
        try:
            _, transaction = self._find(transactional_id)
            return transaction.verify_partitions(producer, partitions)
        except Refused as refused:
            return dict.fromkeys(partitions, refused.code)

    def end_transaction(
        self,
        transactional_id: str | None,
        producer: Producer,
        committed: bool,
        reply: ErrorReply,
    ) -> None:
        """Commit or abort. Answered when the decision is committed to the log; from then on
        nothing can change it, and the markers follow."""
        try:
            home, transaction = self._find(transactional_id)
            value = transaction.end(producer, committed, self._clock.now_ms())
        except Refused as refused:
            reply(refused.code)
            return
        if value is None:
            reply(ErrorCode.NONE)
        else:
            self._decide(home, transaction, value, reply)

    def _find(self, transactional_id: str | None) -> tuple[TransactionPartition, Transaction]:
        if not transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST)
        error = self.partitions.status_of(transactional_id)
        home = self.partitions.home_of(transactional_id)
        if error or home is None:
            raise Refused(error or ErrorCode.NOT_COORDINATOR)
        transaction = home.transactions.get(transactional_id)
        if transaction is None:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return home, transaction

    def _decide(
        self,
        home: TransactionPartition,
        transaction: Transaction,
        value: TransactionValue,
        reply: ErrorReply,
    ) -> None:
        """Write the decision, answer, and carry it out."""

        def decided(error: int) -> None:
            reply(error)
            if not error:
                self.markers.start(home, transaction)

        self._append(home, transaction, value, decided)

    def _complete(self, home: TransactionPartition, transaction: Transaction) -> None:
        """All markers are written."""
        if not self.partitions.is_active(home) or transaction.state not in COMPLETING:
            return
        value = transaction.complete(self._clock.now_ms())
        self._append(home, transaction, value, partial(self._completed, home, transaction))

    def _completed(self, home: TransactionPartition, transaction: Transaction, error: int) -> None:
        if error in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
            return  # done, or for the next coordinator to do
        logger.warning(
            "transactional id %s: its end cannot be written (%s), trying again",
            transaction.transactional_id,
            error_name(error),
            extra={"transactional_id": transaction.transactional_id},
        )
        self._timer.schedule(RETRY_DELAY_MS, partial(self._complete, home, transaction))

    # What nobody asked for.

    def abort_timed_out(self) -> None:
        """Abort transactions that were open for longer than their producer allowed."""
        now_ms = self._clock.now_ms()
        for home in self.partitions.active:
            for transaction in list(home.transactions.values()):
                if transaction.has_timed_out(now_ms):
                    logger.info(
                        "transactional id %s: its transaction is open for more than %d ms and "
                        "is aborted",
                        transaction.transactional_id,
                        transaction.value.timeout_ms,
                        extra={"transactional_id": transaction.transactional_id},
                    )
                    self._decide(home, transaction, transaction.fence(now_ms), _ignore)

    def remove_expired(self) -> None:
        """Forget transactional ids that were not used for transactional.id.expiration.ms."""
        now_ms = self._clock.now_ms()
        expiration_ms = self._settings.transactional_id_expiration_ms
        for home in self.partitions.active:
            expired = [
                transaction
                for transaction in home.transactions.values()
                if transaction.has_expired(now_ms, expiration_ms)
            ]
            for start in range(0, len(expired), MAX_TOMBSTONES_PER_BATCH):
                self._remove(home, expired[start : start + MAX_TOMBSTONES_PER_BATCH])

    def _remove(self, home: TransactionPartition, expired: list[Transaction]) -> None:
        now_ms = self._clock.now_ms()
        for transaction in expired:
            transaction.begin(transaction.value._replace(state=TransactionState.DEAD))
        batch = build_batch(
            [
                (now_ms, transaction_key(transaction.transactional_id), None, None)
                for transaction in expired
            ]
        )

        def on_append(error: int, _: int) -> None:
            if error or not self.partitions.is_active(home):
                for transaction in expired:
                    transaction.give_up()
                return
            for transaction in expired:
                home.replay(transaction.transactional_id, None)
            logger.info("%d transactional ids expired", len(expired))

        self._log.append(home.index, batch, on_append)

    # The log.

    def _append(
        self,
        home: TransactionPartition,
        transaction: Transaction,
        value: TransactionValue,
        on_result: ErrorReply,
    ) -> None:
        """Write a value; when it is committed it is how things are, and `on_result` gets 0."""
        transaction.begin(value)
        batch = build_batch(
            [
                (
                    self._clock.now_ms(),
                    transaction_key(transaction.transactional_id),
                    transaction_value(value),
                    None,
                )
            ]
        )

        def on_append(error: int, _: int) -> None:
            if not self.partitions.is_active(home):
                on_result(ErrorCode.NOT_COORDINATOR)
            elif error:
                transaction.give_up()
                on_result(_client_error(error))
            else:
                home.replay(transaction.transactional_id, value)
                on_result(ErrorCode.NONE)

        self._log.append(home.index, batch, on_append)


def _first_epoch(error: int, producer_id: int) -> Producer:
    return NO_PRODUCER if error else Producer(producer_id, 0)


def _ignore(_: int) -> None:
    """Nobody waits; a transaction that could not be aborted is found again next time."""


def _client_error(error: int) -> int:
    if error in UNAVAILABLE_ERRORS or error == ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in MOVED_ERRORS:
        return ErrorCode.NOT_COORDINATOR
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error
