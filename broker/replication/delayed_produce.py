"""A Produce request with acks=all that waits for replication; mirrors Kafka's `DelayedProduce`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
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
        # By partition; the usual request has one.
        self._waiting: dict[Hashable, list[Waiting]] = {waiting[0][0].key: waiting[:1]}
        for entry in waiting[1:]:
            self._waiting.setdefault(entry[0].key, []).append(entry)
        self._callback = callback

    def try_complete(self) -> bool:
        for key in tuple(self._waiting):
            self._check(key)
        return not self._waiting and self.force_complete()

    def try_complete_for(self, key: Hashable) -> bool:
        # One fetch of a follower may advance hundreds of partitions of a request, one by one.
        if key in self._waiting:
            self._check(key)
        return not self._waiting and self.force_complete()

    def _check(self, key: Hashable) -> None:
        waiting = self._waiting[key]
        for entry in waiting[:]:
            if _is_done(entry):
                waiting.remove(entry)
        if not waiting:
            del self._waiting[key]

    def on_complete(self) -> None:
        for waiting in self._waiting.values():
            for _, _, _, response in waiting:
                response.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._callback()


def _is_done(waiting: Waiting) -> bool:
    """Whether there is nothing to wait for any more; sets the error."""
    partition, led_since, required_offset, response = waiting
    done, error_code = partition.replicas_reached(led_since, required_offset)
    if done or error_code != ErrorCode.NONE:
        response.error_code = error_code
        return True
    return False
