"""Probes get their response however many clients keep connections to the HTTP port."""

from __future__ import annotations

import resource
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ottla.cli.zookeeper_server import free_port
from tests.doubles.broker_process import BrokerProcess
from tests.hostile.test_descriptors import DESCRIPTORS

PROBES = ("/healthz", "/livez", "/readyz")
SECONDS = 60.0
SLOW_HEADER = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, int]]:
    """A broker with few descriptors, and its HTTP port."""
    http_port = free_port()
    settings = {
        "ottla.metrics.address": f"127.0.0.1:{http_port}",
        "offsets.topic.num.partitions": "1",
    }
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), settings)
    process.max_descriptors = DESCRIPTORS
    process.start()
    try:
        yield process, http_port
    finally:
        if process.is_running:
            process.kill()


@pytest.fixture(autouse=True)
def _enough_descriptors() -> Iterator[None]:
    """The test has the other end of a thousand sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 2048 if hard == resource.RLIM_INFINITY else min(2048, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def probe(http_port: int) -> None:
    for path in PROBES:
        url = f"http://127.0.0.1:{http_port}{path}"
        try:
            response = urllib.request.urlopen(url, timeout=SECONDS)
        except urllib.error.HTTPError as error:
            response = error  # its text says why
        with response:
            # Warnings may follow: few descriptors are left.
            assert (path, response.status, response.readline()) == (path, 200, b"ok\n")


@pytest.mark.parametrize("first_bytes", [b"", SLOW_HEADER], ids=["idle", "slow header"])
@pytest.mark.parametrize("count", [16, 1000])
def test_probes_are_served_beside_idle_sockets(
    broker: tuple[BrokerProcess, int], count: int, first_bytes: bytes
) -> None:
    process, http_port = broker
    with ExitStack() as stack:
        opened = []
        for number in range(count):
            sock = socket.create_connection(("127.0.0.1", http_port), SECONDS)
            opened.append(stack.enter_context(sock))
            with suppress(ConnectionError):
                sock.sendall(first_bytes)
            if number % 100 == 0:
                probe(http_port)
        if first_bytes:
            for sock in opened:
                with suppress(ConnectionError):  # the broker closed the oldest
                    sock.sendall(b"x")
        probe(http_port)
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < DESCRIPTORS
    assert not process.has_ended()


def test_probes_are_served_when_both_ports_have_idle_sockets(
    broker: tuple[BrokerProcess, int],
) -> None:
    process, http_port = broker
    with ExitStack() as stack:
        for _ in range(DESCRIPTORS):
            for port in (process.port, http_port):
                with suppress(OSError):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS))
        for _ in range(300):  # while the broker accepts the last ones, too
            probe(http_port)
    assert not process.has_ended()
