"""Clients that push metrics (KIP-714): their subscriptions, and when they may push.

Mirrors Kafka's `ClientMetricsManager`: a client instance is known by its id, gets the union of the
subscriptions that fit it, and may ask and push once in its interval. Subscriptions are settings of
client metrics resources, as in Kafka's `ClientMetricsConfigs`. In KRaft they are records, here they
are entities below `/config/client-metrics`. Loop only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.broker.config.definitions import CLUSTER_WIDE, Setting, parse_value, split_list
from ottla.broker.config.errors import ConfigError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.crc32c import crc32c
from ottla.protocol.uuids import ZERO_UUID, random_uuid, uuid_to_string

# As in Kafka: one entry for each client that is alive, the ones longest unheard of go first.
MAX_INSTANCES = 16_384
_EXPIRY_MS = 60_000

_NEVER = -(1 << 62)


class ClientInstance:
    """One client instance and its subscription."""

    __slots__ = (
        "asked_at",
        "client",
        "heard_at",
        "instance_id",
        "interval_ms",
        "metrics",
        "pushed_at",
        "subscription_id",
        "terminating",
        "version",
    )

    def __init__(self, instance_id: bytes, client: Mapping[str, str]) -> None:
        self.instance_id = instance_id
        self.client = client  # by the names that patterns match
        self.asked_at = self.pushed_at = self.heard_at = _NEVER
        self.interval_ms = DEFAULT_INTERVAL_MS
        self.metrics: list[str] = []
        self.subscription_id = 0
        self.version = -1
        self.terminating = False


class ClientMetricsManager:
    """All subscriptions and all clients of this broker."""

    def __init__(
        self, max_bytes: int, now_ms: Callable[[], int], on_forgotten: Callable[[bytes], None]
    ) -> None:
        """`max_bytes`: telemetry.max.bytes. `now_ms` is monotonic. `on_forgotten` is called with
        the id of a client instance that is no longer kept."""
        self.max_bytes = max_bytes
        self.now_ms = now_ms
        self._on_forgotten = on_forgotten
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0  # grows with every change of a subscription
        self._instances: dict[bytes, ClientInstance] = {}  # the one longest unheard of first

    # -- subscriptions --------------------------------------------------------------------------

    def update(self, name: str, properties: Mapping[str, str]) -> None:
        """A subscription has these settings now; without any it is gone."""
        if properties:
            self._subscriptions[name] = parse_subscription(name, properties)
        elif self._subscriptions.pop(name, None) is None:
            return
        self._version += 1

    # -- clients --------------------------------------------------------------------------------

    @property
    def instance_count(self) -> int:
        """The number of known clients."""
        return len(self._instances)

    def ask(self, instance_id: bytes, client: Mapping[str, str]) -> ClientInstance:
        """Return the subscription of a client; a new one gets an id. KafkaError if too early."""
        if instance_id == ZERO_UUID:
            instance_id = random_uuid()
        instance = self._instance(instance_id, client)
        now_ms = self.now_ms()
        if now_ms - max(instance.asked_at, instance.pushed_at) < instance.interval_ms:
            raise _too_early()
        instance.asked_at = now_ms
        return instance

    def accept(
        self,
        instance_id: bytes,
        client: Mapping[str, str],
        subscription_id: int,
        terminating: bool,
        size: int,
    ) -> ClientInstance:
        """A client pushes; KafkaError when what it pushes is not to be taken."""
        if instance_id in _RESERVED:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "invalid client instance id")
        instance = self._instance(instance_id, client)
        was_terminating, instance.terminating = instance.terminating, terminating
        if was_terminating:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the client instance is terminating")
        now_ms = self.now_ms()
        in_time = instance.asked_at > instance.pushed_at or (
            now_ms - instance.pushed_at >= instance.interval_ms
        )
        if in_time:
            instance.pushed_at = now_ms
        elif not terminating:
            raise _too_early()
        if subscription_id != instance.subscription_id:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscriptions have changed")
        if size > self.max_bytes:
            raise KafkaError(
                ErrorCode.TELEMETRY_TOO_LARGE, f"more than {self.max_bytes} bytes of metrics"
            )
        return instance

    def forget_silent(self) -> None:
        """Drop clients that have not been heard of for three intervals, and a minute at least."""
        now_ms = self.now_ms()
        for instance in list(self._instances.values()):
            if now_ms - instance.heard_at > max(_EXPIRY_MS, 3 * instance.interval_ms):
                self._forget(instance.instance_id)

    def _instance(self, instance_id: bytes, client: Mapping[str, str]) -> ClientInstance:
        instance = self._instances.pop(instance_id, None)
        if instance is None:
            if len(self._instances) >= MAX_INSTANCES:
                self._forget(next(iter(self._instances)))
            client = {**client, "client_instance_id": uuid_to_string(instance_id)}
            instance = ClientInstance(instance_id, client)
        self._instances[instance_id] = instance
        instance.heard_at = self.now_ms()
        if instance.version != self._version:
            self._subscribe(instance)
        return instance

    def _forget(self, instance_id: bytes) -> None:
        del self._instances[instance_id]
        self._on_forgotten(instance_id)

    def _subscribe(self, instance: ClientInstance) -> None:
        """The subscriptions have changed, or the client is new: it may speak at once."""
        metrics: set[str] = set()
        interval_ms = DEFAULT_INTERVAL_MS
        for subscription in self._subscriptions.values():
            if subscription.fits(instance.client):
                metrics.update(subscription.metrics)
                interval_ms = min(interval_ms, subscription.interval_ms)
        instance.metrics = [ALL_METRICS] if ALL_METRICS in metrics else sorted(metrics)
        instance.interval_ms = interval_ms
        instance.version = self._version
        instance.asked_at = instance.pushed_at = _NEVER
        instance.terminating = False
        wanted = crc32c(f"{instance.metrics}{interval_ms}".encode())
        number = (wanted ^ int.from_bytes(instance.instance_id[:4])) & 0xFFFFFFFF
        instance.subscription_id = number - (1 << 32) if number >> 31 else number


# Ids that mean something else: none, and the two of Kafka's metadata topic and log directories.
_RESERVED = (ZERO_UUID, bytes(15) + b"\x01", bytes(15) + b"\x02")


def _too_early() -> KafkaError:
    return KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "it is not time for metrics yet")


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
