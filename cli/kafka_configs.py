"""kafka-configs: `ottla configs`; for users, clients and addresses `ottla quotas` and `users`."""

from __future__ import annotations

import re
import shlex
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
    kinds = [kind for kind, _ in entities]
    if kinds == ["user"] and "--zookeeper" in given.flags:
        return _scram_lines(given, entities[0][1], ["--zookeeper", str(given.last("--zookeeper"))])
    common = _common(given)
    if len(kinds) > 1 and sorted(kinds) != ["client", "user"]:
        raise usage("name one entity; only quotas have two: --user and --client.")
    if kinds[0] in _QUOTAS:
        return _quota_lines(given, entities, common)
    kind, name = entities[0]
    target = [kind] if name is None else [kind, name]
    if name is None and ("--entity-default" in given.flags or "--broker-defaults" in given.flags):
        target = ["cluster"]
    if "--describe" in given.flags:
        more = ["--all"] if "--all" in given.flags else []
        return [["configs", "describe", *target, *given.others, *more, *common]]
    lines = []
    if added := _added(given):
        lines.append(["configs", "set", *target, *added, *given.others, *common])
    if removed := given.each("--delete-config"):
        strict = [] if "--zookeeper" in given.flags else ["--must-be-set"]
        lines.append(["configs", "unset", *target, *removed, *strict, *given.others, *common])
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
    has_all = "--describe" in given.flags and "--zookeeper" not in given.flags
    for kind, name in found:
        if name is None and kind in ("topic", "broker") and has_all and not is_default:
            continue
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
    if "--zookeeper" in given.flags:
        raise usage("--zookeeper of kafka-configs is for brokers and for SCRAM users, not quotas.")
    if "--describe" in given.flags:
        # As in Kafka: without the quotas of a user with a client id, unless both are typed.
        kinds = [word for kind, _ in entities for word in ("--only", kind)]
        lines = [["quotas", "describe", *words, *kinds, *given.others, *common]]
        if len(entities) == 1 and entities[0][0] == "user" and not defaults:
            # As in Kafka: not beside clients, nor for the default of all users.
            lines += _scram_lines(given, entities[0][1], common)
        return lines
    if not defaults and any(name is None for _, name in entities):
        raise usage("name each entity with --entity-name, or its default: --entity-default.")
    added, removed = _added(given), given.each("--delete-config")
    lines = []
    if any(map(_is_scram, [*added, *removed])):
        if len(entities) > 1 or entities[0][0] != "user":
            raise usage("a SCRAM credential is one of a user: --entity-type users.")
        lines = _scram_lines(given, entities[0][1], common)
        if all(map(_is_scram, [*added, *removed])):
            return lines
    for text in added:
        words += ["--set", text]
    for text in removed:
        if not _is_scram(text):
            words += ["--remove", text]
    return [*lines, ["quotas", "alter", *words, *given.others, *common]]


def _is_scram(setting: str) -> bool:
    return setting.startswith("SCRAM-")


def _scram_lines(given: Given, user: str | None, common: list[str]) -> list[list[str]]:
    """The commands of `ottla users` for the credentials of a user, or of all users."""
    name = [] if user is None else [user]
    if "--describe" in given.flags:
        return [["users", "list", *name, *given.others, *common]]
    if user is None:
        raise usage("a SCRAM credential is one of a user: name it with --entity-name.")
    added, removed = _added(given), given.each("--delete-config")
    if "--zookeeper" in given.flags and not all(map(_is_scram, [*added, *removed])):
        raise usage("--zookeeper of kafka-configs is for brokers and for SCRAM users, not quotas.")
    for text in filter(_is_scram, added):
        words = ["users", "add", *name, "--mechanism", text.partition("=")[0], *common]
        raise usage(
            f"passwords are not on the command line here: `ottla {shlex.join(words)}` asks for it, "
            f"or reads it with --password-file."
        )
    mechanisms = [word for each in filter(_is_scram, removed) for word in ("--mechanism", each)]
    if not mechanisms:
        raise usage("kafka-configs --alter needs --add-config or --delete-config.")
    return [["users", "remove", *name, *mechanisms, *given.others, *common]]


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
