"""What a coordinator needs from the broker around it, as narrow protocols.

The group and the transaction coordinator keep their state in an internal topic. They never see
a log, a replica or an event loop: they append batches and hear when those are committed, they
read a whole local log back when they become leader of a partition, and they are woken by timers.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Protocol

from ottla.protocol.errors import ErrorCode
from ottla.storage.producer.verification import Verification

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"

AppendResult = Callable[[int, int], None]
"""Called with (error code, base offset); the base offset is -1 when the error code is not 0."""


class CoordinatorLog(Protocol):
    """The partitions of one internal topic that this broker leads."""

    def append(
        self,
        partition: int,
        batch: bytes,
        on_result: AppendResult,
        guard: Verification | None = None,
    ) -> None:
        """Append one record batch to a partition that this broker leads.

        `on_result` runs on the loop exactly once: with error 0 when the batch is below the high
        watermark of a partition that still has enough in-sync replicas, otherwise with the error
        of the append. Results for one partition come in the order of the appends. It may run
        before this method returns. A batch that opens a transaction needs the guard of its
        verification.
        """
        ...

    def begin_verification(
        self, partition: int, producer_id: int, producer_epoch: int, now_ms: int
    ) -> Verification | None:
        """The guard for a batch that would open a transaction of this producer (KIP-890).

        None when there is nothing to verify: the transaction is open in the partition already, or
        the log does not ask for it.
        """
        ...

    def read_batches(self, partition: int) -> Iterator[memoryview]:
        """The local log of one partition from its start to its end, in chunks of whole batches."""
        ...


WallClock = Callable[[], int]
"""Milliseconds since 1970; what is written into records."""

Defer = Callable[[Callable[[], None]], None]
"""Runs a callback soon, after other work of the loop had its turn (`loop.call_soon`)."""


@lru_cache(maxsize=16_384)  # every request asks for the hash of its group some times
def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for index in range(0, len(units), 2):
            value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for_key(key: str, partition_count: int) -> int:
    """The partition of an internal topic whose leader coordinates `key`.

    The smallest 32-bit number has no positive counterpart; Kafka takes 0 for it.
    """
    value = java_string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


UNAVAILABLE_ERRORS = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    )
)
"""Append errors after which the same coordinator may be asked again."""

MOVED_ERRORS = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR))
"""Append errors after which the client has to look for the coordinator again."""

TOO_LARGE_ERRORS = frozenset(
    (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
    )
)
"""Append errors that no retry will cure: the records do not fit into the internal topic."""
