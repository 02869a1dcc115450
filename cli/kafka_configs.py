"""kafka-configs: `ottla configs`, and `ottla quotas` for users, clients and addresses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.cli.client_properties import read_client_properties
from ottla.cli.output import usage

if TYPE_CHECKING:
    from ottla.cli.kafka_tools import Given

_KINDS = {
    "topics": "topic",
    "brokers": "broker",
    "broker-loggers": "logger",
    "client-metrics": "metrics",
    "users": "user",
    "clients": "client",
    "ips": "ip",
    "groups": "group",
}
_QUOTAS = ("user", "client", "ip")
# Flags that name a kind and its value at once.
_NAMED = {
    "--topic": "topic",
    "--broker": "broker",
    "--broker-logger": "logger",
    "--client": "client",
    "--user": "user",
    "--ip": "ip",
}
_DEFAULTS = {
    "--broker-defaults": "broker",
    "--client-defaults": "client",
    "--user-defaults": "user",
    "--ip-defaults": "ip",
}


def configs_lines(given: Given) -> list[list[str]]:
    """One command, or two where settings are added and removed."""
    if ("--alter" in given.flags) == ("--describe" in given.flags):
        raise usage("kafka-configs needs exactly one of --describe --alter.")
    for flag in ("--add-config", "--add-config-file", "--delete-config"):
        if "--describe" in given.flags and flag in given.flags:
            raise usage(f"{flag} of kafka-configs needs --alter.")
    entities = _entities(given)
    common = _common(given)
    kinds = [kind for kind, _ in entities]
    if len(kinds) > 1 and sorted(kinds) != ["client", "user"]:
        raise usage("name one entity; only quotas have two: --user and --client.")
    if kinds[0] in _QUOTAS:
        return _quota_lines(given, entities, common)
    kind, name = entities[0]
    target = ["cluster"] if name is None else [kind, name]
    if "--describe" in given.flags:
        more = ["--all"] if "--all" in given.flags else []
        return [["configs", "describe", *target, *given.others, *more, *common]]
    lines = []
    if added := _added(given):
        lines.append(["configs", "set", *target, *added, *given.others, *common])
    if removed := given.each("--delete-config"):
        lines.append(["configs", "unset", *target, *removed, *given.others, *common])
    if not lines and not given.others:
        raise usage("kafka-configs --alter needs --add-config or --delete-config.")
    return lines or [["configs", "set", *target, *given.others, *common]]


def _common(given: Given) -> list[str]:
    words = []
    for flag, option in (("--bootstrap-server", "--bootstrap"), ("--command-config",) * 2):
        if (value := given.last(flag)) is not None:
            words += [option, value]
    if (ensemble := given.last("--zookeeper")) is not None:
        words += ["--offline", "--zookeeper", ensemble]
    return words


def _entities(given: Given) -> list[tuple[str, str | None]]:
    """Kinds with their names; None is the default of a kind."""
    found: list[tuple[str, str | None]] = []
    # Each type has the name or the default that is typed at the same place among them.
    names = [
        value if flag == "--entity-name" else None
        for flag, value in given.typed
        if flag in ("--entity-name", "--entity-default")
    ]
    for text in given.flags.get("--entity-type", ()):
        if text not in _KINDS:
            raise usage(f"--entity-type {text} is not one of {', '.join(_KINDS)}.")
        found.append((_KINDS[text], names.pop(0) if names else None))
    if names:
        raise usage("each --entity-name and --entity-default needs an --entity-type.")
    found += [(_NAMED[flag], value) for flag, value in given.typed if flag in _NAMED]
    found += [(kind, None) for flag, kind in _DEFAULTS.items() if flag in given.flags]
    if not found:
        raise usage("name an entity: `ottla configs describe topic NAME`.")
    is_default = "--entity-default" in given.flags
    for kind, name in found:
        if name is None and kind not in ("broker", *_QUOTAS):
            raise usage(f"name one: `ottla configs describe {kind} NAME`.")
        if name is None and kind == "broker" and not is_default and "--entity-type" in given.flags:
            raise usage("name one, --entity-name ID, or the default of all: --entity-default.")
    return found


def _quota_lines(
    given: Given, entities: list[tuple[str, str | None]], common: list[str]
) -> list[list[str]]:
    words = []
    defaults = "--entity-default" in given.flags or any(f in given.flags for f in _DEFAULTS)
    for kind, name in entities:
        if name is not None:
            words += [f"--{kind}", name]
        elif defaults:
            words.append(f"--{kind}-default")
    if "--describe" in given.flags:
        return [["quotas", "describe", *words, *given.others, *common]]
    if not defaults and any(name is None for _, name in entities):
        raise usage("name each entity with --entity-name, or its default: --entity-default.")
    settings = [*_added(given), *given.each("--delete-config")]
    if any(text.startswith("SCRAM-") for text in settings):
        raise usage(
            "passwords are not on the command line here: `ottla users add NAME` asks for it, "
            "`ottla users remove NAME` removes it."
        )
    for text in _added(given):
        words += ["--set", text]
    for text in given.each("--delete-config"):
        words += ["--remove", text]
    return [["quotas", "alter", *words, *given.others, *common]]


def _added(given: Given) -> list[str]:
    """name=value of --add-config, where brackets hold a list, and of --add-config-file."""
    found = []
    for text in given.flags.get("--add-config", ()):
        for item in re.split(r",(?![^\[]*\])", text):
            name, equals, value = item.strip().partition("=")
            if not item.strip():
                continue
            if not name or not equals:
                raise usage(f"--add-config {item.strip()} is not NAME=VALUE.")
            found.append(f"{name}={value.removeprefix('[').removesuffix(']')}")
    for path in given.flags.get("--add-config-file", ()):
        found += [
            f"{name}={value}"
            for name, value in read_client_properties(path, "--add-config-file").items()
        ]
    return found
