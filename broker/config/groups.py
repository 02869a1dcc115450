"""The rules between the settings of the group coordinator that are about the newer protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ottla.broker.config.errors import ConfigError
from ottla.protocol.records.compression import NONE, compress
from ottla.protocol.records.errors import UnsupportedCompressionError

_ASSIGNORS = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}


def assignor_names(classes: Sequence[str]) -> tuple[str, ...]:
    """The names of the assignors that are listed by their Java classes, the preferred one first."""
    names = []
    for item in classes:
        name = _ASSIGNORS.get(item)
        if name is None:
            raise ConfigError(
                f"group.consumer.assignors: there is no {item!r} here, but {', '.join(_ASSIGNORS)}."
            )
        names.append(name)
    if not names:
        raise ConfigError("group.consumer.assignors names no assignor.")
    return tuple(dict.fromkeys(names))


def rebalance_protocols(listed: Sequence[str]) -> frozenset[str]:
    """The group protocols that are enabled, in small letters."""
    return frozenset(item.lower() for item in listed)


class GroupConfig(Protocol):
    """What the rules read of the broker's settings (`BrokerConfig`)."""

    group_coordinator_rebalance_protocols: list[str]
    group_consumer_assignors: list[str]
    offsets_topic_compression_codec: int
    share_coordinator_state_topic_compression_codec: int
    warnings: list[str]

    def value(self, name: str) -> object: ...


def check_groups(config: GroupConfig) -> None:
    """ConfigError when the settings do not go together."""
    protocols = rebalance_protocols(config.group_coordinator_rebalance_protocols)
    if "classic" not in protocols:
        raise ConfigError(
            "group.coordinator.rebalance.protocols has to have `classic` in it: that protocol "
            "cannot be disabled."
        )
    unknown = sorted(protocols - {"classic", "consumer", "share"})
    if unknown:
        config.warnings.append(
            f"group.coordinator.rebalance.protocols: {', '.join(unknown)} has no effect; this "
            "broker has `classic`, `consumer` and `share`."
        )
    assignor_names(config.group_consumer_assignors)
    for what in ("heartbeat.interval.ms", "session.timeout.ms"):
        lowest = _number(config, f"group.consumer.min.{what}")
        value = _number(config, f"group.consumer.{what}")
        highest = _number(config, f"group.consumer.max.{what}")
        if not lowest <= value <= highest:
            raise ConfigError(
                f"group.consumer.{what} {value} must lie between group.consumer.min.{what} "
                f"{lowest} and group.consumer.max.{what} {highest}."
            )


def check_codecs(config: GroupConfig) -> None:
    """ConfigError when batches of an internal topic cannot be compressed as the settings say."""
    for name, codec in (
        ("offsets.topic.compression.codec", config.offsets_topic_compression_codec),
        (
            "share.coordinator.state.topic.compression.codec",
            config.share_coordinator_state_topic_compression_codec,
        ),
    ):
        if codec == NONE:
            continue
        try:
            compress(codec, b"")
        except UnsupportedCompressionError as error:
            raise ConfigError(f"{name}: {error}.") from None


def _number(config: GroupConfig, name: str) -> int:
    value = config.value(name)
    assert isinstance(value, int)
    return value
