"""The replication quotas of a broker (KIP-73), from the settings of topics and broker.

A topic lists the throttled replicas (`leader.replication.throttled.replicas` and
`follower.replication.throttled.replicas`); the broker has the rates as dynamic settings. A leader
never throttles a follower that is in sync, and a follower never throttles a partition in which it
has caught up: a quota does not shrink the ISR.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.broker.quotas.replication_quotas import UNLIMITED, ReplicationQuota, throttled_replicas

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.replication.partition import Partition

_LEADER_REPLICAS = "leader.replication.throttled.replicas"
_FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"


def holds_back(quota: ReplicationQuota, follower_id: int, partition: Partition) -> bool:
    """Whether a leader sends a follower nothing of a partition for now: the follower is not in the
    ISR, and the quota is exceeded."""
    return (
        quota.is_throttled(partition.topic, partition.index)
        and follower_id not in partition.isr
        and quota.is_exceeded(partition.context.now_ms())
    )


class ReplicationThrottles:
    """The quota of this broker as leader and that as follower. Loop only."""

    def __init__(self, config: BrokerConfig, broker_id: int) -> None:
        count = config.replication_quota_window_num
        window_ms = config.replication_quota_window_size_seconds * 1000
        self.leader = ReplicationQuota(window_count=count, window_ms=window_ms)
        self.follower = ReplicationQuota(window_count=count, window_ms=window_ms)
        self._config = config
        self._broker_id = broker_id

    def apply_broker(self, between_directories: ReplicationQuota) -> None:
        """Applies the rates of the broker's settings; `between_directories` is that of moves
        between log directories."""
        for quota, name in (
            (self.leader, "leader.replication.throttled.rate"),
            (self.follower, "follower.replication.throttled.rate"),
            (between_directories, "replica.alter.log.dirs.io.max.bytes.per.second"),
        ):
            text = self._config.effective_text(name)
            quota.limit = UNLIMITED if text is None else int(text)

    def apply_topic(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Applies the throttled replicas of a topic's settings."""
        for quota, name in (
            (self.leader, _LEADER_REPLICAS),
            (self.follower, _FOLLOWER_REPLICAS),
        ):
            text = overrides.get(name, "")
            if text.strip():
                quota.throttle(topic, throttled_replicas(text, self._broker_id))
            else:
                quota.release(topic)
