"""A Produce request with acks=all that waits for replication; mirrors Kafka's `DelayedProduce`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceResponse

if TYPE_CHECKING:
    from ottla.broker.replication.partition import Partition

Waiting: TypeAlias = "tuple[Partition, int, int, PartitionProduceResponse]"
"""A partition, the leader epoch since which it is led, the high watermark that its records require,
its row in the response."""


class DelayedProduce(DelayedOperation):
    """Completes when each partition of the request is

    A. not led by this broker any more, or led again: NOT_LEADER_OR_FOLLOWER;
    B. committed up to the last appended record: no error, or NOT_ENOUGH_REPLICAS_AFTER_APPEND;
    C. failed in the append: the error of the append.

    On timeout, the partitions that still wait get REQUEST_TIMED_OUT. Their records stay in the log
    and may still be committed.
    """

    __slots__ = ("_callback", "_waiting")

    def __init__(
        self,
        delay_ms: int,
        waiting: list[Waiting],
        callback: Callable[[], None],
    ) -> None:
        super().__init__(delay_ms)
        self._waiting = waiting
        self._callback = callback

    def try_complete(self) -> bool:
        still_waiting = []
        for entry in self._waiting:
            partition, led_since, required_offset, response = entry
            done, error_code = partition.replicas_reached(led_since, required_offset)
            if done or error_code != ErrorCode.NONE:
                response.error_code = error_code
            else:
                still_waiting.append(entry)
        self._waiting = still_waiting
        return not still_waiting and self.force_complete()

    def on_complete(self) -> None:
        for _, _, _, response in self._waiting:
            response.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._callback()
