"""Appends of transactional producers, verified before the first batch in a partition (KIP-890).

Before a batch starts a transaction in a partition, the transaction coordinator verifies that the
transaction is ongoing and contains the partition. The append passes the verification guard that the
log created before; a marker that is appended meanwhile invalidates the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ottla.broker.transactions.state import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.batch import BatchHeader, read_header
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
    ) -> None:
        """As `ReplicaManager.append_records`. Raises INVALID_PRODUCER_ID_MAPPING for a request with
        more than one producer, as one is verified."""
        guards, producer = self._begin(entries)
        if producer is None:
            self._replica_manager.append_records(acks, timeout_ms, entries, callback)
            return

        def verified(errors: dict[TopicPartition, int]) -> None:
            self._append(acks, timeout_ms, entries, callback, guards, errors)

        self._verifier.verify(
            transactional_id,
            producer,
            frozenset(TopicPartition(*key) for key in guards),
            verified,
            knows_abortable=version >= 11,
        )

    def _begin(self, entries: Sequence[ProduceEntry]) -> tuple[Guards, Producer | None]:
        """The guards of partitions in which the transaction starts, and the producer."""
        guards: Guards = {}
        producers: set[Producer] = set()
        batches: list[tuple[str, int, BatchHeader]] = []
        for topic, index, records, _ in entries:
            header = read_header(records)
            if header.is_transactional:
                producers.add(Producer(header.producer_id, header.producer_epoch))
                batches.append((topic, index, header))
        if len(producers) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "Transactional records contained more than one producer ID",
            )
        producer: Producer | None = None
        for topic, index, header in batches:
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
        self._replica_manager.append_records(acks, timeout_ms, good, callback, guards=guards)
