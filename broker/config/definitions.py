"""The tables of all settings: names, types, defaults, rules.

The tables are text files in `broker/config/settings`, one setting a line, read on first use. Values
are kept as text (as Kafka keeps them in znodes and files); `parse_value` makes the typed value and
checks the rule.
"""

from __future__ import annotations

import os
import re
from functools import cache

from ottla.broker.config.errors import ConfigError
from ottla.protocol.listed import abridged

Value = bool | int | float | str | list[str] | None

READ_ONLY = "read-only"
PER_BROKER = "per-broker"
CLUSTER_WIDE = "cluster-wide"

_INTEGER_RANGES = {
    "short": (-(1 << 15), (1 << 15) - 1),
    "int": (-(1 << 31), (1 << 31) - 1),
    "long": (-(1 << 63), (1 << 63) - 1),
}

# Releases whose names `inter.broker.protocol.version` may start with ("3.9", "3.9-IV0", ...).
_KAFKA_RELEASES = (
    *("0.8.0", "0.8.1", "0.8.2", "0.9.0", "0.10.0", "0.10.1", "0.10.2", "0.11.0", "1.0", "1.1"),
    *("2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8"),
    *("3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9"),
)

_THROTTLED_REPLICAS = re.compile(r"[0-9]{1,10}:[0-9]{1,10}(?:,[0-9]{1,10}:[0-9]{1,10})*")


class Setting:
    """One known setting. `default` is text, or None where Kafka's default is null."""

    __slots__ = ("broker_synonym", "default", "importance", "mode", "name", "rule", "type")

    def __init__(self, columns: tuple[str, str, str, str, str, str]) -> None:
        """`columns` is a line of the table: name, type, default, rule, importance, mode."""
        self.name, self.type, default, self.rule, self.importance, self.mode = columns
        self.default = None if default == "null" else default
        self.broker_synonym: str | None = None  # topic settings only

    @property
    def sensitive(self) -> bool:
        """Whether the value is a secret that no response and no log line may show."""
        return self.type == "password"


@cache
def broker_settings() -> dict[str, Setting]:
    """Every setting of the broker process by name: Kafka's, then Ottla's own."""
    table = _read_table("broker_settings.txt")
    table.update(_read_table("ottla_settings.txt"))
    return table


@cache
def dynamic_only_settings() -> dict[str, Setting]:
    """Broker settings that exist only at run time, in `/config/brokers`, never in a file."""
    unlimited = str((1 << 63) - 1)
    names = (
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
    return {
        name: Setting((name, "long", unlimited, ">= 0", "medium", CLUSTER_WIDE)) for name in names
    }


@cache
def topic_settings() -> dict[str, Setting]:
    """Every setting of a topic by name; `broker_synonym` names the setting of the default."""
    table = _read_table("topic_settings.txt")
    for setting in table.values():
        setting.broker_synonym = None if setting.mode == "-" else setting.mode
        setting.mode = CLUSTER_WIDE
    return table


def _read_table(file_name: str) -> dict[str, Setting]:
    path = os.path.join(os.path.dirname(__file__), "settings", file_name)
    table: dict[str, Setting] = {}
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("#"):
                continue
            name, type_, default, rule, importance, mode = line.rstrip("\n").split(" | ")
            table[name] = Setting((name, type_, default, rule, importance, mode))
    return table


def split_list(text: str) -> list[str]:
    """Comma-separated text as Kafka reads it: blanks around items dropped, "" is no items."""
    stripped = text.strip()
    return [item.strip() for item in stripped.split(",")] if stripped else []


def parse_value(setting: Setting, text: str | None) -> Value:
    """Return the typed value of `text`.

    Raises ConfigError, worded like Kafka's error, if the value is invalid.
    """
    if text is None:
        return None
    value = _parse_type(setting, text)
    if setting.rule:
        problem = _broken_rule(setting.rule, value)
        if problem:
            shown = "[hidden]" if setting.sensitive else abridged(text)
            raise ConfigError(f"Invalid value {shown} for configuration {setting.name}: {problem}")
    return value


def _parse_type(setting: Setting, text: str) -> Value:
    type_ = setting.type
    if type_ in ("string", "class", "password"):
        # Kafka trims what stands around a value of any type but a password.
        return text if type_ == "password" else text.strip()
    trimmed = text.strip()
    if type_ == "list":
        return list(split_list(trimmed))
    if type_ == "boolean":
        lowered = trimmed.lower()
        if lowered in ("true", "false"):
            return lowered == "true"
        raise _ill_typed(setting, text, "expected true or false")
    try:
        if type_ == "double":
            return float(trimmed)
        number = _parse_integer(trimmed)
    except ValueError:
        wanted = "a number" if type_ == "double" else f"a whole number ({type_})"
        raise _ill_typed(setting, text, f"expected {wanted}") from None
    low, high = _INTEGER_RANGES[type_]
    if not low <= number <= high:
        raise _ill_typed(setting, text, f"a {type_} lies between {low} and {high}")
    return number


def _parse_integer(text: str) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    # int() also takes "1_000" and other scripts' digits, which Kafka refuses.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        raise ValueError(text)
    return int(text)


def _ill_typed(setting: Setting, text: str, wanted: str) -> ConfigError:
    shown = abridged(text)
    return ConfigError(f"Invalid value {shown} for configuration {setting.name}: {wanted}")


def _broken_rule(rule: str, value: Value) -> str | None:
    """Why `value` breaks `rule`, or None when it keeps it."""
    if rule.startswith(">= "):
        return _broken_range(rule[3:], None, value)
    if " .. " in rule:
        low, high = rule.split(" .. ")
        return _broken_range(low, high, value)
    if rule.startswith("of "):
        return _broken_choice(rule[3:].split(","), value)
    if rule.startswith("any case of "):
        choices = rule[12:].split(",")
        upper = value.upper() if isinstance(value, str) else value
        return _broken_choice(choices, upper)
    if rule == "not empty":
        return "it must not be empty" if value == "" else None
    if rule == "kafka version":
        return _broken_version(value)
    if rule == "throttled replicas":
        return _broken_throttled_replicas(value)
    raise AssertionError(f"unknown rule {rule!r} in the settings table")


def _broken_range(low: str, high: str | None, value: Value) -> str | None:
    assert isinstance(value, int | float)
    limit = high if high is not None else low
    if limit.endswith(" or -1"):
        if value == -1:
            return None
        if high is None:
            low = low[: -len(" or -1")]
        else:
            high = high[: -len(" or -1")]
    if value < float(low):
        return f"Value must be at least {low}"
    if high is not None and value > float(high):
        return f"Value must be no more than {high}"
    return None


def _broken_choice(choices: list[str], value: Value) -> str | None:
    for item in value if isinstance(value, list) else [value]:
        if item not in choices:
            return f"String must be one of: {', '.join(choices)}"
    return None


def _broken_version(value: Value) -> str | None:
    text = str(value)
    for release in _KAFKA_RELEASES:
        rest = text[len(release) :]
        if text.startswith(release) and (rest == "" or rest[:1] in ("-", ".")):
            return None
    return "it is no Kafka version such as 3.9 or 3.9-IV0"


def _broken_throttled_replicas(value: Value) -> str | None:
    assert isinstance(value, list)
    # One match of the whole: a znode holds a hundred thousand replicas.
    if not value or value == ["*"] or _THROTTLED_REPLICAS.fullmatch(",".join(value)):
        return None
    return "write * or a list of partition:broker, such as 0:1001,1:1002"


def format_value(value: Value) -> str | None:
    """A typed value as Kafka writes it in responses."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, float):
        return _java_double(value)
    return str(value)


def _java_double(value: float) -> str:
    """As Java writes it: 0.5 and 10.0, but 1.0E7 and 1.7976931348623157E308."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal  # rarely needed

    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int):
        return {"n": "NaN", "N": "NaN"}.get(exponent, "-Infinity" if sign else "Infinity")
    first, *rest = map(str, digits)
    places = exponent + len(rest)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{places}"


def near_matches(name: str, known: dict[str, Setting]) -> list[str]:
    """At most three known names that look like `name`, best first (only for error messages)."""
    import difflib

    return difflib.get_close_matches(name, known, n=3, cutoff=0.75)
