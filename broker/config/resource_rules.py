"""The settings of single topics and of single groups: their rules, checked at each change.

Groups (`/config/groups`) are the resource type GROUP of Kafka 4.3. The settings of streams groups
are left out, as this broker has no such groups, and so are the assignment intervals: groups are
assigned at once. Kafka 4.3 has no settings of dead letters (KIP-1191).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NamedTuple

from ottla.broker.config.definitions import (
    CLUSTER_WIDE,
    Setting,
    Value,
    near_matches,
    parse_value,
    topic_settings,
)
from ottla.broker.config.errors import ConfigError
from ottla.controller.admin.topic_limits import name_problem
from ottla.protocol.errors import ErrorCode, KafkaError


def replica_settings(brokers: int) -> dict[str, int]:
    """The settings of a cluster of `brokers` brokers of which one may fail: three replicas of all
    topics, internal ones included, or as many as there are brokers."""
    replicas = min(3, brokers)
    in_sync = min(2, replicas)
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


class InvalidTopicValue(KafkaError):
    """A value that a setting cannot have; Kafka's ConfigException."""


def validate_topic_config(
    overrides: Mapping[str, str],
    defaults: Mapping[str, str],
    *,
    has_remote_storage: bool = False,
) -> None:
    """Raises KafkaError INVALID_CONFIG with a sentence when an override may not be set;
    InvalidTopicValue when the setting exists and the value is wrong.

    `defaults` are the settings that hold where nothing is overridden. `has_remote_storage`:
    whether the broker has tiered storage.
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
    low, high = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({low}) > "
            f"max.compaction.lag.ms ({high})",
        )
    _check_remote_storage(values, has_remote_storage)


def _check_remote_storage(values: Mapping[str, Value], has_remote_storage: bool) -> None:
    """The rules of Kafka 3.9 in ZooKeeper mode, which lets a topic disable remote storage."""
    problem = _remote_problem(values, has_remote_storage)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
    if values.get("remote.storage.enable") is True:
        for unit in ("bytes", "ms"):
            _check_local_retention(values, unit)


def _remote_problem(values: Mapping[str, Value], has_remote_storage: bool) -> str | None:
    if values.get("remote.log.delete.on.disable") or values.get("remote.log.copy.disable"):
        return (
            "It is invalid to set `remote.log.delete.on.disable` or `remote.log.copy.disable` "
            "under Zookeeper's mode."
        )
    if values.get("remote.storage.enable") is not True:
        return None
    if not has_remote_storage:
        return (
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured "
            "with remote log storage."
        )
    policy = values.get("cleanup.policy")
    if isinstance(policy, list) and "compact" in policy:
        return "Remote log storage is unsupported for the compacted topics"
    return None


def _check_local_retention(values: Mapping[str, Value], unit: str) -> None:
    """Kafka's ConfigException for a local limit above that of the whole log."""
    name, whole = f"local.retention.{unit}", f"retention.{unit}"
    local, limit = values.get(name), values.get(whole)
    if not isinstance(local, int) or not isinstance(limit, int) or limit < 0 or local == -2:
        return
    said = None
    if local == -1:
        said = f"Value must not be -1 as {whole} value is set as {limit}."
    elif local > limit:
        said = f"Value must not be more than {whole} property value: {limit}"
    if said is not None:
        text = f"Invalid value {local} for configuration {name}: {said}"
        raise InvalidTopicValue(ErrorCode.INVALID_CONFIG, text)


class TopicToCreate(NamedTuple):
    """A topic of `ottla.create.topics`; -1 for the defaults of the broker."""

    name: str
    partitions: int
    replicas: int
    cleanup_policy: str | None


def topics_to_create(texts: Iterable[str]) -> list[TopicToCreate]:
    """The topics of `ottla.create.topics`, whose form is that of `KAFKA_CREATE_TOPICS` in the image
    of wurstmeister. Raises ConfigError for an entry that could not be created."""
    found: dict[str, TopicToCreate] = {}
    for text in texts:
        name, *rest = (part.strip() for part in text.split(":"))
        problem = name_problem(name)
        if len(rest) > 3:
            problem = "it has more parts than name:partitions:replicas:cleanup policy"
        numbers = [_positive(each) for each in rest[:2]]
        if None in numbers:
            problem = "partitions and replicas are numbers from 1 on"
        policy = rest[2] if len(rest) > 2 and rest[2] else None
        if policy is not None:
            try:
                parse_value(topic_settings()["cleanup.policy"], policy)
            except ConfigError as error:
                problem = str(error)
        if name in found:
            problem = "the topic is there twice"
        if problem is not None:
            raise ConfigError(
                f"ottla.create.topics: {text!r}: {problem}; write it as orders:3:1 or "
                "orders:3:1:compact."
            )
        partitions, replicas, *_ = (*(each or -1 for each in numbers), -1, -1)
        found[name] = TopicToCreate(name, partitions, replicas, policy)
    return list(found.values())


def _positive(text: str) -> int | None:
    """-1 for nothing, None for what is no number."""
    if not text:
        return -1
    return int(text) if text.isascii() and text.isdigit() and int(text[:9]) > 0 else None


Limits = Callable[[str], int]
"""The value of a broker setting that is a number."""

_OFFSET_RESET = "share.auto.offset.reset"

# Name, type, default, rule.
_TABLE = (
    ("consumer.heartbeat.interval.ms", "int", "5000", ">= 1"),
    ("consumer.session.timeout.ms", "int", "45000", ">= 1"),
    (_OFFSET_RESET, "string", "latest", ""),
    ("share.delivery.count.limit", "int", "5", ">= 2"),
    ("share.heartbeat.interval.ms", "int", "5000", ">= 1"),
    ("share.isolation.level", "string", "read_uncommitted", "of read_committed,read_uncommitted"),
    ("share.partition.max.record.locks", "int", "2000", ">= 100"),
    ("share.record.lock.duration.ms", "int", "30000", ">= 1000"),
    ("share.renew.acknowledge.enable", "boolean", "true", ""),
    ("share.session.timeout.ms", "int", "45000", ">= 1"),
)

# The lowest and the highest value.
_LIMITED = {
    "consumer.heartbeat.interval.ms": (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": (
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    "share.delivery.count.limit": (
        "group.share.min.delivery.count.limit",
        "group.share.max.delivery.count.limit",
    ),
    "share.heartbeat.interval.ms": (
        "group.share.min.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
    ),
    "share.partition.max.record.locks": (
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
    "share.record.lock.duration.ms": (
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    "share.session.timeout.ms": (
        "group.share.min.session.timeout.ms",
        "group.share.max.session.timeout.ms",
    ),
}


@cache
def group_settings() -> dict[str, Setting]:
    """Every setting of a group by name; `broker_synonym` names the setting of its default."""
    found = {}
    for name, kind, default, rule in _TABLE:
        setting = found[name] = Setting((name, kind, default, rule, "medium", CLUSTER_WIDE))
        if name in _LIMITED and name != "share.partition.max.record.locks":
            # The default of Kafka 3.9 for the locks is 200, which is too few for 4.3's clients.
            setting.broker_synonym = f"group.{name}"
    return found


def check_group_config(wanted: Mapping[str, str], limit_of: Limits) -> None:
    """ConfigError, in Kafka's words, for an unknown name or a value out of range.

    `limit_of` returns the value of a broker setting `group.share.min.*` and so on.
    """
    values: dict[str, object] = {}
    for name, text in wanted.items():
        setting = group_settings().get(name)
        if setting is None:
            raise ConfigError(f"Unknown group config name: {name}")
        values[name] = parse_value(setting, text)
    reset = wanted.get(_OFFSET_RESET)
    if reset is not None and not is_offset_reset(reset):
        raise ConfigError(
            f"Invalid value `{reset}` for configuration {_OFFSET_RESET}. The value must be either "
            "'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
        )
    for name, (lowest, highest) in _LIMITED.items():
        value = values.get(name)
        if not isinstance(value, int):
            continue
        if value < limit_of(lowest):
            raise ConfigError(f"{name} must be greater than or equal to {lowest}")
        if value > limit_of(highest):
            raise ConfigError(f"{name} must be less than or equal to {highest}")
    for kind in ("consumer", "share"):
        timeout, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if timeout not in values and interval not in values:
            continue
        timeout_ms = values.get(timeout) or limit_of(f"group.{timeout}")
        interval_ms = values.get(interval) or limit_of(f"group.{interval}")
        assert isinstance(timeout_ms, int)
        assert isinstance(interval_ms, int)
        if timeout_ms <= interval_ms:
            raise ConfigError(f"{timeout} must be greater than {interval}")


def is_offset_reset(text: str) -> bool:
    """Whether a text is a value of `share.auto.offset.reset`."""
    if text in ("earliest", "latest"):
        return True
    kind, _, duration = text.partition(":")
    if kind != "by_duration":
        return False
    try:
        duration_ms(duration)
    except ValueError:
        return False
    return True


_UNITS_MS = {"D": 86_400_000, "H": 3_600_000, "M": 60_000, "S": 1000}


def duration_ms(text: str) -> int:
    """An ISO 8601 duration such as P7D or PT1H30M; raises ValueError for other texts."""
    date, _, time = text.upper().partition("T")
    if not date.startswith("P") or (date == "P" and not time):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1H")
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
                raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1H")
        if number:
            raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1H")
    return int(total)
