"""The state machine of one transactional id: no I/O, no timers, no clock.

    Empty --add partitions--> Ongoing --end--> PrepareCommit --markers written--> CompleteCommit
      ^                        ^  |                                                  |
      |                        |  +--end, time-out, fenced--> PrepareAbort           |
      |                        |                                  | markers written  |
      |                        +--add partitions--- CompleteAbort <                  |
      |                        +--add partitions-------------------------------------+
      +--init producer id--- from Empty, CompleteCommit and CompleteAbort

The metadata of a transactional id is one immutable `TransactionValue`: that of its last record. A
change is a new value, which is appended first and replaces the old one when it is committed.
Meanwhile the transaction has a pending state, and other changes get CONCURRENT_TRANSACTIONS.
Mirrors Kafka's `TransactionMetadata`.

A client of transaction version 2 (KIP-890, second part) has its epoch raised by each end of a
transaction. So a retried end is known by its epoch, and a late record of a transaction that has
ended is fenced. It may also abort without having added a partition: from Empty and both Complete
states. The last epoch that a client may have is followed by a new producer id.
"""

from enum import IntEnum
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
MAX_EPOCH = 32_767
# The last epoch is reserved for fencing: after this one a new producer id is used.
LAST_USABLE_EPOCH = MAX_EPOCH - 1

# Levels of the feature transaction.version: records of the log have tagged fields from 1 on, and
# each end of a transaction raises the epoch from 2 on.
TRANSACTION_VERSION_1 = 1
TRANSACTION_VERSION_2 = 2


class TransactionState(IntEnum):
    """The states by their numbers in the log; `label` is the name in responses."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
}

# Names that ListTransactions accepts as a filter. The last one is a state of Kafka that is never in
# the log.
STATE_NAMES = frozenset(_LABELS.values()) | {"PrepareEpochFence"}

VALID_PREDECESSORS: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: frozenset(
        (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )
    ),
    TransactionState.ONGOING: frozenset(
        (
            TransactionState.ONGOING,
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )
    ),
    TransactionState.PREPARE_COMMIT: frozenset((TransactionState.ONGOING,)),
    TransactionState.PREPARE_ABORT: frozenset(
        (
            TransactionState.ONGOING,
            # An abort without partitions, of a client of transaction version 2.
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )
    ),
    TransactionState.COMPLETE_COMMIT: frozenset((TransactionState.PREPARE_COMMIT,)),
    TransactionState.COMPLETE_ABORT: frozenset((TransactionState.PREPARE_ABORT,)),
    TransactionState.DEAD: frozenset(
        (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )
    ),
}

COMPLETING = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
COMPLETED = frozenset((TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))


class Producer(NamedTuple):
    """A producer id with its epoch."""

    producer_id: int
    epoch: int


class TransactionValue(NamedTuple):
    """The metadata of a transactional id.

    `last_producer_id` and `last_epoch` are those before the last change of them, so that a retried
    InitProducerId gets the same response. No record has `last_epoch`, and those of version 0 have
    neither of them, nor the fields below. `next_producer_id` follows when the transaction that is
    being ended is completed, with epoch 0. `client_version` is the transaction version of the
    client that made the last change.
    """

    state: TransactionState
    producer_id: int
    epoch: int
    timeout_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_timestamp_ms: int = NO_TIMESTAMP
    update_timestamp_ms: int = NO_TIMESTAMP
    last_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_PRODUCER_EPOCH
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0

    @property
    def is_raising(self) -> bool:
        """Whether the last change was made with transaction version 2."""
        return self.client_version >= TRANSACTION_VERSION_2

    @property
    def client_producer(self) -> Producer:
        """The producer id and epoch with which the client goes on."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.epoch)


class RejectedRequest(Exception):
    """A change that is not valid now; `code` is the error code of the response."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class NeedsProducerId(Exception):
    """The epochs of the producer id are exhausted: call again with a new producer id."""


class Transaction:
    """A transactional id: its value, and the state that is being appended."""

    __slots__ = ("pending_state", "transactional_id", "value")

    def __init__(self, transactional_id: str, value: TransactionValue) -> None:
        self.transactional_id = transactional_id
        self.value = value
        self.pending_state: TransactionState | None = None

    @property
    def state(self) -> TransactionState:
        return self.value.state

    @property
    def is_changing(self) -> bool:
        """Whether a record or the markers are being written; no other change is valid then."""
        return self.pending_state is not None or self.value.state in COMPLETING

    def prepare_transition(self, value: TransactionValue) -> None:
        """`value` is being appended. Raises AssertionError for an invalid transition."""
        if self.pending_state is not None or self.state not in VALID_PREDECESSORS[value.state]:
            raise AssertionError(
                f"Preparing transaction state transition of {self.transactional_id} from "
                f"{self.state.label} to {value.state.label} failed since the target state is not a "
                f"valid one (pending state: {self.pending_state})"
            )
        self.pending_state = value.state

    def clear_pending_state(self) -> None:
        """The append failed: the value is unchanged."""
        self.pending_state = None

    def replay(self, value: TransactionValue) -> None:
        """A record is committed, or was loaded: takes over its value."""
        self.value = value
        self.pending_state = None

    # Transitions. Each returns the value to append, or raises RejectedRequest.

    def init_producer(
        self,
        timeout_ms: int,
        expected: Producer | None,
        fresh_id: int | None,
        now_ms: int,
    ) -> TransactionValue:
        """A producer starts, or (with `expected`) continues after an error (KIP-360).

        With an ongoing transaction the returned value aborts it and fences its producer; the client
        retries until that is completed.
        """
        value = self.value
        if self.is_changing:
            raise RejectedRequest(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not self._is_known(expected):
            raise RejectedRequest(ErrorCode.PRODUCER_FENCED)
        if value.state is TransactionState.ONGOING:
            return self.fence(now_ms, by_newer_producer=True)
        if value.epoch >= LAST_USABLE_EPOCH and (expected is None or expected.epoch == value.epoch):
            if fresh_id is None:
                raise NeedsProducerId
            return TransactionValue(
                TransactionState.EMPTY,
                fresh_id,
                0,
                timeout_ms,
                update_timestamp_ms=now_ms,
                last_producer_id=value.producer_id,
                last_epoch=NO_PRODUCER_EPOCH if expected is None else value.epoch,
                client_version=value.client_version,
            )
        epoch, last_epoch = self._next_epoch(expected)
        return TransactionValue(
            TransactionState.EMPTY,
            value.producer_id,
            epoch,
            timeout_ms,
            update_timestamp_ms=now_ms,
            last_producer_id=value.producer_id,
            last_epoch=last_epoch,
            client_version=value.client_version,
        )

    def _is_known(self, expected: Producer) -> bool:
        value = self.value
        return (
            value.epoch == NO_PRODUCER_EPOCH  # new here: the metadata of the producer has expired
            or expected.producer_id == value.producer_id
            or (
                # A retry of a request that got a new producer id, whose response was lost.
                expected.producer_id == value.last_producer_id
                and expected.epoch >= LAST_USABLE_EPOCH
            )
        )

    def _next_epoch(self, expected: Producer | None) -> tuple[int, int]:
        """Return the next epoch and the last one."""
        value = self.value
        if expected is None:
            return value.epoch + 1, NO_PRODUCER_EPOCH
        if value.epoch in (NO_PRODUCER_EPOCH, expected.epoch):
            return value.epoch + 1, value.epoch
        if expected.epoch == value.last_epoch:
            return value.epoch, value.last_epoch  # a retry: the same response
        raise RejectedRequest(ErrorCode.PRODUCER_FENCED)

    def fence(self, now_ms: int, *, by_newer_producer: bool = False) -> TransactionValue:
        """Abort the ongoing transaction with a bumped epoch, which fences its producer.

        A producer of version 2 whose transaction has timed out may take the abort for its own,
        whose response it has missed, and go on. One that a newer producer has fenced may not, or it
        would keep that one out: so the epoch rises by 2 there. In Kafka 4.3 it rises by 1.

        No client was given the last epoch. One that uses it all the same is not fenced, but its
        transaction has to be aborted as others.
        """
        value = self.value
        raised = value.epoch + (2 if value.is_raising and by_newer_producer else 1)
        return value._replace(
            state=TransactionState.PREPARE_ABORT,
            epoch=min(raised, MAX_EPOCH),
            last_producer_id=value.producer_id,
            last_epoch=NO_PRODUCER_EPOCH,
            next_producer_id=NO_PRODUCER_ID,
            update_timestamp_ms=now_ms,
        )

    def add_partitions(
        self,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        now_ms: int,
        client_version: int = 0,
    ) -> TransactionValue | None:
        """Add partitions; None when the transaction has all of them already."""
        value = self.value
        if client_version >= TRANSACTION_VERSION_2 and self.is_changing:
            # First: the client may have the producer id that comes with the completion.
            raise RejectedRequest(ErrorCode.CONCURRENT_TRANSACTIONS)
        self._check_producer(producer)
        if client_version >= TRANSACTION_VERSION_2:
            _check_can_rise(producer)
        if self.is_changing:
            raise RejectedRequest(ErrorCode.CONCURRENT_TRANSACTIONS)
        if value.state is TransactionState.ONGOING:
            if partitions <= value.partitions:
                return None
            started_at = value.start_timestamp_ms
        else:
            started_at = now_ms
        return value._replace(
            state=TransactionState.ONGOING,
            partitions=value.partitions | partitions,
            start_timestamp_ms=started_at,
            update_timestamp_ms=now_ms,
            last_producer_id=value.producer_id,
            client_version=client_version,
        )

    def verify_partitions(
        self, producer: Producer, partitions: frozenset[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return an error for each partition that is not in the transaction (KIP-890)."""
        self._check_producer(producer)
        if self.value.state in COMPLETING:
            raise RejectedRequest(ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            partition: ErrorCode.NONE
            if partition in self.value.partitions
            else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def end(self, producer: Producer, committed: bool, now_ms: int) -> TransactionValue | None:
        """Commit or abort for a client before version 2; None when that is completed already."""
        value = self.value
        self._check_producer(producer)
        if self.is_changing:
            raise RejectedRequest(ErrorCode.CONCURRENT_TRANSACTIONS)
        if value.state is TransactionState.ONGOING:
            return value._replace(
                state=TransactionState.PREPARE_COMMIT
                if committed
                else TransactionState.PREPARE_ABORT,
                update_timestamp_ms=now_ms,
                last_producer_id=value.producer_id,
                client_version=0,
            )
        if value.state is _completed(committed):
            return None
        raise RejectedRequest(ErrorCode.INVALID_TXN_STATE)

    def end_and_raise(
        self, producer: Producer, committed: bool, fresh_id: int | None, now_ms: int
    ) -> TransactionValue | None:
        """Commit or abort for a client of version 2 and raise its epoch; None when it is a retry of
        an end that is completed.

        Raises NeedsProducerId when there is no next epoch; `fresh_id` follows then.
        """
        value = self.value
        _check_can_rise(producer)
        if value.state in COMPLETING and producer == value.client_producer:
            # The client goes on while the markers are written, and aborts. Kafka fences it.
            raise RejectedRequest(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_retry = self._is_retried_end(producer)
        if producer.producer_id != value.producer_id and not is_retry:
            raise RejectedRequest(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if not is_retry and producer.epoch != value.epoch:
            raise RejectedRequest(ErrorCode.PRODUCER_FENCED)
        if self.is_changing:
            raise RejectedRequest(ErrorCode.CONCURRENT_TRANSACTIONS)
        if is_retry:
            if value.state is _completed(committed):
                return None
            raise RejectedRequest(ErrorCode.INVALID_TXN_STATE)
        is_ongoing = value.state is TransactionState.ONGOING
        if committed and not is_ongoing:
            raise RejectedRequest(ErrorCode.INVALID_TXN_STATE)
        next_id = NO_PRODUCER_ID
        if value.epoch >= LAST_USABLE_EPOCH:
            if fresh_id is None:
                raise NeedsProducerId
            next_id = fresh_id
        return value._replace(
            state=TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            epoch=min(value.epoch + 1, MAX_EPOCH),
            start_timestamp_ms=value.start_timestamp_ms if is_ongoing else now_ms,
            update_timestamp_ms=now_ms,
            last_producer_id=value.producer_id,
            last_epoch=value.epoch,
            next_producer_id=next_id,
            client_version=TRANSACTION_VERSION_2,
        )

    def _is_retried_end(self, producer: Producer) -> bool:
        """Whether a producer of version 2 repeats the request that ended the last transaction."""
        value = self.value
        if not value.is_raising:
            return False
        if value.state in COMPLETED and value.epoch == 0:
            # The end has exhausted the epochs of the producer id before.
            return producer == (value.last_producer_id, LAST_USABLE_EPOCH)
        if value.state not in COMPLETED | COMPLETING or producer.producer_id != value.producer_id:
            return False
        if value.epoch == MAX_EPOCH and value.next_producer_id == NO_PRODUCER_ID:
            return False  # a newer producer or the timeout has aborted it: `fence`
        return producer.epoch + 1 == value.epoch

    def complete(self, now_ms: int) -> TransactionValue:
        """All markers are written."""
        value = self.value
        next_producer = value.client_producer
        return value._replace(
            state=TransactionState.COMPLETE_COMMIT
            if value.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT,
            producer_id=next_producer.producer_id,
            epoch=next_producer.epoch,
            partitions=frozenset(),
            update_timestamp_ms=now_ms,
            last_producer_id=value.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    def _check_producer(self, producer: Producer) -> None:
        if producer.producer_id != self.value.producer_id:
            raise RejectedRequest(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if producer.epoch != self.value.epoch:
            raise RejectedRequest(ErrorCode.PRODUCER_FENCED)

    # Queries.

    def has_timed_out(self, now_ms: int) -> bool:
        value = self.value
        return (
            self.pending_state is None
            and value.state is TransactionState.ONGOING
            and value.start_timestamp_ms + value.timeout_ms < now_ms
        )

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        value = self.value
        return (
            self.pending_state is None
            and value.state in VALID_PREDECESSORS[TransactionState.DEAD]
            and value.update_timestamp_ms <= now_ms - expiration_ms
        )


def _check_can_rise(producer: Producer) -> None:
    """No client was given the last epoch. The marker of a transaction of version 2 that has it
    could not have a higher one, and leaders would reject it as that of an earlier transaction."""
    if producer.epoch >= MAX_EPOCH:
        raise RejectedRequest(ErrorCode.PRODUCER_FENCED)


def _completed(committed: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
