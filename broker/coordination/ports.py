"""The interfaces between the coordinators and the rest of the broker.

The group coordinator and the transaction coordinator keep their state in an internal topic. They do
not use logs, replicas or the event loop: they append batches and get a callback when those are
committed, they replay a local log when this broker becomes leader of a partition, and timers call
them.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Protocol

from ottla.protocol.errors import ErrorCode
from ottla.protocol.java_order import string_hash
from ottla.storage.producer.verification import Verification

AppendResult = Callable[[int, int], None]
"""Called with (error code, base offset); the base offset is -1 unless the error code is NONE."""


class CoordinatorLog(Protocol):
    """The partitions of one internal topic that this broker leads."""

    def append(
        self,
        partition: int,
        batch: bytes,
        on_result: AppendResult,
        guard: Verification | None = None,
    ) -> None:
        """Append a record batch to a partition that this broker leads, with acks=all.

        `on_result` runs on the loop exactly once: with NONE when the batch is committed (below the
        high watermark, with at least `min.insync.replicas` in the ISR), otherwise with the error of
        the append. The results of a partition are in the order of its appends. `on_result` may run
        before this method returns. A batch that starts a transaction needs the guard of its
        verification.
        """
        ...

    def begin_verification(
        self, partition: int, producer_id: int, producer_epoch: int, now_ms: int
    ) -> Verification | None:
        """Return the guard for a batch that would start a transaction of this producer (KIP-890).

        None when there is nothing to verify: the partition is already part of the transaction, or
        verification is disabled.
        """
        ...

    def is_valid(self, partition: int, guard: Verification) -> bool:
        """Whether no marker has been appended since the verification began."""
        ...

    def log_end_offset(self, partition: int) -> int:
        """Return the offset after the last record of the local log; 0 without a log."""
        ...

    def segment_end_offset(self, partition: int, offset: int) -> int:
        """Where the segment of the local log that has `offset` ends: the base offset of the next
        segment, or the log end offset."""
        ...

    def roll_segment(self, partition: int, now_ms: int) -> None:
        """Start a new segment at the log end; nothing happens when the disk does not allow it."""
        ...

    def read_batches(self, partition: int, from_offset: int = 0) -> Iterator[memoryview]:
        """Iterate over the complete batches of the local log of a partition.

        It begins at `from_offset`, or the log start offset if that is higher, and ends at the log
        end offset of the time of the call.
        """
        ...


WallClock = Callable[[], int]
"""Milliseconds since 1970, for the timestamps of records."""

Defer = Callable[[Callable[[], None]], None]
"""Runs a callback in a later iteration of the event loop (`loop.call_soon`)."""


@lru_cache(maxsize=16_384)  # each request needs the partition of its group several times
def partition_for_key(key: str, partition_count: int) -> int:
    """Return the partition of an internal topic whose leader is the coordinator of `key`.

    The smallest 32-bit number has no positive counterpart; Kafka uses 0 for it.
    """
    value = string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


UNAVAILABLE_ERRORS = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    )
)
"""Append errors after which the client retries with the same coordinator."""

IN_LOG_ERRORS = frozenset((ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
"""Append errors of records that are in the log, but were not replicated within the timeout: the
next coordinator replays them, however late they are committed."""

MOVED_ERRORS = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR))
"""Append errors after which the client has to find the coordinator again."""

TOO_LARGE_ERRORS = frozenset(
    (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
    )
)
"""Append errors that are not retriable: the records do not fit into the internal topic."""
