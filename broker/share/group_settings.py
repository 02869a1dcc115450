"""The settings of share groups: those of the broker, and what a group has of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.broker.config.resource_rules import duration_ms
from ottla.broker.share.acquisition import GroupLimits


class OffsetReset(NamedTuple):
    """`share.auto.offset.reset`: where a group begins on a partition that it has no state of."""

    is_earliest: bool
    duration_ms: int = -1  # by_duration: records from this long ago on


class BrokerShareSettings(NamedTuple):
    """The settings `group.share.*` of the broker."""

    partition_max_record_locks: int = 2000
    delivery_count_limit: int = 5
    record_lock_duration_ms: int = 30_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000


# The settings of one group by name; empty for a group without settings.
GroupConfigs = Callable[[str], Mapping[str, str]]


class ShareGroupSettings:
    """The settings in effect for each group."""

    def __init__(self, broker: BrokerShareSettings, configs: GroupConfigs) -> None:
        self._broker = broker
        self._configs = configs

    def limits(self, group_id: str) -> GroupLimits:
        configs, broker = self._configs(group_id), self._broker
        return GroupLimits(
            int(configs.get("share.partition.max.record.locks", broker.partition_max_record_locks)),
            int(configs.get("share.delivery.count.limit", broker.delivery_count_limit)),
            int(configs.get("share.record.lock.duration.ms", broker.record_lock_duration_ms)),
            self._text(group_id, "share.renew.acknowledge.enable", "true").lower() == "true",
        )

    def _text(self, group_id: str, name: str, default: str) -> str:
        """Without the spaces around it, which are valid and stored."""
        return self._configs(group_id).get(name, default).strip()

    def session_timeout_ms(self, group_id: str) -> int:
        timeout_ms = self._broker.session_timeout_ms
        return int(self._configs(group_id).get("share.session.timeout.ms", timeout_ms))

    def heartbeat_interval_ms(self, group_id: str) -> int:
        interval_ms = self._broker.heartbeat_interval_ms
        return int(self._configs(group_id).get("share.heartbeat.interval.ms", interval_ms))

    def is_read_committed(self, group_id: str) -> bool:
        return self._text(group_id, "share.isolation.level", "") == "read_committed"

    def offset_reset(self, group_id: str) -> OffsetReset:
        """The default is Kafka's: latest."""
        value = self._text(group_id, "share.auto.offset.reset", "latest")
        if value.startswith("by_duration:"):
            return OffsetReset(False, duration_ms(value.partition(":")[2]))
        return OffsetReset(value == "earliest")
