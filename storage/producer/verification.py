"""Transactional appends wait until the coordinator has confirmed the transaction (KIP-890).

Before the first transactional batch of a producer is appended, the broker asks the coordinator
whether the partition belongs to the producer's open transaction. The guard handed out for that
question has to come back with the append: a marker that was written in between makes it worthless,
so that no late batch can open a transaction that nobody will ever end.
"""

from __future__ import annotations


class Verification:
    """One question to the coordinator; compared by identity."""

    __slots__ = ("epoch", "lowest_sequence", "producer_id", "started_ms")

    def __init__(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.started_ms = now_ms


class Verifications:
    """The open questions of one log, at most one for a producer."""

    __slots__ = ("_open", "enabled")

    def __init__(self, enabled: bool) -> None:
        """`enabled`: `transaction.partition.verification.enable`."""
        self.enabled = enabled
        self._open: dict[int, Verification] = {}

    def begin(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> Verification:
        """The guard for this producer: a new one, or the one that is out already."""
        found = self._open.get(producer_id)
        if found is None or found.epoch < epoch:
            found = Verification(producer_id, epoch, sequence, now_ms)
            self._open[producer_id] = found
        elif found.epoch == epoch:
            found.lowest_sequence = min(found.lowest_sequence, sequence)
        return found

    def lowest_sequence(self, producer_id: int) -> int | None:
        """The lowest sequence that asked to be verified, None when no question is open."""
        found = self._open.get(producer_id)
        return None if found is None else found.lowest_sequence

    def allows(self, producer_id: int, guard: Verification | None) -> bool:
        """Whether the producer's transaction may begin with this guard."""
        if not self.enabled:
            return True
        return guard is not None and self._open.get(producer_id) is guard

    def end(self, producer_id: int) -> None:
        """The transaction has begun, or a marker was written: the guard is used up."""
        self._open.pop(producer_id, None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        self._open = {
            producer_id: guard
            for producer_id, guard in self._open.items()
            if now_ms - guard.started_ms < expiration_ms
        }
