"""The rules for the settings of one topic, checked when a topic is created or altered."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.config.definitions import Value, near_matches, parse_value, topic_settings
from ottla.broker.config.errors import ConfigError
from ottla.protocol.errors import ErrorCode, KafkaError


class InvalidTopicValue(KafkaError):
    """A value that a setting cannot have; Kafka's ConfigException."""


def validate_topic_config(
    overrides: Mapping[str, str],
    defaults: Mapping[str, str],
    *,
    has_remote_storage: bool = False,
    present: Mapping[str, str] | None = None,
) -> None:
    """Raises KafkaError INVALID_CONFIG with a sentence when an override may not be set;
    InvalidTopicValue when the setting exists and the value is wrong.

    `defaults` are the settings that hold where nothing is overridden. `has_remote_storage`:
    whether the broker has tiered storage. `present` are the overrides that are replaced.
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
    check_remote_storage(values, present or {}, has_remote_storage=has_remote_storage)


def check_remote_storage(
    values: Mapping[str, Value], present: Mapping[str, str], *, has_remote_storage: bool
) -> None:
    """The rules of Kafka 3.9 in ZooKeeper mode for `remote.storage.enable` and what it needs.

    The errors of `validate_topic_config`. Settings that are not in `values` are not checked.
    """
    problem = _remote_problem(values, present, has_remote_storage)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
    if values.get("remote.storage.enable") is True:
        for unit in ("bytes", "ms"):
            _check_local_retention(values, unit)


def _remote_problem(
    values: Mapping[str, Value], present: Mapping[str, str], has_remote_storage: bool
) -> str | None:
    if values.get("remote.log.delete.on.disable") or values.get("remote.log.copy.disable"):
        return (
            "It is invalid to set `remote.log.delete.on.disable` or `remote.log.copy.disable` "
            "under Zookeeper's mode."
        )
    if values.get("remote.storage.enable") is not True:
        if present.get("remote.storage.enable", "").lower() == "true":
            return (
                "It is invalid to disable remote storage without deleting remote data. If you want "
                "to keep the remote data and turn to read only, please set "
                "`remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable "
                "remote storage and delete all remote data, please set "
                "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
            )
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
