"""Rates of copying replicas: the throttles of reassignments (KIP-73).

A topic names the replicas that are throttled (leader.replication.throttled.replicas and
follower.replication.throttled.replicas), a broker the rates (leader.replication.throttled.rate,
follower.replication.throttled.rate, replica.alter.log.dirs.io.max.bytes.per.second). Replicas in
sync are never held back by the leader, so that a throttle cannot shrink the ISR. Mirrors Kafka's
`ReplicationQuotaManager`.
"""

import re
from collections.abc import Iterable

from ottla.broker.quotas.rate import SimpleRate

UNLIMITED = 9223372036854775807


class ReplicationQuota:
    """One direction: leader, follower or between log directories. Loop thread only."""

    def __init__(self, *, window_count: int = 11, window_ms: int = 1000) -> None:
        """replication.quota.window.num and replication.quota.window.size.seconds, or those of
        alter.log.dirs."""
        self.limit = UNLIMITED  # bytes a second; can change at any time
        self._rate = SimpleRate(window_count=window_count, window_ms=window_ms)
        self._throttled: dict[str, frozenset[int] | None] = {}  # None: all partitions

    def throttle(self, topic: str, partitions: Iterable[int] | None) -> None:
        """Throttle these partitions of a topic, and no others of it; None: all of them."""
        self._throttled[topic] = None if partitions is None else frozenset(partitions)

    def release(self, topic: str) -> None:
        """No partition of the topic is throttled any more."""
        self._throttled.pop(topic, None)

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Whether the rate counts for this partition."""
        if topic not in self._throttled:
            return False
        partitions = self._throttled[topic]
        return partitions is None or partition in partitions

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes copied for throttled partitions."""
        self._rate.record(size, now_ms)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether throttled partitions must wait."""
        return self.limit < UNLIMITED and self._rate.throttle_ms(self.limit, now_ms) > 0

    def bytes_per_second(self, now_ms: int) -> float:
        """The present rate, for metrics."""
        return self._rate.per_second(now_ms)


def throttled_replicas(value: str, broker_id: int) -> set[int] | None:
    """The partitions whose replica on this broker a topic's setting throttles; None: all.

    `value` is "*" or "partition:broker,partition:broker,...".
    """
    if value.strip() == "*":
        return None
    # One search of the whole: a znode holds a hundred thousand replicas.
    own = re.compile(rf"(?:^|,)\s*(\d+):0*{broker_id}\s*(?=,|$)", re.ASCII)
    return set(map(int, own.findall(value)))
