"""Where settings come from: file, environment, command line; the later one wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.broker.config.definitions import (
    broker_settings,
    dynamic_only_settings,
    near_matches,
)
from ottla.broker.config.errors import ConfigError, UnknownSetting
from ottla.broker.config.image_variables import IMAGE_PREFIX, TRANSLATED, Variables, translate
from ottla.broker.config.listeners import PREFIX, listener_setting
from ottla.broker.config.properties_file import Property, read_properties

# Settings of plug-ins and of single listeners carry these prefixes and are not in the tables.
_OPEN_PREFIXES = (PREFIX, "config.providers.", "rlmm.config.", "rsm.config.")

# Settings that server.properties files of older releases hold, and what replaced them.
_REMOVED = {
    "port": "write it into listeners",
    "host.name": "write it into listeners",
    "advertised.host.name": "write it into advertised.listeners",
    "advertised.port": "write it into advertised.listeners",
    "quota.producer.default": "set a default quota with the quota commands",
    "quota.consumer.default": "set a default quota with the quota commands",
    "zookeeper.sync.time.ms": "it has had no effect since Kafka 1.0",
}

# What start scripts and container images put into the environment beside settings.
_NOT_SETTINGS = TRANSLATED | frozenset(
    (
        *("KAFKA_HOME", "KAFKA_VERSION", "KAFKA_USER", "KAFKA_CLUSTER_ID", "KAFKA_DEBUG"),
        *("KAFKA_BOOTSTRAP_SERVERS", "OTTLA_CONFIG", "OTTLA_BOOTSTRAP", "OTTLA_COMMAND_CONFIG"),
        *("KAFKA_OPTS", "OTTLA_IGNORE_UNKNOWN"),
    )
)

#: Prefixes of unknown names to ignore, with commas, for containers: as `--ignore-unknown`.
IGNORE_VARIABLE = "OTTLA_IGNORE_UNKNOWN"


class Collected(NamedTuple):
    """All settings given, by name; warnings of what was ignored; errors of what is no setting."""

    given: dict[str, Property]
    warnings: list[str]
    errors: list[ConfigError]


def collect(
    path: str | None,
    overrides: Iterable[str],
    environment: Mapping[str, str],
    ignored_prefixes: Iterable[str] = (),
) -> Collected:
    """Reads the values of the image, file, `KAFKA_...` variables, `OTTLA_...` variables and
    `--override`; the later wins.

    Unknown names that begin with one of `ignored_prefixes` ("confluent." or "confluent.*") are left
    out. An unknown `KAFKA_...` variable is a warning, since images set variables that are no
    settings. Raises ConfigError when the file cannot be read.
    """
    prefixes = without_stars(ignored_prefixes)
    variables = translate(environment)
    found = Collected({}, [*variables.warnings], [*variables.errors])
    ignored: list[str] = []

    def take(item: Property) -> None:
        try:
            _check_known(item)
        except ConfigError as error:
            if item.name.startswith(prefixes):
                ignored.append(item.name)
            else:
                found.errors.append(error)
            return
        found.given[item.name] = item

    _take_variables(IMAGE_PREFIX, variables, prefixes, found, ignored)
    if path is not None:
        items = read_properties(path)
        found.warnings.extend(_repeated(items))
        for item in items:
            take(item)
    for prefix in ("KAFKA_", "OTTLA_"):
        _take_variables(prefix, variables, prefixes, found, ignored)
    for override in overrides:
        try:
            item = _parse_override(override)
        except ConfigError as error:
            found.errors.append(error)
            continue
        take(item)
    if ignored:
        names = ", ".join(dict.fromkeys(ignored))
        found.warnings.append(f"Ignored, as --ignore-unknown says: {names}")
    return found


def _repeated(items: Iterable[Property]) -> list[str]:
    """Warnings of settings that a file has twice, with different values. The last one is used, as
    in Kafka."""
    warnings: list[str] = []
    before: dict[str, Property] = {}
    for item in items:
        other = before.get(item.name)
        if other is not None and other.value != item.value:
            warnings.append(f"{item.origin}: replaces {item.name} of {other.origin}")
        before[item.name] = item
    return warnings


def without_stars(given: Iterable[str]) -> tuple[str, ...]:
    """Prefixes without the star that people write behind them. An empty one would ignore all."""
    stripped = (each.strip().removesuffix("*") for each in given)
    return tuple(each for each in stripped if each)


def _parse_override(text: str) -> Property:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise ConfigError(
            f"--override {text}: write it as key=value, for example num.partitions=3."
        )
    return Property(name.strip(), value, "--override")


def _check_known(item: Property) -> None:
    if item.name.startswith(PREFIX):
        try:
            listener_setting(item.name)
        except ConfigError as error:
            raise error.at(item.origin) from None
    if is_known(item.name):
        return
    if item.name in _REMOVED:
        raise UnknownSetting(
            f"{item.origin}: the setting {item.name} is gone from Kafka: {_REMOVED[item.name]}."
        )
    hint = "" if near_matches(item.name, broker_settings()) else _of_other_software(item.name)
    raise UnknownSetting(f"{item.origin}: {unknown_setting(item.name)}{hint}")


def _of_other_software(name: str) -> str:
    """What to do about a setting that nothing here resembles, such as those of a vendor."""
    prefix, dot, _ = name.partition(".")
    return f" Remove it, or start with --ignore-unknown {prefix}." if dot else ""


def unknown_setting(name: str) -> str:
    """Words for a name that is no setting."""
    return f"unknown setting {name}.{_did_you_mean(name)}"


def _did_you_mean(name: str) -> str:
    matches = near_matches(name, broker_settings())
    return f" Did you mean {' or '.join(matches)}?" if matches else ""


def is_known(name: str) -> bool:
    """Whether a broker setting of this name may stand in a file."""
    return (
        name in broker_settings()
        or name in dynamic_only_settings()
        or name.startswith(_OPEN_PREFIXES)
    )


def variable_to_setting(variable: str, prefix: str = "KAFKA_") -> str:
    """`KAFKA_LOG_DIRS` to `log.dirs`: _ is a dot, __ is _, ___ is -, as in Kafka's own image."""
    rest = variable.removeprefix(prefix).lower()
    rest = rest.replace("___", "\0").replace("__", "\1").replace("_", ".")
    return rest.replace("\0", "-").replace("\1", "_")


def _take_variables(
    prefix: str,
    variables: Variables,
    ignored_prefixes: tuple[str, ...],
    found: Collected,
    ignored: list[str],
) -> None:
    lowered: dict[str, str] = {}
    for variable, value in variables.environment.items():
        if not variable.startswith(prefix) or variable in _NOT_SETTINGS:
            continue
        if variable.startswith(IMAGE_PREFIX) and prefix != IMAGE_PREFIX:
            continue
        origin = variables.origins.get(variable, variable)
        lowered = lowered or {name.lower(): name for name in broker_settings()}
        name = variable_to_setting(variable, prefix)
        known = lowered.get(name) or lowered.get(f"ottla.{name}")
        if known is None and name.startswith(_OPEN_PREFIXES):
            known = name
        if known is not None:
            found.given[known] = Property(known, value, f"environment variable {origin}")
        elif "_SERVICE_" in variable or "_PORT" in variable[len(prefix) - 1 :]:
            # Kubernetes puts KAFKA_SERVICE_HOST, KAFKA_PORT_9092_TCP, ... beside a service "kafka".
            continue
        elif name.startswith(ignored_prefixes) or variable.startswith(ignored_prefixes):
            ignored.append(origin)
        else:
            hint = _did_you_mean(name) or _did_you_mean(f"ottla.{name}")
            text = f"environment variable {origin} names no setting ({name})"
            if prefix == "KAFKA_":
                found.warnings.append(f"{text} and is ignored.{hint}")
            else:
                found.errors.append(UnknownSetting(f"{text}.{hint}"))
