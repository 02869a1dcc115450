"""Produce and DeleteRecords requests that wait for their partitions: a flush, or replicas.

Mirrors Kafka's `DelayedProduce` and `DelayedDeleteRecords`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.purgatory.purgatory import Purgatory
    from ottla.broker.replication.partition import Partition
    from ottla.protocol.messages.delete_records import DeleteRecordsPartitionResult
    from ottla.protocol.messages.produce import PartitionProduceResponse
    from ottla.storage.log.log_offsets import LogOffsets

Entry = TypeVar("Entry", bound="tuple[Any, ...]")


class DelayedAppend(DelayedOperation, Generic[Entry]):
    """Completes when no partition waits any more.

    The entries are tuples that begin with a partition and end with its row in the response. On
    timeout, those that still wait get REQUEST_TIMED_OUT. Every change is reported with the key of
    its partition: one fetch of a follower may advance hundreds of partitions, one by one.
    """

    __slots__ = ("_callback", "_waiting")

    def __init__(self, delay_ms: int, waiting: list[Entry], callback: Callable[[], None]) -> None:
        """`waiting` has one entry or more."""
        super().__init__(delay_ms)
        # By partition; the usual request has one.
        self._waiting: dict[Hashable, list[Entry]] = {waiting[0][0].key: waiting[:1]}
        for entry in waiting[1:]:
            self._waiting.setdefault(entry[0].key, []).append(entry)
        self._callback = callback

    @abstractmethod
    def _left(self, waiting: list[Entry]) -> list[Entry]:
        """The entries that still wait; sets the errors of the others."""

    def try_complete(self) -> bool:
        for key in tuple(self._waiting):
            self._check(key)
        return not self._waiting and self.force_complete()

    def try_complete_for(self, key: Hashable) -> bool:
        if key in self._waiting:
            self._check(key)
        return not self._waiting and self.force_complete()

    def _check(self, key: Hashable) -> None:
        left = self._left(self._waiting[key])
        if left:
            self._waiting[key] = left
        else:
            del self._waiting[key]

    def on_complete(self) -> None:
        for waiting in self._waiting.values():
            for entry in waiting:
                entry[-1].error_code = ErrorCode.REQUEST_TIMED_OUT
        self._callback()


Waiting: TypeAlias = "tuple[Partition, int, int, PartitionProduceResponse]"
"""A partition, the leader epoch since which it is led, the high watermark that its records require,
its row in the response."""


class DelayedProduce(DelayedAppend["Waiting"]):
    """Completes when each partition of the request is

    A. not led by this broker any more, or led again: NOT_LEADER_OR_FOLLOWER;
    B. committed up to the last appended record: no error, or NOT_ENOUGH_REPLICAS_AFTER_APPEND;
    C. in an offline log directory: KAFKA_STORAGE_ERROR.

    A partition whose append failed is never part of it.

    On timeout, the records stay in the log and may still be committed.
    """

    __slots__ = ()

    def _left(self, waiting: list[Waiting]) -> list[Waiting]:
        return [entry for entry in waiting if not _is_replicated(entry)]


def _is_replicated(waiting: Waiting) -> bool:
    """Whether the entry has nothing left to wait for; sets its error."""
    partition, led_since, required_offset, response = waiting
    done, error_code = partition.replicas_reached(led_since, required_offset)
    if done or error_code != ErrorCode.NONE:
        response.error_code = error_code
        return True
    return False


#: How long a response waits for a flush: a client has given up by then (`request.timeout.ms`).
FLUSH_TIMEOUT_MS = 30_000


class UnflushedRecords(NamedTuple):
    """Appended records whose produce response waits for the flush."""

    partition: Partition
    led_since: int
    offsets: LogOffsets
    end_offset: int
    failed_flushes: int
    response: PartitionProduceResponse


class DelayedFlush(DelayedAppend[UnflushedRecords]):
    """Completes when the records of each partition are flushed or were not flushed for an error.

    A flush that failed is KAFKA_STORAGE_ERROR, a leader that changed NOT_LEADER_OR_FOLLOWER. The
    records stay in the log: a retry of an idempotent producer is a duplicate of them.
    """

    __slots__ = ()

    def __init__(self, waiting: list[UnflushedRecords], callback: Callable[[], None]) -> None:
        super().__init__(FLUSH_TIMEOUT_MS, waiting, callback)

    def _left(self, waiting: list[UnflushedRecords]) -> list[UnflushedRecords]:
        current = map(_in_current_log, waiting)
        return [each for each in current if not _is_flushed(each)]


def respond_after_flush(
    purgatory: Purgatory[DelayedFlush | DelayedProduce],
    required_acks: int,
    unflushed: list[UnflushedRecords],
    waiting: list[Waiting],
    respond_after_replication: Callable[[list[Waiting]], None],
) -> None:
    """Waits for the flush, and calls back with all that waits for replication.

    `waiting` are the partitions of the request without a flush. Its timeout begins after the flush,
    as in Kafka.
    """

    def flushed() -> None:
        if required_acks == -1:
            for partition, led_since, _, end_offset, _, response in unflushed:
                if not response.error_code:
                    waiting.append((partition, led_since, end_offset, response))
        respond_after_replication(waiting)

    purgatory.try_complete_else_watch(
        DelayedFlush(unflushed, flushed), [each.partition.key for each in unflushed]
    )


def _in_current_log(records: UnflushedRecords) -> UnflushedRecords:
    """The records in the log that took the place of theirs: it moved to another log directory, and
    a flush of the old log, which is deleted, says nothing about them."""
    log = records.partition.log
    if log is None or log.offsets is records.offsets:
        return records
    return records._replace(offsets=log.offsets, failed_flushes=log.offsets.failed_flushes)


def _is_flushed(records: UnflushedRecords) -> bool:
    """Whether the records have nothing left to wait for; sets their error."""
    partition, led_since, offsets, end_offset, failed_flushes, response = records
    if partition.offline:
        response.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    elif not partition.is_leader or partition.led_since != led_since:
        response.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif offsets.acknowledgeable_offset >= end_offset:
        return True
    elif offsets.failed_flushes != failed_flushes:
        response.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return bool(response.error_code)


#: A partition, the low watermark to wait for, and its row in the response.
WaitingDeletion: TypeAlias = "tuple[Partition, int, DeleteRecordsPartitionResult]"


class DelayedDeleteRecords(DelayedOperation):
    """Completes when the low watermark of each partition has reached the requested offset, or this
    broker is not the leader any more.

    On timeout, the partitions that still wait get REQUEST_TIMED_OUT.
    """

    __slots__ = ("_callback", "_waiting")

    def __init__(
        self, delay_ms: int, waiting: list[WaitingDeletion], callback: Callable[[], None]
    ) -> None:
        super().__init__(delay_ms)
        self._waiting = waiting
        self._callback = callback

    def try_complete(self) -> bool:
        left = []
        for entry in self._waiting:
            partition, offset, result = entry
            try:
                result.low_watermark = partition.low_watermark()
            except KafkaError as error:
                result.error_code, result.low_watermark = error.code, -1
                continue
            if result.low_watermark < offset:
                left.append(entry)
        self._waiting = left
        return not left and self.force_complete()

    def on_complete(self) -> None:
        for _, _, result in self._waiting:
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._callback()
