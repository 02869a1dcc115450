"""The state of one idempotent or transactional producer in a log, and the checks of its appends.

Kafka's `ProducerStateEntry` and `ProducerAppendInfo`. An append updates a copy of the entry; the
copy replaces the entry only when the batch has been written.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import NamedTuple

from ottla.protocol.records.batch import MAX_SEQUENCE, NO_SEQUENCE, BatchHeader
from ottla.storage.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)

logger = logging.getLogger("ottla.storage")

NO_EPOCH = -1
NO_OFFSET = -1
# Kafka's limit of batches in flight per producer: the last ones are recognised as duplicates.
BATCHES_REMEMBERED = 5


class AppendOrigin(Enum):
    """The origin of an append, which determines what is checked."""

    CLIENT = "client"  # a producer: everything is checked
    REPLICATION = "replication"  # the leader: it has validated the batches and assigned offsets
    COORDINATOR = "coordinator"  # a coordinator of this broker: no sequence numbers are checked
    # A marker of transaction version 2, whose epoch is above that of the records it ends (KIP-1228)
    RAISED_MARKER = "raised marker"


class AppendedBatch(NamedTuple):
    """Identifies a batch of a producer when it is sent again (Kafka: `BatchMetadata`)."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has completed; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerEntry:
    """The state of one producer id in one log."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_EPOCH
        self.coordinator_epoch = NO_EPOCH
        self.last_timestamp = -1
        # The first offset of its open transaction, -1 without one.
        self.transaction_first_offset = NO_OFFSET
        # The last batches, oldest first, at most BATCHES_REMEMBERED, all of the current epoch.
        self.batches: list[AppendedBatch] = []

    def __repr__(self) -> str:
        return (
            f"ProducerEntry({self.producer_id}, epoch={self.epoch}, batches={self.batches}, "
            f"coordinator_epoch={self.coordinator_epoch}, last_timestamp={self.last_timestamp}, "
            f"transaction_first_offset={self.transaction_first_offset})"
        )

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def copy(self) -> ProducerEntry:
        copied = ProducerEntry(self.producer_id)
        copied.epoch = self.epoch
        copied.coordinator_epoch = self.coordinator_epoch
        copied.last_timestamp = self.last_timestamp
        copied.transaction_first_offset = self.transaction_first_offset
        copied.batches = self.batches.copy()
        return copied

    def find_duplicate(self, header: BatchHeader) -> AppendedBatch | None:
        """The stored batch with the same epoch and sequence numbers."""
        if header.producer_epoch != self.epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        return None

    def remember(self, epoch: int, batch: AppendedBatch) -> None:
        """Store a data batch that has been written."""
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch
        elif len(self.batches) == BATCHES_REMEMBERED:
            del self.batches[0]
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether it has been idle that long. A producer with an open transaction never expires."""
        if self.transaction_first_offset != NO_OFFSET:
            return False
        return now_ms - self.last_timestamp >= expiration_ms


class ProducerAppend:
    """The batches of one producer in one append: checked, and applied to a copy of its entry."""

    __slots__ = ("_before", "_lowest_sequence", "_name", "_origin", "entry", "started")

    def __init__(
        self,
        name: str,
        producer_id: int,
        current: ProducerEntry | None,
        origin: AppendOrigin,
        lowest_sequence: int | None = None,
    ) -> None:
        """`lowest_sequence`: the lowest one while a transaction is being verified."""
        self._name = name
        self._origin = origin
        self._before = current if current is not None else ProducerEntry(producer_id)
        self._lowest_sequence = lowest_sequence
        self.entry = self._before.copy()
        # First offsets of the transactions that begin in this append.
        self.started: list[int] = []

    def append_data(self, header: BatchHeader, first_offset: int, last_offset: int) -> None:
        """Check and apply a data batch. Raises ProducerError."""
        entry = self.entry
        self._check_epoch(header.producer_epoch, first_offset)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(header.producer_epoch, header.base_sequence, first_offset)
        batch = AppendedBatch(
            header.base_sequence,
            header.last_sequence,
            first_offset,
            last_offset,
            header.max_timestamp,
        )
        entry.remember(header.producer_epoch, batch)
        if header.is_transactional:
            if entry.transaction_first_offset == NO_OFFSET:
                entry.transaction_first_offset = first_offset
                self.started.append(first_offset)
        elif entry.transaction_first_offset != NO_OFFSET:
            raise InvalidTransactionState(
                f"{self._name}: producer {entry.producer_id} sent a non-transactional batch at"
                f" offset {first_offset}, its transaction is open since offset"
                f" {entry.transaction_first_offset}",
                entry.producer_id,
            )

    def append_marker(
        self,
        producer_epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp: int,
        aborted: bool,
    ) -> CompletedTransaction | None:
        """Check and apply an end-of-transaction marker. Raises ProducerError.

        Returns the transaction that it completes, None when no transaction was open.
        """
        entry = self.entry
        self._check_epoch(producer_epoch, offset)
        if self._origin is AppendOrigin.RAISED_MARKER:
            self._check_raised(producer_epoch, offset)
        if coordinator_epoch < entry.coordinator_epoch:
            message = (
                f"{self._name}: marker for producer {entry.producer_id} at offset {offset} has"
                f" stale coordinator epoch {coordinator_epoch}, current {entry.coordinator_epoch}"
            )
            if self._origin is not AppendOrigin.REPLICATION:
                raise TransactionCoordinatorFenced(message, entry.producer_id)
            logger.info("%s", message)
        completed = None
        first = entry.transaction_first_offset
        if first != NO_OFFSET:
            completed = CompletedTransaction(entry.producer_id, first, offset, aborted)
        if producer_epoch != entry.epoch:
            entry.batches.clear()
            entry.epoch = producer_epoch
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_first_offset = NO_OFFSET
        entry.last_timestamp = timestamp
        return completed

    def _check_epoch(self, epoch: int, offset: int) -> None:
        entry = self.entry
        if epoch >= entry.epoch:
            return
        message = (
            f"{self._name}: producer {entry.producer_id} at offset {offset} has stale"
            f" producer epoch {epoch}, current {entry.epoch}"
        )
        if self._origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpoch(message, entry.producer_id)
        logger.warning("%s", message)

    def _check_raised(self, epoch: int, offset: int) -> None:
        """A late marker of the transaction before has the epoch of the open transaction."""
        entry = self.entry
        if epoch == entry.epoch and entry.transaction_first_offset != NO_OFFSET:
            raise InvalidProducerEpoch(
                f"{self._name}: marker for producer {entry.producer_id} at offset {offset} has"
                f" producer epoch {epoch}, which the open transaction has; it belongs to an earlier"
                " one",
                entry.producer_id,
            )

    def _check_sequence(self, epoch: int, first_sequence: int, offset: int) -> None:
        entry = self.entry
        lowest = self._lowest_sequence
        if lowest is not None and first_sequence > lowest:
            self._raise_out_of_order(first_sequence, offset, f"verification of {lowest} is pending")
        if epoch != entry.epoch:
            # An unknown or expired producer id may start with any sequence.
            if first_sequence != 0 and entry.epoch != NO_EPOCH:
                self._raise_out_of_order(
                    first_sequence, offset, f"the first one of epoch {epoch} must be 0"
                )
            return
        last = entry.last_sequence
        if self._before.epoch != NO_EPOCH and not _follows(last, first_sequence):
            self._raise_out_of_order(first_sequence, offset, f"the last one is {last}")

    def _raise_out_of_order(self, first_sequence: int, offset: int, reason: str) -> None:
        producer_id = self.entry.producer_id
        raise OutOfOrderSequence(
            f"{self._name}: out of order sequence {first_sequence} from producer {producer_id} at"
            f" offset {offset}: {reason}",
            producer_id,
        )


def _follows(last_sequence: int, next_sequence: int) -> bool:
    if last_sequence == MAX_SEQUENCE:
        return next_sequence == 0
    return next_sequence == last_sequence + 1
