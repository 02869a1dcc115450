"""The metrics that clients push (KIP-714): settings of client metrics resources.

Mirrors Kafka's `ClientMetricsConfigs`. In KRaft they are records, here they are entities below
`/config/client-metrics`: Kafka on ZooKeeper has the resource type and nothing behind it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ottla.broker.config.definitions import CLUSTER_WIDE, Setting, parse_value, split_list
from ottla.broker.config.errors import ConfigError
from ottla.protocol.errors import ErrorCode, KafkaError

DEFAULT_INTERVAL_MS = 300_000
ALL_METRICS = "*"

SETTINGS = {
    name: Setting((name, type_, default, rule, "medium", CLUSTER_WIDE))
    for name, type_, default, rule in (
        ("interval.ms", "int", str(DEFAULT_INTERVAL_MS), "100 .. 3600000"),
        ("match", "list", "", ""),
        ("metrics", "list", "", ""),
    )
}

MATCHED = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)

# Patterns are matched on the loop, against what clients send about themselves: both are kept short.
_PATTERN_MAX = 256
_VALUE_MAX = 256


class Subscription(NamedTuple):
    """One resource: `metrics` are prefixes of names, or "*"; all of `match` has to fit."""

    name: str
    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, re.Pattern[str]]

    def fits(self, client: Mapping[str, str]) -> bool:
        """Whether it is meant for a client of these properties."""
        return all(
            pattern.fullmatch(client.get(name, "")[:_VALUE_MAX])
            for name, pattern in self.match.items()
        )


def parse_subscription(name: str, properties: Mapping[str, str]) -> Subscription:
    """Raises KafkaError with Kafka's codes when a setting is wrong."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key in properties:
        if key not in SETTINGS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}"
            )
    try:
        interval_ms = parse_value(SETTINGS["interval.ms"], properties.get("interval.ms", "300000"))
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    assert isinstance(interval_ms, int)
    return Subscription(
        name,
        tuple(split_list(properties.get("metrics", ""))),
        interval_ms,
        dict(map(_parse_pattern, split_list(properties.get("match", "")))),
    )


def _parse_pattern(text: str) -> tuple[str, re.Pattern[str]]:
    name, equals, pattern = (part.strip() for part in text.partition("="))
    if not equals or name not in MATCHED or "=" in pattern or len(pattern) > _PATTERN_MAX:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Illegal client matching pattern: {text}; write one of {', '.join(MATCHED)}, =, and a "
            f"regular expression of at most {_PATTERN_MAX} characters.",
        )
    try:
        return name, re.compile(pattern)
    except (re.error, RecursionError) as error:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {text}: {error}"
        ) from None
