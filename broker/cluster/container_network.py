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
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ipaddress  # imported by what runs in a container only

logger = logging.getLogger("ottla.broker")

# The host as its own clients name it, with the port published under the same number.
HOST = "localhost"

_MARKER_FILES = (".dockerenv", "run/.containerenv")
_CGROUP_NAMES = ("docker", "containerd", "libpod")


class ContainerNetwork(NamedTuple):
    """The IPv4 networks that a container is attached to, and its default gateways."""

    networks: tuple[ipaddress.IPv4Network, ...]
    gateways: frozenset[ipaddress.IPv4Address]

    def has(self, address: str) -> bool:
        """Whether one of our own addresses is in a known network; not so in one that the container
        was connected to after its start."""
        own = _ipv4(address)
        return own is None or own.is_loopback or any(own in network for network in self.networks)

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


def container_of(wildcard_listeners: Collection[str]) -> ContainerNetwork | None:
    """The network of the container in which this process runs, if it matters to a listener.

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
    return container


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
