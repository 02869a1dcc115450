"""The settings of share groups: those of the broker, and what a group has of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

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
            configs.get("share.renew.acknowledge.enable", "true") == "true",
        )

    def is_read_committed(self, group_id: str) -> bool:
        return self._configs(group_id).get("share.isolation.level") == "read_committed"

    def offset_reset(self, group_id: str) -> OffsetReset:
        """The default is Kafka's: latest."""
        value = self._configs(group_id).get("share.auto.offset.reset", "latest")
        if value.startswith("by_duration:"):
            return OffsetReset(False, duration_ms(value.partition(":")[2]))
        return OffsetReset(value == "earliest")


_UNITS_MS = {"D": 86_400_000, "H": 3_600_000, "M": 60_000, "S": 1000}


def duration_ms(text: str) -> int:
    """An ISO 8601 duration such as P7D or PT1H30M; raises ValueError for other texts."""
    date, _, time = text.upper().partition("T")
    if not date.startswith("P") or (date == "P" and not time):
        raise ValueError(f"{text!r} is no ISO 8601 duration such as PT1H")
    total = 0.0
    for part, units in ((date[1:], "D"), (time, "HMS")):
        number = ""
        for character in part:
            if character.isdigit() or character == ".":
                number += character
            elif character in units and number:
                total += float(number) * _UNITS_MS[character]
                number = ""
            else:
                raise ValueError(f"{text!r} is no ISO 8601 duration such as PT1H")
        if number:
            raise ValueError(f"{text!r} is no ISO 8601 duration such as PT1H")
    return int(total)
