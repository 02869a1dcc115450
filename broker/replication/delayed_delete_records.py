"""DeleteRecords requests that wait for the low watermark (Kafka's `DelayedDeleteRecords`)."""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.replication.partition import Partition
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.delete_records import DeleteRecordsPartitionResult

#: A partition, the low watermark to wait for, and its row in the response.
Waiting = tuple[Partition, int, DeleteRecordsPartitionResult]


class DelayedDeleteRecords(DelayedOperation):
    """Completes when the low watermark of each partition has reached the requested offset, or this
    broker is not the leader any more.

    On timeout, the partitions that still wait get REQUEST_TIMED_OUT.
    """

    __slots__ = ("_callback", "_waiting")

    def __init__(self, delay_ms: int, waiting: list[Waiting], callback: Callable[[], None]) -> None:
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
