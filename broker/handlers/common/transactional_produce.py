"""Appends of transactional producers, verified before the first batch in a partition (KIP-890).

Before a batch starts a transaction in a partition, the transaction coordinator verifies that the
transaction is ongoing and contains the partition. The append passes the verification guard that the
log created before; a marker that is appended meanwhile invalidates the guard.

A producer of transaction version 2 sends no AddPartitionsToTxn: the coordinator adds the partition
instead, which also begins the transaction. Such a producer may send while the markers of its last
transaction are being written. Then the coordinator is asked again for a while, as in Kafka 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.transactions.state import TRANSACTION_VERSION_2, Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.topics import TopicPartition
from ottla.storage.producer.verification import Verification

if TYPE_CHECKING:
    from ottla.broker.replication.deferred_validation import ProduceEntry
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.transactions.verification import TransactionVerifier
    from ottla.protocol.steps import Steps

# Errors of the coordinator that a producer should retry. It knows NOT_ENOUGH_REPLICAS in every
# version.
_RETRIABLE = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    )
)

# From this version of Produce on clients know TRANSACTION_ABORTABLE.
_ABORTABLE_SINCE = 11
# From this version of Produce on it adds the partitions to the transaction.
ADDS_PARTITIONS_SINCE = 12

#: Kafka 4: add.partitions.to.txn.retry.backoff.ms and .max.ms
RETRY_MS = 20
RETRIES = 5

Guards = dict[tuple[str, int], Verification]


class BegunTransaction(NamedTuple):
    """The guards of the partitions in which a transaction starts; their producer, None without."""

    guards: Guards
    producer: Producer | None


class TransactionalProduce:
    """Verifies transactions before their records are appended."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        verifier: TransactionVerifier,
        timer: DelayQueue,
        now_ms: Callable[[], int],
        transaction_version: Callable[[], int],
    ) -> None:
        """`transaction_version` returns the finalized level of that feature."""
        self._replica_manager = replica_manager
        self._verifier = verifier
        self._timer = timer
        self._now_ms = now_ms
        self._transaction_version = transaction_version

    def begin(self, entries: Sequence[ProduceEntry], version: int) -> Steps[BegunTransaction]:
        """Create guards in the partitions in which the transaction of a request starts.

        `version` is that of the Produce request. A producer may still use transaction version 2
        when that is not finalized any more, and a coordinator that does not know it does not raise
        the epoch: then an open transaction may be the last one, and the coordinator is asked.

        Raises INVALID_PRODUCER_ID_MAPPING for a request with more than one producer, as one is
        verified. May pause between two partitions; a marker that is appended meanwhile invalidates
        the guard.
        """
        producers: set[Producer] = set()
        batches: list[tuple[str, int, BatchHeader]] = []
        for topic, index, records, _ in entries:
            header = read_header(records)
            if header.is_transactional:
                producers.add(Producer(header.producer_id, header.producer_epoch))
                batches.append((topic, index, header))
            yield
        if len(producers) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "Transactional records contained more than one producer ID",
            )
        guards: Guards = {}
        producer: Producer | None = None
        asks_always = (
            version >= ADDS_PARTITIONS_SINCE and self._transaction_version() < TRANSACTION_VERSION_2
        )
        for topic, index, header in batches:
            yield
            try:
                log = self._replica_manager.partition(topic, index).leader_log()
            except KafkaError:
                continue  # The append returns the error.
            producer_epoch = header.producer_epoch
            is_open = log.producer_state.has_open_transaction(header.producer_id, producer_epoch)
            if is_open and not asks_always:
                continue
            producer = Producer(header.producer_id, producer_epoch)
            guards[topic, index] = log.verifications.begin(
                header.producer_id, producer_epoch, header.base_sequence, self._now_ms()
            )
        return BegunTransaction(guards, producer)

    def verify(
        self,
        transactional_id: str,
        version: int,
        begun: BegunTransaction,
        entries: list[ProduceEntry],
        on_verified: Callable[[list[ProduceEntry]], None],
        on_concurrent: Callable[[], None],
        attempt: int = 0,
    ) -> None:
        """Call back with the entries that may be appended; the others get the error.

        `version` is that of the Produce request. Where it adds partitions, `on_concurrent` is
        called later instead while the transaction before is being completed: then the request has
        to begin again, with the next `attempt`.
        """
        adds = version >= ADDS_PARTITIONS_SINCE
        producer = begun.producer
        assert producer is not None

        def verified(errors: dict[TopicPartition, int]) -> None:
            if (
                adds
                and attempt < RETRIES
                and (
                    ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
                    or self._has_lost_guard(begun.guards, producer.producer_id)
                )
            ):
                self._timer.schedule(RETRY_MS, on_concurrent)
            else:
                on_verified(_without_errors(entries, errors, adds=adds))

        self._verifier.verify(
            transactional_id,
            producer,
            frozenset(TopicPartition(*key) for key in begun.guards),
            verified,
            knows_abortable=version >= _ABORTABLE_SINCE,
            adds=adds,
        )

    def _has_lost_guard(self, guards: Guards, producer_id: int) -> bool:
        """Whether the marker of the last transaction came while the coordinator was asked: one of
        Kafka 3, which has not raised the epoch and so may be that of this transaction."""
        for (topic, index), guard in guards.items():
            try:
                log = self._replica_manager.partition(topic, index).leader_log()
            except KafkaError:
                continue  # The append returns the error.
            if not log.verifications.allows(producer_id, guard):
                return True
        return False


def _without_errors(
    entries: list[ProduceEntry], errors: dict[TopicPartition, int], *, adds: bool
) -> list[ProduceEntry]:
    """Set the errors of partitions; return the entries of the others.

    Clients of transaction version 2 (`adds`) know CONCURRENT_TRANSACTIONS, as it is common there.
    """
    if not any(errors.values()):
        return entries
    good = []
    for entry in entries:
        code = errors.get(TopicPartition(entry[0], entry[1]), ErrorCode.NONE)
        if code == ErrorCode.NONE:
            good.append(entry)
        else:
            is_known = adds and code == ErrorCode.CONCURRENT_TRANSACTIONS
            is_translated = code in _RETRIABLE and not is_known
            entry[3].error_code = ErrorCode.NOT_ENOUGH_REPLICAS if is_translated else code
    return good
