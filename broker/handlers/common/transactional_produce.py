"""Appends of transactional producers, verified before the first batch in a partition (KIP-890).

Before a batch starts a transaction in a partition, the transaction coordinator verifies that the
transaction is ongoing and contains the partition. The append passes the verification guard that the
log created before; a marker that is appended meanwhile invalidates the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.replication.large_produces import MAX_PARTITIONS_PER_TURN, append_in_turns
from ottla.broker.requests.request_context import DEFERRED, Deferred
from ottla.broker.runtime.slices import run_in_slices
from ottla.broker.transactions.state import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.steps import Steps, run_at_once
from ottla.protocol.topics import TopicPartition
from ottla.storage.producer.verification import Verification

if TYPE_CHECKING:
    from ottla.broker.replication.deferred_validation import ProduceEntry
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.transactions.verification import TransactionVerifier

# Errors of the coordinator that a producer should retry. It knows NOT_ENOUGH_REPLICAS in every
# version.
_RETRIABLE = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)

Guards = dict[tuple[str, int], Verification]
Begun = tuple[Guards, Producer | None]

# Reading the header of a batch and beginning its verification take 5 us.
_PARTITIONS_PER_STEP = 20


class TransactionalProduce:
    """Verifies transactions, then appends."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        verifier: TransactionVerifier,
        now_ms: Callable[[], int],
    ) -> None:
        self._replica_manager = replica_manager
        self._verifier = verifier
        self._now_ms = now_ms

    def append(
        self,
        transactional_id: str,
        version: int,
        acks: int,
        timeout_ms: int,
        entries: Sequence[ProduceEntry],
        callback: Callable[[], None],
    ) -> Deferred | Coroutine[Any, Any, Deferred]:
        """As `append_in_turns`. Raises INVALID_PRODUCER_ID_MAPPING for a request with more than one
        producer, as one is verified."""

        def verify(begun: Begun) -> Deferred:
            guards, producer = begun
            if producer is None:
                append_in_turns(self._replica_manager, acks, timeout_ms, entries, callback)
                return DEFERRED

            def verified(errors: dict[TopicPartition, int]) -> None:
                self._append(acks, timeout_ms, entries, callback, guards, errors)

            self._verifier.verify(
                transactional_id,
                producer,
                frozenset(TopicPartition(*key) for key in guards),
                verified,
                knows_abortable=version >= 11,
            )
            return DEFERRED

        async def begin_and_verify() -> Deferred:
            return verify(await run_in_slices(self._begin(entries)))

        if len(entries) > MAX_PARTITIONS_PER_TURN:
            return begin_and_verify()
        return verify(run_at_once(self._begin(entries)))

    def _begin(self, entries: Sequence[ProduceEntry]) -> Steps[Begun]:
        """The guards of partitions in which the transaction starts, and the producer."""
        guards: Guards = {}
        producers: set[Producer] = set()
        batches: list[tuple[str, int, BatchHeader]] = []
        for count, (topic, index, records, _) in enumerate(entries, 1):
            header = read_header(records)
            if header.is_transactional:
                producers.add(Producer(header.producer_id, header.producer_epoch))
                batches.append((topic, index, header))
            if count % _PARTITIONS_PER_STEP == 0:
                yield
        if len(producers) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "Transactional records contained more than one producer ID",
            )
        producer: Producer | None = None
        for count, (topic, index, header) in enumerate(batches, 1):
            if count % _PARTITIONS_PER_STEP == 0:
                yield
            try:
                log = self._replica_manager.partition(topic, index).leader_log()
            except KafkaError:
                continue  # The append returns the error.
            if log.producer_state.has_open_transaction(header.producer_id):
                continue
            producer = Producer(header.producer_id, header.producer_epoch)
            guards[topic, index] = log.verifications.begin(
                header.producer_id, header.producer_epoch, header.base_sequence, self._now_ms()
            )
        return guards, producer

    def _append(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[ProduceEntry],
        callback: Callable[[], None],
        guards: Guards,
        errors: dict[TopicPartition, int],
    ) -> None:
        good = []
        for entry in entries:
            code = errors.get(TopicPartition(entry[0], entry[1]), ErrorCode.NONE)
            if code == ErrorCode.NONE:
                good.append(entry)
            else:
                entry[3].error_code = ErrorCode.NOT_ENOUGH_REPLICAS if code in _RETRIABLE else code
        append_in_turns(self._replica_manager, acks, timeout_ms, good, callback, guards)
