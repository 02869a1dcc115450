"""The `listeners` family of settings, and `listener.name.*`: the settings of one listener.

Kafka ignores a name that it does not know after `listener.name.`, so that a typing error in
`ssl.client.auth` leaves a listener open; here it is an error, and so is a listener that `listeners`
does not name. Some settings may be set for one SASL mechanism of a listener as well.
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
    split_list,
)
from ottla.broker.config.errors import AdvertisedAddressError, ConfigError, UnknownSetting

#: The settings that name the listeners: a change at run time opens and closes some of them.
LISTENERS = ("listeners", "advertised.listeners", "listener.security.protocol.map")

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Endpoint(NamedTuple):
    """One listener. `host` is "" for every address of the machine."""

    listener_name: str
    security_protocol: str
    host: str
    port: int

    @property
    def uses_tls(self) -> bool:
        """Whether what is sent on it is encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether clients authenticate by SASL on it."""
        return self.security_protocol.startswith("SASL_")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener_name}://{host}:{self.port}"


def parse_protocol_map(text: str) -> dict[str, str]:
    """`listener.security.protocol.map`: listener name to security protocol."""
    mapping: dict[str, str] = {}
    for item in split_list(text):
        name, separator, text = item.rpartition(":")
        protocol = text.strip().upper()
        if not separator or protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: {item!r} is not NAME:PROTOCOL with one of "
                f"{', '.join(SECURITY_PROTOCOLS)}."
            )
        known = mapping.setdefault(name.strip().upper(), protocol)
        if known != protocol:
            raise ConfigError(
                f"listener.security.protocol.map: {name.strip()} has both {known} and {protocol}: "
                "write one of them."
            )
    return mapping


def parse_endpoints(setting: str, text: str, protocols: dict[str, str]) -> list[Endpoint]:
    """`NAME://host:port,...`; an empty host means every address, [..] holds an IPv6 address."""
    endpoints: list[Endpoint] = []
    for item in split_list(text):
        name, separator, address = item.partition("://")
        host, colon, port = address.rpartition(":")
        name = name.strip().upper()
        if not (name and separator and colon and port.isascii() and port.isdigit()):
            raise ConfigError(
                f"{setting}: {item!r} is not NAME://host:port, such as PLAINTEXT://127.0.0.1:9092."
            )
        if int(port) > 65535:
            raise ConfigError(f"{setting}: port {port} of {item!r} is above 65535.")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ConfigError(f"{setting}: write the IPv6 address of {item!r} in brackets.")
        if name not in protocols:
            raise ConfigError(
                f"{setting}: listener {name} has no security protocol; add {name}:PLAINTEXT (or "
                f"another of {', '.join(SECURITY_PROTOCOLS)}) to listener.security.protocol.map."
            )
        endpoints.append(Endpoint(name, protocols[name], host, int(port)))
    _check_unique(setting, endpoints)
    return endpoints


def _check_unique(setting: str, endpoints: list[Endpoint]) -> None:
    names = [endpoint.listener_name for endpoint in endpoints]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{setting}: each listener needs a name of its own, {name} is twice.")
    # Behind a proxy several listeners may show the same port.
    if setting != "advertised.listeners":
        check_ports_differ(setting, endpoints)


def check_ports_differ(setting: str, endpoints: list[Endpoint]) -> None:
    """ConfigError when two listeners of a broker have one port, unless one has an IPv4 address and
    the other an IPv6 address (KIP-797)."""
    seen: dict[int, Endpoint] = {}
    for endpoint in endpoints:
        other = seen.setdefault(endpoint.port, endpoint)
        hosts = {endpoint.host, other.host}
        if endpoint.port and other is not endpoint and "::" in hosts and len(hosts) == 2:
            raise ConfigError(
                f"{setting}: {other} and {endpoint} use the same port, and [::] takes IPv4 as well:"
                " drop one of them, or give it another port."
            )
        both_families = ":" in endpoint.host and ":" not in other.host
        if endpoint.port and other is not endpoint and not (both_families or ":" in other.host):
            raise ConfigError(f"{setting}: {other} and {endpoint} use the same port.")


def check_changed_listeners(old: list[Endpoint], new: list[Endpoint]) -> None:
    """ConfigError when a listener that stays open would change. Kafka accepts another address, and
    uses it from the next start on."""
    before = {endpoint.listener_name: endpoint for endpoint in old}
    for endpoint in new:
        known = before.get(endpoint.listener_name, endpoint)
        if known.security_protocol != endpoint.security_protocol:
            raise ConfigError(
                f"Security protocol cannot be updated for existing listener {known.listener_name}: "
                "add a listener with another name, or restart the broker with it."
            )
        if known != endpoint:
            raise ConfigError(
                f"listeners: {known} is open, and {endpoint} is used from the next start on only: "
                "set it in the configuration file and restart the broker, or add a listener."
            )


def check_advertised(listeners: list[Endpoint], advertised: list[Endpoint], between: str) -> None:
    """The rules between the listeners, the advertised ones and the inter-broker listener."""
    names = [endpoint.listener_name for endpoint in listeners]
    shown = [endpoint.listener_name for endpoint in advertised]
    for endpoint in advertised:
        if endpoint.listener_name not in names:
            raise AdvertisedAddressError(
                f"advertised.listeners: {endpoint.listener_name} is none of the listeners "
                f"({', '.join(names)})."
            )
        if endpoint.host in ("0.0.0.0", "::"):
            raise AdvertisedAddressError(
                f"advertised.listeners cannot use {endpoint.host}, which no client can connect "
                "to: write the host name or address that clients use for this machine."
            )
    if between not in shown:
        raise ConfigError(
            f"inter.broker.listener.name: {between} is none of the advertised listeners: set it to "
            f"{' or '.join(shown)}."
        )


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


def is_of_login(name: str, listener_name: str) -> bool:
    """Whether a setting decides as whom the clients of a listener are authenticated."""
    if name.startswith(PREFIX) and not name.startswith(f"{PREFIX}{listener_name.lower()}."):
        return False
    base = base_name(name)
    return base.startswith("sasl.") or base in (
        *("connections.max.reauth.ms", "ssl.principal.mapping.rules"),
    )


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
