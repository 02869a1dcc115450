"""Settings of one listener: `listener.name.<listener>.<setting>`, and of one mechanism on it.

`listener.name.<listener>.<mechanism>.<setting>` is for what differs between SASL mechanisms. Kafka
ignores what it does not know there, so that a typing error in `ssl.client.auth` leaves a listener
open; here it is an error, and so is a listener that `listeners` does not name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.broker.config.definitions import (
    READ_ONLY,
    Setting,
    broker_settings,
    dynamic_only_settings,
    near_matches,
)
from ottla.broker.config.errors import ConfigError, UnknownSetting

PREFIX = "listener.name."

_MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512", "gssapi", "oauthbearer")

# What a listener may have of its own. Settings of plug-ins are here too: they are rejected with a
# sentence of their own (`ottla.broker.config.unsupported`).
_OF_A_LISTENER = frozenset(
    (
        *("connections.max.reauth.ms", "max.connection.creation.rate", "max.connections"),
        *("num.network.threads", "principal.builder.class", "sasl.enabled.mechanisms"),
        *("sasl.mechanism.inter.broker.protocol", "sasl.server.max.receive.size"),
        "ottla.ssl.crl.location",
    )
)
_PREFIXES_OF_A_LISTENER = ("ssl.", "sasl.kerberos.", "sasl.oauthbearer.", "sasl.login.")
_OF_A_MECHANISM = frozenset(
    (
        *("connections.max.reauth.ms", "sasl.jaas.config", "sasl.login.callback.handler.class"),
        *("sasl.client.callback.handler.class", "sasl.server.callback.handler.class"),
    )
)
_PREFIXES_OF_A_MECHANISM = ("sasl.oauthbearer.", "sasl.login.")


class ListenerSetting(NamedTuple):
    """`mechanism` is None for a setting of the whole listener."""

    listener: str
    mechanism: str | None
    setting: Setting


def listener_setting(name: str) -> ListenerSetting:
    """The parts of `listener.name....`. Raises ConfigError for what is no setting of a listener."""
    listener, _, rest = name.removeprefix(PREFIX).partition(".")
    if listener != listener.lower():
        raise ConfigError(
            f"{name}: the name of the listener is written in lower case here, "
            f"{PREFIX}{listener.lower()}.{rest}; Kafka ignores it otherwise."
        )
    mechanism = next((each for each in _MECHANISMS if rest.startswith(f"{each}.")), None)
    base = rest if mechanism is None else rest[len(mechanism) + 1 :]
    setting = broker_settings().get(base)
    if setting is None or not _fits(base, mechanism):
        raise UnknownSetting(f"{name}: {_why_not(base, mechanism)}")
    return ListenerSetting(listener, mechanism, setting)


def find_listener_setting(name: str) -> Setting | None:
    """The definition of a setting with a listener's prefix; None when there is none."""
    try:
        return listener_setting(name).setting
    except ConfigError:
        return None


def find_broker_setting(name: str) -> Setting:
    """The definition of a setting, also with a listener prefix; an unknown one is sensitive."""
    return _known_setting(name) or Setting((name, "password", "null", "", "low", READ_ONLY))


def is_broker_setting(name: str) -> bool:
    """Whether there is such a setting, also with a listener prefix."""
    return _known_setting(name) is not None


def _known_setting(name: str) -> Setting | None:
    found = broker_settings().get(name) or dynamic_only_settings().get(name)
    if found is None and name.startswith(PREFIX):
        found = find_listener_setting(name)
    return found


def base_name(name: str) -> str:
    """The name of a setting without the prefixes of listener and mechanism."""
    found = find_listener_setting(name) if name.startswith(PREFIX) else None
    return name if found is None else found.name


def check_listener_settings(names: Iterable[str], listeners: Iterable[str]) -> None:
    """ConfigError for names with a listener's prefix that no listener reads."""
    known = {listener.lower() for listener in listeners}
    for name in names:
        if not name.startswith(PREFIX):
            continue
        listener = listener_setting(name).listener
        if listener not in known:
            raise ConfigError(
                f"{name}: there is no listener {listener.upper()}; listeners names "
                f"{', '.join(sorted(each.upper() for each in known))}."
            )


def _fits(base: str, mechanism: str | None) -> bool:
    if mechanism is None:
        return base in _OF_A_LISTENER or base.startswith(_PREFIXES_OF_A_LISTENER)
    return base in _OF_A_MECHANISM or base.startswith(_PREFIXES_OF_A_MECHANISM)


def _why_not(base: str, mechanism: str | None) -> str:
    table = broker_settings()
    if base in _OF_A_MECHANISM and mechanism is None:
        return (
            f"{base} belongs to one mechanism: write {PREFIX}<listener>.<mechanism>.{base} with "
            f"one of {', '.join(_MECHANISMS)}."
        )
    if base in table:
        what = "a listener" if mechanism is None else "a SASL mechanism"
        return f"{base} is a setting of the whole broker, not of {what}."
    candidates = {name: each for name, each in table.items() if _fits(name, mechanism)}
    matches = near_matches(base, candidates)
    hint = f" Did you mean {' or '.join(matches)}?" if matches else ""
    return f"unknown setting {base}.{hint}"
