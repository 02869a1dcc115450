"""A Produce request that waits for the flush that `flush.messages` requires."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.replication.delayed_append import DelayedAppend
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.purgatory.purgatory import Purgatory
    from ottla.broker.replication.delayed_produce import DelayedProduce, Waiting
    from ottla.broker.replication.partition import Partition
    from ottla.protocol.messages.produce import PartitionProduceResponse
    from ottla.storage.log.log_offsets import LogOffsets

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
        return [each for each in current if not _is_done(each)]


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


def _is_done(records: UnflushedRecords) -> bool:
    """Whether there is nothing to wait for any more; sets the error."""
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
