"""The names under which the HTTP port serves metrics and state.

A web page can point a name of its own at this machine (DNS rebinding); the browser then sends that
name in the Host header. Addresses cannot be pointed elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

#: The names of this machine for itself.
LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))


class HostNames:
    """The names that the Host header of a request may have."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names` beside this machine's own; `*` permits every name."""
        own = socket.gethostname().lower()
        self._names = {own, own.partition(".")[0], *LOCAL_NAMES}
        self._names |= {each.strip().lower() for each in names if each.strip()}
        self._any = "*" in self._names

    def permit(self, head: bytes) -> bool:
        """Whether to serve a request. One without a Host header does not come from a browser."""
        hosts = [
            value.strip().decode("latin-1")
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
            if name.strip().lower() == b"host"
        ]
        if self._any or not hosts:
            return True
        name = host_name(hosts[0])
        return len(hosts) == 1 and (name in self._names or is_address(name))


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, in small letters."""
    name, _, port = host.rpartition(":")
    if not port.isdecimal() or host.endswith("]"):
        name = host
    return name.removeprefix("[").removesuffix("]").lower()


def is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
