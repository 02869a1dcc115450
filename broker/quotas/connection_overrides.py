"""`max.connections.per.ip.overrides`: limits of addresses, and of host names, which are resolved.

Kafka resolves a name when the setting is applied (`InetAddress.getByName`). Here names
are resolved beside the loop; until that is done, `max.connections.per.ip` counts.
"""

from __future__ import annotations

import asyncio
import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING

from ottla.broker.runtime.tasks import spawn

if TYPE_CHECKING:
    from ottla.broker.quotas.connection_quotas import ConnectionLimits

logger = logging.getLogger("ottla.network")

_RESOLVE_SECONDS = 30.0  # longer than a resolver asks its servers with the usual settings


class ConnectionOverrides:
    """Keeps the overrides of `ConnectionLimits` by address. Loop only."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._overrides: dict[str, int] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}  # of names, for the life of the process

    def apply(self, overrides: dict[str, int]) -> None:
        """Takes limits by address or host name; begins to resolve names that are new."""
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
