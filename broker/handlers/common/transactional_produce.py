"""Appends of transactional producers, verified before the first batch in a partition (KIP-890).

Before a batch starts a transaction in a partition, the transaction coordinator verifies that the
transaction is ongoing and contains the partition. The append passes the verification guard that the
log created before; a marker that is appended meanwhile invalidates the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.transactions.state import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.topics import TopicPartition
from ottla.storage.producer.verification import Verification

if TYPE_CHECKING:
    from ottla.broker.replication.deferred_validation import ProduceEntry
    from ottla.broker.replication.replica_manager import ReplicaManager
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
    )
)

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
        now_ms: Callable[[], int],
    ) -> None:
        self._replica_manager = replica_manager
        self._verifier = verifier
        self._now_ms = now_ms

    def begin(self, entries: Sequence[ProduceEntry]) -> Steps[BegunTransaction]:
        """Create guards in the partitions in which the transaction of a request starts.

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
        for topic, index, header in batches:
            yield
            try:
                log = self._replica_manager.partition(topic, index).leader_log()
            except KafkaError:
                continue  # The append returns the error.
            producer_epoch = header.producer_epoch
            if log.producer_state.has_open_transaction(header.producer_id, producer_epoch):
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
    ) -> None:
        """Call back with the entries that may be appended; the others get the error.

        `version` is that of the Produce request.
        """

        def verified(errors: dict[TopicPartition, int]) -> None:
            on_verified(_without_errors(entries, errors))

        assert begun.producer is not None
        self._verifier.verify(
            transactional_id,
            begun.producer,
            frozenset(TopicPartition(*key) for key in begun.guards),
            verified,
            knows_abortable=version >= 11,
        )


def _without_errors(
    entries: list[ProduceEntry], errors: dict[TopicPartition, int]
) -> list[ProduceEntry]:
    """Set the errors of partitions; return the entries of the others."""
    if not any(errors.values()):
        return entries
    good = []
    for entry in entries:
        code = errors.get(TopicPartition(entry[0], entry[1]), ErrorCode.NONE)
        if code == ErrorCode.NONE:
            good.append(entry)
        else:
            entry[3].error_code = ErrorCode.NOT_ENOUGH_REPLICAS if code in _RETRIABLE else code
    return good
