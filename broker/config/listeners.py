"""The `listeners` family of settings: parsing and the rules that hold between them."""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.config.definitions import split_list
from ottla.broker.config.errors import AdvertisedAddressError, ConfigError

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
        mapping[name.strip().upper()] = protocol
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
    if setting == "advertised.listeners":
        return  # Behind a proxy several listeners may show the same port.
    seen: dict[int, Endpoint] = {}
    for endpoint in endpoints:
        other = seen.setdefault(endpoint.port, endpoint)
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
            f"inter.broker.listener.name: {between} is none of the advertised listeners "
            f"({', '.join(shown)})."
        )
