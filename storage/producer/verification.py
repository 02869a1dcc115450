"""Verification of transactions before an append (KIP-890, `transaction.partition.verification`).

Before the first transactional batch of a producer is appended, the broker verifies with the
transaction coordinator that the partition is in the open transaction of the producer. The guard of
that verification must come back with the append. A marker that is written in between invalidates
the guard, so that a late batch cannot begin a transaction that never ends (a hanging transaction).
"""

from __future__ import annotations


class Verification:
    """The guard of one verification (Kafka: `VerificationGuard`). Compared by identity."""

    __slots__ = ("epoch", "lowest_sequence", "producer_id", "started_ms")

    def __init__(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.started_ms = now_ms


class Verifications:
    """The pending verifications of one log, at most one per producer."""

    __slots__ = ("_pending", "enabled")

    def __init__(self, enabled: bool) -> None:
        """`enabled`: `transaction.partition.verification.enable`."""
        self.enabled = enabled
        self._pending: dict[int, Verification] = {}

    def begin(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> Verification:
        """The guard for this producer: the pending one, or a new one."""
        found = self._pending.get(producer_id)
        if found is None or found.epoch < epoch:
            found = Verification(producer_id, epoch, sequence, now_ms)
            self._pending[producer_id] = found
        elif found.epoch == epoch:
            found.lowest_sequence = min(found.lowest_sequence, sequence)
        return found

    def lowest_sequence(self, producer_id: int) -> int | None:
        """The lowest sequence that is being verified, None without a pending verification."""
        found = self._pending.get(producer_id)
        return None if found is None else found.lowest_sequence

    def allows(self, producer_id: int, guard: Verification | None) -> bool:
        """Whether a transaction of the producer may begin with this guard."""
        if not self.enabled:
            return True
        return guard is not None and self._pending.get(producer_id) is guard

    def end(self, producer_id: int, below_epoch: int | None = None) -> None:
        """The transaction has begun, or a marker was written: the guard is no longer valid.

        One of `below_epoch` or above stays: the marker has raised the epoch to that of the
        producer's next transaction, which may be verified already.
        """
        found = self._pending.get(producer_id)
        if found is not None and (below_epoch is None or found.epoch < below_epoch):
            del self._pending[producer_id]

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove verifications that were begun `expiration_ms` or longer ago."""
        self._pending = {
            producer_id: guard
            for producer_id, guard in self._pending.items()
            if now_ms - guard.started_ms < expiration_ms
        }
