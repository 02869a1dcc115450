"""The network of a broker in a container: which clients came in through a published port.

A container engine gives a container an address in a network of its own. Other containers connect
to that address. Clients of the host connect to a port that the engine publishes; where the engine
runs in a virtual machine (Docker Desktop, Podman machine) the host does not reach the container's
address. A listener without an advertised address therefore sends those clients to `localhost`.

Recognized are Docker, Podman and containerd, by the files that they create in a container.
Kubernetes is not among them, since its pods reach each other by address, nor is a container that
shares the network of its host.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ipaddress  # imported by what runs in a container only

logger = logging.getLogger("ottla.broker")

# The host as its own clients name it, with the port published under the same number.
HOST = "localhost"

REREAD_SECONDS = 1.0
"""The kernel's table of routes is read at most so often, when a client asks for addresses."""

_MARKER_FILES = (".dockerenv", "run/.containerenv")
_CGROUP_NAMES = ("docker", "containerd", "libpod")


class ContainerNetwork(NamedTuple):
    """The IPv4 networks that a container is attached to, and its default gateways."""

    networks: tuple[ipaddress.IPv4Network, ...]
    gateways: frozenset[ipaddress.IPv4Address]

    def is_from_outside(self, client: str, local: str) -> bool:
        """Whether a connection from `client` to our address `local` came through a published port.

        An engine makes such a connection come from the gateway, from our own address (Podman
        without root), or from an address of none of our networks. False for IPv6.
        """
        peer = _ipv4(client)
        if peer is None or peer.is_loopback:
            return False
        if peer in self.gateways or peer == _ipv4(local):
            return True
        return not any(peer in network for network in self.networks)


class AttachedNetworks:
    """The networks of a container now: an engine connects one to a container that runs
    (`docker network connect`), and disconnects it. Loop only."""

    def __init__(
        self,
        first: ContainerNetwork,
        read: Callable[[], ContainerNetwork | None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`read` returns the networks at the time of the call."""
        self._now = first
        self._read = read
        self._clock = clock
        self._read_at = clock()

    def is_from_outside(self, client: str, local: str) -> bool:
        """As of `ContainerNetwork`."""
        now = self._clock()
        if now - self._read_at >= REREAD_SECONDS:
            self._read_at = now
            found = self._read()
            if found is not None:
                # A gateway that is not the default one any more still has its published ports.
                self._now = ContainerNetwork(found.networks, found.gateways | self._now.gateways)
        return self._now.is_from_outside(client, local)


def container_of(wildcard_listeners: Collection[str]) -> AttachedNetworks | None:
    """The networks of the container in which this process runs, if they matter to a listener.

    Logs which clients of these listeners, which have no advertised address, receive `localhost`.
    """
    container = find_container_network() if wildcard_listeners else None
    if container is not None:
        logger.info(
            "This broker runs in a container and advertised.listeners is not set: clients of %s "
            "that connect through a published port are sent to %s and the port of the listener, "
            "other containers to the address of this one. Set advertised.listeners if the port is "
            "published under another number, or for other machines",
            ", ".join(sorted(wildcard_listeners)),
            HOST,
        )
    return None if container is None else AttachedNetworks(container, find_container_network)


def find_container_network(
    environment: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> ContainerNetwork | None:
    """The network of the container in which this process runs; None where it runs in none.

    Also None in Kubernetes, with the network of the host, and where the routes cannot be read.
    """
    if "KUBERNETES_SERVICE_HOST" in environment or not _is_container(root):
        return None
    if _has_a_real_interface(root):
        return None
    try:
        routes = list(_routes((root / "proc/net/route").read_text()))
    except (OSError, ValueError):
        return None
    networks = tuple(network for network, gateway in routes if network.prefixlen and not gateway)
    gateways = frozenset(gateway for _, gateway in routes if gateway)
    return ContainerNetwork(networks, gateways) if networks else None


def _is_container(root: Path) -> bool:
    if any((root / name).exists() for name in _MARKER_FILES):
        return True
    try:
        text = (root / "proc/self/cgroup").read_text()
    except OSError:
        return False
    return any(name in text for name in _CGROUP_NAMES)


def _has_a_real_interface(root: Path) -> bool:
    """Whether the network is the host's: the interfaces of a container have no device."""
    try:
        return any((each / "device").exists() for each in (root / "sys/class/net").iterdir())
    except OSError:
        return False


def _routes(text: str) -> Iterator[tuple[ipaddress.IPv4Network, ipaddress.IPv4Address | None]]:
    """(destination, gateway or None) of each line of /proc/net/route. Raises ValueError."""
    import ipaddress

    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8:
            raise ValueError(line)
        destination, gateway, mask = (_address(fields[index]) for index in (1, 2, 7))
        yield (
            ipaddress.IPv4Network((int(destination), int(mask).bit_count())),
            gateway if int(gateway) else None,
        )


def _address(text: str) -> ipaddress.IPv4Address:
    """An address as the kernel prints it: hexadecimal, in the byte order of the processor."""
    import ipaddress

    return ipaddress.IPv4Address(int(text, 16).to_bytes(4, sys.byteorder))


def _ipv4(text: str) -> ipaddress.IPv4Address | None:
    """The IPv4 address, also of one that is mapped to IPv6; None for any other."""
    import ipaddress

    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else address
