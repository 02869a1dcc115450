"""A Produce request with acks=all that waits for replication; mirrors Kafka's `DelayedProduce`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ottla.broker.replication.delayed_append import DelayedAppend
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceResponse

if TYPE_CHECKING:
    from ottla.broker.replication.partition import Partition

Waiting: TypeAlias = "tuple[Partition, int, int, PartitionProduceResponse]"
"""A partition, the leader epoch since which it is led, the high watermark that its records require,
its row in the response."""


class DelayedProduce(DelayedAppend["Waiting"]):
    """Completes when each partition of the request is

    A. not led by this broker any more, or led again: NOT_LEADER_OR_FOLLOWER;
    B. committed up to the last appended record: no error, or NOT_ENOUGH_REPLICAS_AFTER_APPEND;
    C. failed in the append: the error of the append.

    On timeout, the records stay in the log and may still be committed.
    """

    __slots__ = ()

    def _left(self, waiting: list[Waiting]) -> list[Waiting]:
        return [entry for entry in waiting if not _is_done(entry)]


def _is_done(waiting: Waiting) -> bool:
    """Whether there is nothing to wait for any more; sets the error."""
    partition, led_since, required_offset, response = waiting
    done, error_code = partition.replicas_reached(led_since, required_offset)
    if done or error_code != ErrorCode.NONE:
        response.error_code = error_code
        return True
    return False
