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
    TransactionState.PREPARE_ABORT: frozenset((TransactionState.ONGOING,)),
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


class Producer(NamedTuple):
    """A producer id with its epoch."""

    producer_id: int
    epoch: int


class TransactionValue(NamedTuple):
    """The metadata of a transactional id.

    `last_producer_id` and `last_epoch` are those before the last InitProducerId, so that a retry
    gets the same response; version 0 of the record does not have them.
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
        self, timeout_ms: int, expected: Producer | None, fresh_id: int | None, now_ms: int
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
            return self.fence(now_ms)
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

    def fence(self, now_ms: int) -> TransactionValue:
        """Abort the ongoing transaction with a bumped epoch, which fences its producer.

        No client was given the last epoch. One that uses it all the same is not fenced, but its
        transaction has to be aborted as others.
        """
        return self.value._replace(
            state=TransactionState.PREPARE_ABORT,
            epoch=min(self.value.epoch + 1, MAX_EPOCH),
            last_epoch=NO_PRODUCER_EPOCH,
            update_timestamp_ms=now_ms,
        )

    def add_partitions(
        self, producer: Producer, partitions: frozenset[TopicPartition], now_ms: int
    ) -> TransactionValue | None:
        """Add partitions; None when the transaction has all of them already."""
        value = self.value
        self._check_producer(producer)
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
        """Commit or abort; None when that is completed already."""
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
            )
        done = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
        if value.state is done:
            return None
        raise RejectedRequest(ErrorCode.INVALID_TXN_STATE)

    def complete(self, now_ms: int) -> TransactionValue:
        """All markers are written."""
        value = self.value
        return value._replace(
            state=TransactionState.COMPLETE_COMMIT
            if value.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            update_timestamp_ms=now_ms,
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
