"""Aborts transactions that have timed out, and removes transactional ids that are not used.

Both check every transactional id, of which there can be hundreds of thousands, and change many at
once when clients are gone. So they pause between ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.coordination.coordinated_partitions import CoordinatedPartitions
from ottla.broker.coordination.ports import CoordinatorLog
from ottla.broker.runtime.clock import Clock
from ottla.broker.transactions.partition import TransactionPartition
from ottla.broker.transactions.records import transaction_key
from ottla.broker.transactions.state import Transaction, TransactionState
from ottla.protocol.records.builder import build_batch
from ottla.protocol.steps import Steps, TurnQueue

if TYPE_CHECKING:
    from ottla.broker.transactions.coordinator import TransactionSettings

logger = logging.getLogger("ottla.transactions")

# A batch takes 100 us, and each tombstone of it 10.
TOMBSTONES_PER_BATCH = 16

Abort = Callable[[TransactionPartition, Transaction], None]


class TransactionUpkeep:
    """The periodic work on the transactional ids of this coordinator. Loop only."""

    def __init__(
        self,
        settings: TransactionSettings,
        partitions: CoordinatedPartitions[TransactionPartition],
        log: CoordinatorLog,
        clock: Clock,
        jobs: TurnQueue,
        abort: Abort,
    ) -> None:
        """`abort` aborts an ongoing transaction and fences its producer."""
        self._expiration_ms = settings.transactional_id_expiration_ms
        self._partitions = partitions
        self._log = log
        self._clock = clock
        self._jobs = jobs
        self._abort = abort
        self._in_progress: set[str] = set()

    def abort_timed_out(self) -> None:
        """Abort transactions that exceeded the transaction timeout of their producer."""
        self._start("abort", self._abort_timed_out())

    def remove_expired(self) -> None:
        """Remove transactional ids that were not used for transactional.id.expiration.ms."""
        self._start("expire", self._remove_expired())

    def _start(self, name: str, steps: Steps[None]) -> None:
        """Run a job unless the one before of this name is in progress."""
        if name not in self._in_progress:
            self._in_progress.add(name)
            self._jobs.start(self._run(name, steps))

    def _run(self, name: str, steps: Steps[None]) -> Steps[None]:
        try:
            yield from steps
        finally:
            self._in_progress.discard(name)

    def _abort_timed_out(self) -> Steps[None]:
        now_ms = self._clock.now_ms()
        for state_partition in self._partitions.active:
            for transaction in list(state_partition.transactions.values()):
                if transaction.has_timed_out(now_ms) and self._is_current(
                    state_partition, transaction
                ):
                    logger.info(
                        "TransactionalId %s: aborting the ongoing transaction after its timeout of "
                        "%d ms",
                        transaction.transactional_id,
                        transaction.value.timeout_ms,
                        extra={"transactional_id": transaction.transactional_id},
                    )
                    self._abort(state_partition, transaction)
                yield

    def _remove_expired(self) -> Steps[None]:
        now_ms = self._clock.now_ms()
        for state_partition in self._partitions.active:
            expired = []
            for transaction in list(state_partition.transactions.values()):
                if transaction.has_expired(now_ms, self._expiration_ms):
                    expired.append(transaction)
                if len(expired) == TOMBSTONES_PER_BATCH:
                    self._remove(state_partition, expired, now_ms)
                    expired = []
                yield
            self._remove(state_partition, expired, now_ms)

    def _is_current(self, state_partition: TransactionPartition, transaction: Transaction) -> bool:
        """Return whether this broker still has the transactional id, after a pause."""
        return (
            self._partitions.is_active(state_partition)
            and state_partition.transactions.get(transaction.transactional_id) is transaction
        )

    def _remove(
        self, state_partition: TransactionPartition, found: list[Transaction], now_ms: int
    ) -> None:
        """Append tombstones for those that were not used or removed in the pauses since."""
        expired = [
            transaction
            for transaction in found
            if self._is_current(state_partition, transaction)
            and transaction.has_expired(now_ms, self._expiration_ms)
        ]
        if not expired:
            return
        now_ms = self._clock.now_ms()
        for transaction in expired:
            transaction.prepare_transition(transaction.value._replace(state=TransactionState.DEAD))
        batch = build_batch(
            [
                (now_ms, transaction_key(transaction.transactional_id), None, None)
                for transaction in expired
            ]
        )

        def on_append(error: int, _: int) -> None:
            if error or not self._partitions.is_active(state_partition):
                for transaction in expired:
                    transaction.clear_pending_state()
                return
            for transaction in expired:
                state_partition.replay(transaction.transactional_id, None)
            logger.info("Removed %d expired transactional ids", len(expired))

        self._log.append(state_partition.index, batch, on_append)
