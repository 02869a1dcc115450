"""Limits of connections and of new ones a second: in all, by listener, by address.

Mirrors Kafka's `ConnectionQuotas`. A connection over the number of its address is closed at once,
one over the rate of its address after a while: a client that connects again and again is slowed
down. Over the number or the rate of the broker or of a listener none is closed: the listener stops
accepting for a while, and new connections wait in the kernel's backlog.
"""

from __future__ import annotations

import asyncio
import logging
from ipaddress import ip_address
from typing import NamedTuple

from ottla.broker.quotas.rate import Rate, forget_idle
from ottla.broker.runtime.tasks import spawn

UNLIMITED = 2147483647


class Refusal(NamedTuple):
    """Why a connection that was accepted has to be closed, and after which time."""

    reason: str
    close_after_ms: int = 0


class ListenerLimits:
    """The limits and counts of one listener. Limits may change at run time."""

    __slots__ = ("creation_rate", "max_connections", "max_creation_rate", "open", "protected")

    def __init__(
        self,
        *,
        max_connections: int = UNLIMITED,
        max_creation_rate: int = UNLIMITED,
        protected: bool = False,
        window_count: int = 11,
        window_ms: int = 1000,
    ) -> None:
        """`protected`: the inter-broker listener, when there are others too. The broker's own
        limits do not count for it, so that clients cannot shut brokers out."""
        self.max_connections = max_connections
        self.max_creation_rate = max_creation_rate
        self.protected = protected
        self.open = 0
        self.creation_rate = Rate(window_count=window_count, window_ms=window_ms)


class ConnectionLimits:
    """Counts open connections and decides who comes in. Limits may change at run time."""

    def __init__(
        self,
        *,
        max_connections: int = UNLIMITED,
        max_per_ip: int = UNLIMITED,
        max_per_ip_overrides: dict[str, int] | None = None,
        max_creation_rate: int = UNLIMITED,
        window_count: int = 11,
        window_ms: int = 1000,
    ) -> None:
        self.max_connections = max_connections
        self.max_per_ip = max_per_ip
        self.max_per_ip_overrides = max_per_ip_overrides or {}
        self.max_creation_rate = max_creation_rate
        self.ip_creation_rates: dict[str, int] = {}  # connection_creation_rate of IP quotas
        self.default_ip_creation_rate = UNLIMITED
        self.open = 0
        self._window_count = window_count
        self._window_ms = window_ms
        self._by_ip: dict[str, int] = {}
        self._creation_rate = self._new_rate()
        self._rates_by_ip: dict[str, Rate] = {}

    def set_default_ip_creation_rate(self, rate: int | None) -> None:
        """New connections a second for addresses without a rate of their own; None: any."""
        self.default_ip_creation_rate = UNLIMITED if rate is None else rate

    def set_ip_creation_rate(self, ip: str, rate: int | None) -> None:
        """New connections a second for one address; None: the default counts again."""
        if rate is None:
            self.ip_creation_rates.pop(ip, None)
        else:
            self.ip_creation_rates[ip] = rate

    def accept_delay_ms(self, listener: ListenerLimits, now_ms: int) -> int:
        """The milliseconds to wait before the listener accepts one more; 0: none.

        A full listener retries after `FULL_RETRY_MS`: connections end at any time.
        """
        if listener.open >= listener.max_connections:
            return FULL_RETRY_MS
        delay_ms = 0
        if listener.max_creation_rate < UNLIMITED:
            delay_ms = listener.creation_rate.throttle_ms(listener.max_creation_rate, now_ms)
        if not listener.protected:
            if self.open >= self.max_connections:
                return FULL_RETRY_MS
            if self.max_creation_rate < UNLIMITED:
                broker_ms = self._creation_rate.throttle_ms(self.max_creation_rate, now_ms)
                delay_ms = max(delay_ms, broker_ms)
        return min(delay_ms, self._window_ms)

    def admit(self, listener: ListenerLimits, ip: str, now_ms: int) -> Refusal | None:
        """Count a connection that was accepted. Returns why it must be closed, None if not."""
        allowed = self.max_per_ip_overrides.get(ip, self.max_per_ip)
        count = self._by_ip.get(ip, 0)
        if count >= allowed:
            return Refusal(
                f"{ip} has {count} connections already, as many as it may (max.connections.per.ip)"
            )
        ip_rate = self.ip_creation_rates.get(ip, self.default_ip_creation_rate)
        if ip_rate < UNLIMITED:
            rate = self._rate_of(ip, now_ms)
            throttle_ms = rate.throttle_ms(ip_rate, now_ms)
            if throttle_ms > 0:
                return Refusal(
                    f"{ip} opens more than the {ip_rate} connections a second that it may",
                    max(min(throttle_ms, self._window_ms), LEAST_CLOSE_MS),
                )
            rate.record(1, now_ms)
        if listener.max_creation_rate < UNLIMITED:
            listener.creation_rate.record(1, now_ms)
        if self.max_creation_rate < UNLIMITED and not listener.protected:
            self._creation_rate.record(1, now_ms)
        self._by_ip[ip] = count + 1
        listener.open += 1
        self.open += 1
        return None

    def released(self, listener: ListenerLimits, ip: str) -> None:
        """An admitted connection has ended."""
        count = self._by_ip[ip] - 1
        if count:
            self._by_ip[ip] = count
        else:
            del self._by_ip[ip]
        listener.open -= 1
        self.open -= 1

    def _new_rate(self) -> Rate:
        return Rate(window_count=self._window_count, window_ms=self._window_ms)

    def _rate_of(self, ip: str, now_ms: int) -> Rate:
        rates = self._rates_by_ip
        rate = rates.get(ip)
        if rate is None:
            if len(rates) >= MAX_RATES:
                forget_idle(rates, now_ms)
            rate = rates[ip] = self._new_rate()
        return rate


# A connection over the rate of its address is closed after this time at least: with less, a client
# in a loop would have every second connection refused. Kafka's acceptor closes them every 500 ms.
LEAST_CLOSE_MS = 500

# A listener at its limit looks again after this time.
FULL_RETRY_MS = 100

# Addresses whose rate is remembered before those that were silent for a window are forgotten.
MAX_RATES = 10_000


logger = logging.getLogger("ottla.network")

_RESOLVE_SECONDS = 30.0  # longer than a resolver asks its servers with the usual settings


class ConnectionOverrides:
    """`max.connections.per.ip.overrides`: limits of addresses, and of host names, by address.

    Kafka resolves a name when the setting is applied (`InetAddress.getByName`). Here names are
    resolved beside the loop; until then `max.connections.per.ip` counts. Loop only.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._overrides: dict[str, int] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}  # of names, for the life of the process

    def apply(self, overrides: dict[str, int]) -> None:
        """Take limits by address or host name; begin to resolve names that are new."""
        self._overrides = overrides
        for name in overrides:
            if name not in self._addresses:
                address = _address(name)
                self._addresses[name] = () if address is None else (address,)
                if address is None:
                    spawn(self._resolve(name), name="resolve-connection-override")
        self._update()

    def _update(self) -> None:
        self._limits.max_per_ip_overrides = {
            address: limit
            for name, limit in self._overrides.items()
            for address in self._addresses[name]
        }

    async def _resolve(self, name: str) -> None:
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                rows = await asyncio.get_running_loop().getaddrinfo(name, None)
        except (OSError, TimeoutError) as error:
            del self._addresses[name]  # the next change of a setting retries
            self._overrides = {key: limit for key, limit in self._overrides.items() if key != name}
            logger.error(
                "max.connections.per.ip.overrides: %s cannot be resolved (%s); write the address, "
                "or set it again when the name is known",
                name,
                error,
            )
            return
        self._addresses[name] = tuple(dict.fromkeys(str(row[4][0]) for row in rows))
        self._update()


def _address(text: str) -> str | None:
    try:
        return str(ip_address(text))
    except ValueError:
        return None
