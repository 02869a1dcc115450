"""By how much the followers of one fetcher lag, and which of them a quota delays (KIP-73)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.protocol.topics import TopicPartition

# Of a follower before its first response: it lags, by an unknown number of records.
_UNKNOWN = 0


class FollowerLags:
    """The partitions that have not caught up with their leader: only these are ever delayed.
    Loop only."""

    def __init__(self, throttle: ReplicationQuota | None) -> None:
        self._throttle = throttle
        #: By how much the log end offset of a partition is below the leader's high watermark.
        self.lagging: dict[TopicPartition, int] = {}

    def add(self, key: TopicPartition) -> None:
        """A partition is followed from now on. As in Kafka it lags until a response says more, so
        that its first records wait for the quota, too."""
        self.lagging[key] = _UNKNOWN

    def remove(self, key: TopicPartition) -> None:
        """A partition is not followed any more."""
        self.lagging.pop(key, None)

    def record(self, key: TopicPartition, size: int, lag: int) -> None:
        """The last response had `size` bytes of records; `lag` remains after them."""
        if lag > 0:
            self.lagging[key] = lag
        else:
            self.lagging.pop(key, None)
        throttle = self._throttle
        if size and throttle is not None and throttle.is_throttled(*key):
            throttle.record(size, _monotonic_ms())

    @property
    def largest(self) -> int:
        """The largest lag of a partition at the last fetch (Kafka's MaxLag)."""
        return max(self.lagging.values(), default=0)

    def is_held_back(self, key: TopicPartition) -> bool:
        """Whether the quota delays this partition, which is one of `lagging`."""
        throttle = self._throttle
        return (
            throttle is not None
            and throttle.is_throttled(*key)
            and throttle.is_exceeded(_monotonic_ms())
        )


def _monotonic_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
