"""The transaction coordinator: producer ids, epochs and transactions of transactional ids.

Every change is a record in `__transaction_state` first. A transaction in PrepareCommit or
PrepareAbort is always completed: its markers are sent until every partition has one, by this
coordinator or the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.coordination.coordinated_partitions import CoordinatedPartitions
from ottla.broker.coordination.ports import MOVED_ERRORS, UNAVAILABLE_ERRORS, CoordinatorLog, Defer
from ottla.broker.runtime.clock import Clock
from ottla.broker.runtime.timer import DelayQueue
from ottla.broker.runtime.wheel import TimerTask
from ottla.broker.transactions.markers import RETRY_DELAY_MS, MarkerSender
from ottla.broker.transactions.partition import TransactionPartition
from ottla.broker.transactions.records import transaction_key, transaction_value
from ottla.broker.transactions.state import (
    COMPLETING,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTION_VERSION_2,
    NeedsProducerId,
    Producer,
    RejectedRequest,
    Transaction,
    TransactionState,
    TransactionValue,
)
from ottla.broker.transactions.upkeep import TransactionUpkeep
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.records.builder import build_batch
from ottla.protocol.steps import Steps, TurnQueue
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.producer_ids import ProducerIdManager
    from ottla.broker.transactions.marker_writer import BrokerMarkerTransport

logger = logging.getLogger("ottla.transactions")

NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

ErrorCallback = Callable[[int], None]
ProducerCallback = Callable[[int, Producer], None]
"""Gets the error and the producer id and epoch of the client from now on; -1 with an error."""


class TransactionSettings:
    """The settings of the coordinator, by Kafka's names and with its defaults. Immutable."""

    __slots__ = (
        "transaction_abort_timed_out_transaction_cleanup_interval_ms",
        "transaction_max_timeout_ms",
        "transaction_partition_verification_enable",
        "transaction_remove_expired_transaction_cleanup_interval_ms",
        "transaction_state_log_num_partitions",
        "transactional_id_expiration_ms",
    )

    def __init__(
        self,
        *,
        transaction_max_timeout_ms: int = 900_000,
        transaction_state_log_num_partitions: int = 50,
        transactional_id_expiration_ms: int = 7 * 86_400_000,
        transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000,
        transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000,
        transaction_partition_verification_enable: bool = True,
    ) -> None:
        self.transaction_max_timeout_ms = transaction_max_timeout_ms
        self.transaction_state_log_num_partitions = transaction_state_log_num_partitions
        self.transactional_id_expiration_ms = transactional_id_expiration_ms
        self.transaction_abort_timed_out_transaction_cleanup_interval_ms = (
            transaction_abort_timed_out_transaction_cleanup_interval_ms
        )
        self.transaction_remove_expired_transaction_cleanup_interval_ms = (
            transaction_remove_expired_transaction_cleanup_interval_ms
        )
        self.transaction_partition_verification_enable = transaction_partition_verification_enable


class TransactionCoordinator:
    """The transactional ids whose partition this broker leads. Loop only."""

    def __init__(
        self,
        settings: TransactionSettings,
        log: CoordinatorLog,
        timer: DelayQueue,
        clock: Clock,
        defer: Defer,
        producer_ids: ProducerIdManager,
        transport: BrokerMarkerTransport,
        transaction_version: Callable[[], int] = lambda: 0,
    ) -> None:
        """`transaction_version` returns the finalized level of that feature."""
        self._transaction_version = transaction_version
        self._settings = settings
        self._log = log
        self._timer = timer
        self._clock = clock
        self._producer_ids = producer_ids
        self._timers: dict[str, TimerTask] = {}
        self.markers = MarkerSender(transport, timer, self._on_markers_written)
        self.partitions: CoordinatedPartitions[TransactionPartition] = CoordinatedPartitions(
            TRANSACTION_STATE_TOPIC,
            settings.transaction_state_log_num_partitions,
            log,
            timer,
            clock,
            defer,
            TransactionPartition,
            self._on_loaded,
            self._on_unloaded,
        )
        self._marker_jobs = TurnQueue(defer)
        self._jobs = TurnQueue(defer)  # which are not urgent
        self.upkeep = TransactionUpkeep(
            settings, self.partitions, log, clock, self._jobs, self._abort_timed_out
        )

    # Start, shutdown and leadership.

    def startup(self, partition_count: int | None = None) -> None:
        """Start the periodic checks; `partition_count` is that of an existing topic."""
        if partition_count is not None:
            self.partitions.partition_count = partition_count
        settings = self._settings
        self._repeat(
            "abort",
            settings.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            self.upkeep.abort_timed_out,
        )
        self._repeat(
            "expire",
            settings.transaction_remove_expired_transaction_cleanup_interval_ms,
            self.upkeep.remove_expired,
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
        self._marker_jobs.stop()
        self._jobs.stop()
        self.partitions.stop()
        self.markers.close()

    def partition_for(self, transactional_id: str) -> int:
        """Return the partition of `__transaction_state` of a transactional id."""
        return self.partitions.partition_for(transactional_id)

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """This broker leads a partition of the topic: loads it and completes its transactions."""
        self.partitions.elect(partition, leader_epoch)

    def on_resigned(self, partition: int, leader_epoch: int | None = None) -> None:
        self.partitions.resign(partition, leader_epoch)

    def _on_loaded(self, state_partition: TransactionPartition) -> None:
        # Of now: a transaction that is ended later starts its markers itself.
        completing = [
            transaction
            for transaction in state_partition.transactions.values()
            if transaction.value.state in COMPLETING
        ]
        if completing:
            self._marker_jobs.start(self._start_markers(state_partition, completing))

    def _start_markers(
        self, state_partition: TransactionPartition, completing: list[Transaction]
    ) -> Steps[None]:
        for transaction in completing:
            if not self.partitions.is_active(state_partition):
                return
            self.markers.start(state_partition, transaction)
            yield

    def _on_unloaded(self, state_partition: TransactionPartition) -> None:
        self.markers.cancel_partition(state_partition.index)

    # InitProducerId.

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        expected: Producer | None,
        response_callback: ProducerCallback,
    ) -> None:
        """Return a producer id for an idempotent (no transactional id) or transactional producer.

        `expected` is the producer's current id and epoch, when it requests an epoch bump (KIP-360).
        """
        if transactional_id is None:
            self._producer_ids.take(
                lambda error, fresh: response_callback(error, _first_epoch(error, fresh))
            )
        elif not transactional_id:
            response_callback(ErrorCode.INVALID_REQUEST, NO_PRODUCER)
        elif not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            response_callback(ErrorCode.INVALID_TRANSACTION_TIMEOUT, NO_PRODUCER)
        else:
            self._init(transactional_id, timeout_ms, expected, None, response_callback)

    def _with_new_id(
        self, response_callback: ProducerCallback, then: Callable[[int], None]
    ) -> None:
        """Call `then` with a new producer id, or respond with the error if there is none."""
        self._producer_ids.take(
            lambda error, fresh: response_callback(error, NO_PRODUCER) if error else then(fresh)
        )

    def _init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer | None,
        fresh_id: int | None,
        response_callback: ProducerCallback,
    ) -> None:
        """Run a second time, with `fresh_id`, when a new producer id is needed."""
        error = self.partitions.status_of(transactional_id)
        state_partition = self.partitions.home_of(transactional_id)
        if error or state_partition is None:
            response_callback(error or ErrorCode.NOT_COORDINATOR, NO_PRODUCER)
            return
        now_ms = self._clock.now_ms()
        try:
            transaction = state_partition.transactions.get(transactional_id)
            if transaction is None:
                if fresh_id is None:
                    raise NeedsProducerId
                transaction = state_partition.transactions[transactional_id] = Transaction(
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
        except RejectedRequest as rejection:
            response_callback(rejection.code, NO_PRODUCER)
            return
        except NeedsProducerId:
            self._with_new_id(
                response_callback,
                lambda fresh: self._init(
                    transactional_id, timeout_ms, expected, fresh, response_callback
                ),
            )
            return
        if value.state is TransactionState.PREPARE_ABORT:
            logger.info(
                "TransactionalId %s: aborting the ongoing transaction on InitProducerId",
                transactional_id,
                extra={"transactional_id": transactional_id},
            )
            self._prepare_completion(
                state_partition,
                transaction,
                value,
                lambda error: response_callback(
                    error or ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER
                ),
            )
            return
        producer = Producer(value.producer_id, value.epoch)
        self._append(
            state_partition,
            transaction,
            value,
            lambda error: response_callback(error, NO_PRODUCER if error else producer),
        )

    # AddPartitionsToTxn and EndTxn.

    def add_partitions(
        self,
        transactional_id: str | None,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        response_callback: ErrorCallback,
        client_version: int = 0,
    ) -> None:
        """Add partitions to the transaction of the producer, which starts one if needed.

        `client_version` is the transaction version of the client: with 2 its epoch will rise at the
        end of the transaction.
        """
        try:
            state_partition, transaction = self._find(transactional_id)
            value = transaction.add_partitions(
                producer, partitions, self._clock.now_ms(), client_version
            )
        except RejectedRequest as rejection:
            response_callback(rejection.code)
            return
        if value is None:
            response_callback(ErrorCode.NONE)
        else:
            self._append(state_partition, transaction, value, response_callback)

    def verify_partitions(
        self,
        transactional_id: str | None,
        producer: Producer,
        partitions: frozenset[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """Return the errors of partitions that are not in the ongoing transaction."""
        try:
            _, transaction = self._find(transactional_id)
            return transaction.verify_partitions(producer, partitions)
        except RejectedRequest as rejection:
            return dict.fromkeys(partitions, rejection.code)

    def end_transaction(
        self,
        transactional_id: str | None,
        producer: Producer,
        committed: bool,
        response_callback: ProducerCallback,
        client_version: int = 0,
    ) -> None:
        """Commit or abort. Responds when PrepareCommit or PrepareAbort is committed to the log;
        then the markers are sent. A client of transaction version 2 goes on with the producer id
        and epoch that it gets."""
        self._end(transactional_id, producer, committed, None, response_callback, client_version)

    def _end(
        self,
        transactional_id: str | None,
        producer: Producer,
        committed: bool,
        fresh_id: int | None,
        response_callback: ProducerCallback,
        client_version: int,
    ) -> None:
        """Run a second time, with `fresh_id`, when a new producer id is needed."""
        now_ms = self._clock.now_ms()
        try:
            state_partition, transaction = self._find(transactional_id)
            if client_version >= TRANSACTION_VERSION_2:
                value = transaction.end_and_raise(producer, committed, fresh_id, now_ms)
            else:
                value = transaction.end(producer, committed, now_ms)
        except RejectedRequest as rejection:
            response_callback(rejection.code, NO_PRODUCER)
            return
        except NeedsProducerId:
            self._with_new_id(
                response_callback,
                lambda fresh: self._end(
                    transactional_id, producer, committed, fresh, response_callback, client_version
                ),
            )
            return
        given = (value or transaction.value).client_producer

        def respond(error: int) -> None:
            response_callback(error, NO_PRODUCER if error else given)

        if value is None:
            respond(ErrorCode.NONE)
        else:
            self._prepare_completion(state_partition, transaction, value, respond)

    def _find(self, transactional_id: str | None) -> tuple[TransactionPartition, Transaction]:
        if not transactional_id:
            raise RejectedRequest(ErrorCode.INVALID_REQUEST)
        error = self.partitions.status_of(transactional_id)
        state_partition = self.partitions.home_of(transactional_id)
        if error or state_partition is None:
            raise RejectedRequest(error or ErrorCode.NOT_COORDINATOR)
        transaction = state_partition.transactions.get(transactional_id)
        if transaction is None:
            raise RejectedRequest(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return state_partition, transaction

    def _prepare_completion(
        self,
        state_partition: TransactionPartition,
        transaction: Transaction,
        value: TransactionValue,
        response_callback: ErrorCallback,
    ) -> None:
        """Append PrepareCommit or PrepareAbort, respond, and start to send the markers."""

        def on_prepared(error: int) -> None:
            response_callback(error)
            if not error:
                self.markers.start(state_partition, transaction)

        self._append(state_partition, transaction, value, on_prepared)

    def _abort_timed_out(
        self, state_partition: TransactionPartition, transaction: Transaction
    ) -> None:
        value = transaction.fence(self._clock.now_ms())
        self._prepare_completion(state_partition, transaction, value, _ignore)

    def _on_markers_written(
        self, state_partition: TransactionPartition, transaction: Transaction
    ) -> None:
        """All markers are written: appends CompleteCommit or CompleteAbort."""
        if not self.partitions.is_active(state_partition) or transaction.state not in COMPLETING:
            return
        value = transaction.complete(self._clock.now_ms())
        self._append(
            state_partition,
            transaction,
            value,
            partial(self._on_completion_appended, state_partition, transaction),
        )

    def _on_completion_appended(
        self, state_partition: TransactionPartition, transaction: Transaction, error: int
    ) -> None:
        if error == ErrorCode.NONE or not self.partitions.is_active(state_partition):
            return  # completed, or left to the next coordinator
        # Also after NOT_COORDINATOR: it stands for KAFKA_STORAGE_ERROR, too, and with a full disk
        # this broker remains the leader.
        logger.warning(
            "TransactionalId %s: failed to append the completed transaction (%s). Retrying",
            transaction.transactional_id,
            error_name(error),
            extra={"transactional_id": transaction.transactional_id},
        )
        self._timer.schedule(
            RETRY_DELAY_MS, partial(self._on_markers_written, state_partition, transaction)
        )

    # The log.

    def _append(
        self,
        state_partition: TransactionPartition,
        transaction: Transaction,
        value: TransactionValue,
        on_result: ErrorCallback,
    ) -> None:
        """Append a value; when it is committed, replay it and call `on_result` with 0."""
        transaction.prepare_transition(value)
        batch = build_batch(
            [
                (
                    self._clock.now_ms(),
                    transaction_key(transaction.transactional_id),
                    transaction_value(value, self._transaction_version()),
                    None,
                )
            ]
        )

        def on_append(error: int, _: int) -> None:
            if not self.partitions.is_active(state_partition):
                on_result(ErrorCode.NOT_COORDINATOR)
            elif error:
                transaction.clear_pending_state()
                on_result(_client_error(error))
            else:
                if logger.isEnabledFor(logging.DEBUG):
                    logger.debug(
                        "TransactionalId %s transition from %s to %s",
                        transaction.transactional_id,
                        transaction.state.label,
                        value.state.label,
                        extra={"transactional_id": transaction.transactional_id},
                    )
                state_partition.replay(transaction.transactional_id, value)
                on_result(ErrorCode.NONE)

        self._log.append(state_partition.index, batch, on_append)


def _first_epoch(error: int, producer_id: int) -> Producer:
    return NO_PRODUCER if error else Producer(producer_id, 0)


def _ignore(_: int) -> None:
    """No request waits for the result; the next check retries."""


def _client_error(error: int) -> int:
    if error in UNAVAILABLE_ERRORS or error == ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in MOVED_ERRORS:
        return ErrorCode.NOT_COORDINATOR
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error
