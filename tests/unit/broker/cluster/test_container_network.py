from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ottla.broker.cluster import container_network
from ottla.broker.cluster.container_network import (
    REREAD_SECONDS,
    AttachedNetworks,
    ContainerNetwork,
    container_of,
    find_container_network,
)

# A container on Docker's default bridge, 172.17.0.0/16, and on a network of Compose, 172.20.0.0/16.
ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
eth1\t000014AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
OURS = "172.17.0.2"


def machine(
    root: Path, marker: str = "", cgroup: str = "0::/\n", routes: str = ROUTES, device: bool = False
) -> Path:
    """The files of a system that tell whether a process is in a container."""
    for name, text in {"proc/self/cgroup": cgroup, "proc/net/route": routes, marker: ""}.items():
        if name:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    (root / "sys/class/net/eth0").mkdir(parents=True)
    (root / "sys/class/net/lo").mkdir()
    if device:
        (root / "sys/class/net/eth0/device").touch()
    return root


def found(root: Path) -> ContainerNetwork:
    network = find_container_network({}, root)
    assert network is not None
    return network


@pytest.mark.parametrize(
    ("marker", "cgroup"),
    [
        (".dockerenv", "0::/\n"),
        ("run/.containerenv", "0::/\n"),
        ("", "12:pids:/docker/4f3c\n"),
        ("", "0::/system.slice/containerd.service\n"),
        ("", "0::/machine.slice/libpod-4f3c.scope\n"),
    ],
)
def test_containers(tmp_path: Path, marker: str, cgroup: str) -> None:
    network = found(machine(tmp_path, marker, cgroup))
    assert [str(each) for each in network.networks] == ["172.17.0.0/16", "172.20.0.0/16"]
    assert [str(each) for each in network.gateways] == ["172.17.0.1"]


def test_no_container(tmp_path: Path) -> None:
    assert find_container_network({}, machine(tmp_path)) is None
    assert find_container_network({}, tmp_path / "nothing") is None


def test_kubernetes_and_the_network_of_the_host(tmp_path: Path) -> None:
    docker = machine(tmp_path / "docker", ".dockerenv")
    assert find_container_network({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, docker) is None
    host = machine(tmp_path / "host", ".dockerenv", device=True)
    assert find_container_network({}, host) is None


@pytest.mark.parametrize("routes", ["Iface\n", "Iface\neth0\n", "Iface\ne x y 0 0 0 0 z\n"])
def test_routes_that_cannot_be_read(tmp_path: Path, routes: str) -> None:
    assert find_container_network({}, machine(tmp_path, ".dockerenv", routes=routes)) is None


@pytest.mark.parametrize(
    ("client", "outside"),
    [
        ("172.17.0.1", True),  # the gateway: the engine, for a published port
        ("192.168.65.1", True),  # Docker Desktop's virtual machine
        (OURS, True),  # Podman without root
        ("::ffff:172.17.0.1", True),
        ("172.17.0.3", False),  # another container
        ("172.20.0.7", False),  # one of the second network
        ("127.0.0.1", False),  # the health check in this container
        ("::1", False),
        ("fd00::2", False),
        ("not an address", False),
    ],
)
def test_which_clients_come_through_a_published_port(
    tmp_path: Path, client: str, outside: bool
) -> None:
    assert found(machine(tmp_path, ".dockerenv")).is_from_outside(client, OURS) is outside


def test_a_network_that_is_connected_later_is_known(tmp_path: Path) -> None:
    """`docker network connect` on a container that runs."""
    root = machine(tmp_path, ".dockerenv")
    now = [0.0]
    networks = AttachedNetworks(
        found(root), lambda: find_container_network({}, root), lambda: now[0]
    )
    client, local = "10.89.0.7", "10.89.0.2"
    assert networks.is_from_outside(client, local)
    later = ROUTES.replace("010011AC", "0100590A")  # the default gateway moves, too
    (root / "proc/net/route").write_text(
        f"{later}eth2\t0000590A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    )
    now[0] = REREAD_SECONDS
    assert not networks.is_from_outside(client, local)
    assert networks.is_from_outside("10.89.0.1", local)
    assert networks.is_from_outside("172.17.0.1", OURS)  # its ports are published as before
    (root / "proc/net/route").write_text("damaged")
    now[0] *= 2
    assert not networks.is_from_outside(client, local)


def test_the_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = found(machine(tmp_path, ".dockerenv"))
    monkeypatch.setattr(container_network, "find_container_network", lambda: network)
    caplog.set_level(logging.INFO, "ottla")
    assert container_of([]) is None
    assert not caplog.messages
    networks = container_of(["PLAINTEXT"])
    assert networks is not None
    assert networks.is_from_outside("172.17.0.1", OURS)
    [line] = caplog.messages
    assert "advertised.listeners is not set: clients of PLAINTEXT that connect" in line
    assert "are sent to localhost" in line
