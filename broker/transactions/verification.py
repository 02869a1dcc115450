"""Verifies with the transaction coordinator that a partition is in a transaction (KIP-890).

Before the first records of a transaction are appended to a partition, its leader verifies that the
transaction is ongoing and contains the partition. Otherwise a delayed request could start a hanging
transaction, which no coordinator ends. For a client of transaction version 2, which does not send
AddPartitionsToTxn, the leader adds the partition. Mirrors `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ottla.broker.runtime.tasks import spawn
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.state import TRANSACTION_VERSION_2, Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache

logger = logging.getLogger("ottla.transactions")

REQUEST_TIMEOUT_SECONDS = 30.0  # as request.timeout.ms

Errors = dict[TopicPartition, int]
OnVerified = Callable[[Errors], None]
"""Gets the partitions that failed the verification, with their errors."""

SendToBroker = Callable[
    [int, AddPartitionsToTxnRequest], Coroutine[Any, Any, AddPartitionsToTxnResponse]
]


class TransactionVerifier:
    """Verifies with the coordinator in this process or on another broker."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        coordinator: TransactionCoordinator,
        send_to_broker: SendToBroker,
        *,
        enabled: bool = True,
    ) -> None:
        """`enabled`: the setting transaction.partition.verification.enable."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._coordinator = coordinator
        self._send_to_broker = send_to_broker
        self.enabled = enabled

    def verify(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        on_verified: OnVerified,
        *,
        knows_abortable: bool,
        adds: bool = False,
    ) -> None:
        """Verify, or with `adds` add the partitions, which is not subject to the setting.

        `knows_abortable`: the version of the request knows TRANSACTION_ABORTABLE.
        """
        if not self.enabled and not adds:
            on_verified({})
            return
        snapshot = self._metadata.snapshot
        index = self._coordinator.partition_for(transactional_id)
        where = snapshot.partition(TRANSACTION_STATE_TOPIC, index)
        if where is None or where.leader not in snapshot.brokers:
            on_verified(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif where.leader == self._broker_id and adds:
            self._coordinator.add_partitions(
                transactional_id,
                producer,
                partitions,
                lambda error: on_verified(
                    _for_client(dict.fromkeys(partitions, error), knows_abortable)
                ),
                TRANSACTION_VERSION_2,
            )
        elif where.leader == self._broker_id:
            errors = self._coordinator.verify_partitions(transactional_id, producer, partitions)
            on_verified(_for_client(errors, knows_abortable))
        else:
            request = _request(transactional_id, producer, partitions, verify_only=not adds)
            spawn(
                self._send_verification(
                    where.leader, request, partitions, on_verified, knows_abortable
                ),
                name=f"verify-{transactional_id}",
            )

    async def _send_verification(
        self,
        broker_id: int,
        request: AddPartitionsToTxnRequest,
        partitions: frozenset[TopicPartition],
        on_verified: OnVerified,
        knows_abortable: bool,
    ) -> None:
        errors = dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        try:
            response = await asyncio.wait_for(
                self._send_to_broker(broker_id, request), REQUEST_TIMEOUT_SECONDS
            )
        except Exception as problem:
            logger.info(
                "Failed to verify a transaction with coordinator %d: %s",
                broker_id,
                problem,
                extra={"broker": broker_id},
            )
        else:
            if response.error_code:
                errors = dict.fromkeys(partitions, ErrorCode.INVALID_TXN_STATE)
            else:
                errors.update(_results(response))
        on_verified(_for_client(errors, knows_abortable))


def _for_client(errors: Errors, knows_abortable: bool) -> Errors:
    """Return the failed partitions, with error codes that producers know."""
    translated = {
        ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.TRANSACTION_ABORTABLE
        if knows_abortable
        else ErrorCode.INVALID_TXN_STATE,
    }
    return {
        partition: translated.get(error, error)
        for partition, error in errors.items()
        if error != ErrorCode.NONE
    }


def _request(
    transactional_id: str,
    producer: Producer,
    partitions: frozenset[TopicPartition],
    *,
    verify_only: bool,
) -> AddPartitionsToTxnRequest:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                verify_only=verify_only,
                topics=[AddPartitionsToTxnTopic(name, found) for name, found in topics.items()],
            )
        ]
    )


def _results(response: AddPartitionsToTxnResponse) -> Errors:
    return {
        TopicPartition(topic.name, row.partition_index): row.partition_error_code
        for transaction in response.results_by_transaction
        for topic in transaction.topic_results
        for row in topic.results_by_partition
    }
