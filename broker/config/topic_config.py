"""The rules for the settings of one topic, checked when a topic is created or altered."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.config.definitions import Value, near_matches, parse_value, topic_settings
from ottla.broker.config.errors import ConfigError
from ottla.protocol.errors import ErrorCode, KafkaError


class InvalidTopicValue(KafkaError):
    """A value that a setting cannot have; Kafka's ConfigException."""


def validate_topic_config(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> None:
    """Raises KafkaError INVALID_CONFIG with a sentence when an override may not be set;
    InvalidTopicValue when the setting exists and the value is wrong.

    `defaults` are the settings that hold where nothing is overridden.
    """
    table = topic_settings()
    for name in overrides:
        if name not in table:
            matches = near_matches(name, table)
            hint = f" (did you mean {' or '.join(matches)}?)" if matches else ""
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}{hint}")
    try:
        values = {
            name: parse_value(table[name], text)
            for name, text in {**defaults, **overrides}.items()
            if name in table
        }
    except ConfigError as error:
        raise InvalidTopicValue(ErrorCode.INVALID_CONFIG, str(error)) from None
    problem = _contradiction(values)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, problem)


def _contradiction(values: Mapping[str, Value]) -> str | None:
    if values.get("remote.storage.enable") is True:
        return (
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured "
            "with remote log storage."
        )
    low, high = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        return (
            f"conflict topic config setting min.compaction.lag.ms ({low}) > "
            f"max.compaction.lag.ms ({high})"
        )
    return None
