from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from ottla.broker.net import listener as delayed_closes
from ottla.broker.net import listener as listener_module
from ottla.broker.net.listener import DelayedCloses, ListenError, SocketSettings, bind
from ottla.broker.quotas.connection_quotas import ConnectionLimits, ListenerLimits
from ottla.protocol.messages.metadata import MetadataResponse
from tests.doubles.manual_timer import ManualTimer
from tests.doubles.network import metadata_request, running_network


def test_a_port_in_use_is_said_in_one_sentence_with_the_fix() -> None:
    with bind("PLAINTEXT", "127.0.0.1", 0, SocketSettings()) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError) as caught:
            bind("EXTERNAL", "127.0.0.1", port, SocketSettings())
    assert str(caught.value) == (
        f"Listener EXTERNAL cannot listen on 127.0.0.1:{port}: another process uses that port; "
        "stop it (find it with `ss -ltnp`) or choose another port in `listeners`."
    )


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("192.0.2.1", "this machine does not have that address"),
        ("no-such-host.invalid", "cannot use the address no-such-host.invalid:9092"),
    ],
)
def test_a_wrong_host_is_named(host: str, words: str) -> None:
    with pytest.raises(ListenError, match=words):
        bind("PLAINTEXT", host, 9092, SocketSettings())


def test_no_right_to_a_low_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def bind(self, _: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(ListenError, match="ports below 1024 need special rights"):
        bind("PLAINTEXT", "127.0.0.1", 92, SocketSettings())


def test_socket_settings_are_applied() -> None:
    settings = SocketSettings(receive_buffer_bytes=50_000)
    with bind("PLAINTEXT", "127.0.0.1", 0, settings) as sock:
        # Linux doubles what it is given, for its own book-keeping.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 100_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert not sock.getblocking()


@pytest.mark.parametrize("host", ["::1", "", "::"])
async def test_ipv6_and_all_addresses(host: str) -> None:
    with bind("PLAINTEXT", host, 0, SocketSettings()) as sock:
        assert sock.family == socket.AF_INET6
        port = sock.getsockname()[1]
        with socket.create_connection(("::1", port)):
            pass
        if host != "::1":
            with socket.create_connection(("127.0.0.1", port)):
                pass


async def test_an_ipv6_socket_has_ipv4_addresses_for_ipv4_clients() -> None:
    """Of the client, and its own, which Metadata returns for a listener without a host."""
    async with running_network() as network:
        port = network.server.add_listener("ALL", "", 0)
        network.server.listeners["ALL"].start()
        with socket.create_connection(("127.0.0.1", port)):
            await network.until(lambda: len(network.server.connections) == 1)
            assert network.server.connections[0].client_host == "127.0.0.1"
            assert network.server.connections[0].local_address == ("127.0.0.1", port)


async def test_sockets_of_clients_are_set_up() -> None:
    sockets = SocketSettings(send_buffer_bytes=30_000, backlog=128)
    async with running_network(sockets=sockets) as network:
        await network.connect()
        await network.until(lambda: len(network.server.connections) == 1)
        sock = network.server.connections[0]._sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60_000


async def test_an_address_with_too_many_connections_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_network(limits=ConnectionLimits(max_per_ip=2)) as network:
        kept = [await network.connect() for _ in range(2)]
        for _ in range(3):
            assert await (await network.connect()).is_closed()
        assert network.statistics.connections_refused == 3
        assert [r.getMessage() for r in caplog.records] == [
            "listener PLAINTEXT refused a connection: 127.0.0.1 has 2 connections already, as "
            "many as it may (max.connections.per.ip)"
        ]
        await kept.pop().close()
        await network.until(lambda: len(network.server.connections) == 1)
        again = await network.connect()
        assert await again.ask(metadata_request()) == MetadataResponse()


async def test_a_connection_over_the_rate_of_its_address_is_closed_later() -> None:
    limits = ConnectionLimits(window_count=1, window_ms=3_600_000)
    limits.set_default_ip_creation_rate(0)  # one, and none for an hour
    async with running_network(limits=limits) as network:
        first, second = await network.connect(), await network.connect()
        assert await first.ask(metadata_request()) == MetadataResponse()
        await network.until(lambda: network.statistics.connections_refused == 1)
        listener = network.server.listeners["PLAINTEXT"]
        assert len(listener._delayed_closes) == 1
        listener.close()
        assert await second.is_closed()


async def test_a_full_listener_lets_newcomers_wait() -> None:
    async with running_network(listener_limits=ListenerLimits(max_connections=1)) as network:
        first, second = await network.connect(), await network.connect()
        assert await first.ask(metadata_request()) == MetadataResponse()
        second.send(metadata_request())
        await asyncio.sleep(0.02)
        assert network.statistics.connections_accepted == 1
        await first.close()
        assert (await second.receive())[1] == MetadataResponse()


async def test_a_rate_limit_lets_newcomers_wait() -> None:
    limits = ConnectionLimits(max_creation_rate=10, window_count=2, window_ms=100)
    async with running_network(limits=limits) as network:
        clients = [await network.connect() for _ in range(4)]
        responses = await asyncio.gather(*(client.ask(metadata_request()) for client in clients))
        assert responses == [MetadataResponse()] * 4
        assert network.statistics.connections_refused == 0


async def test_out_of_descriptors_the_listener_pauses_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "EXHAUSTED_PAUSE_MS", 5)
    async with running_network() as network:
        listener = network.server.listeners["PLAINTEXT"]
        inner = listener._sock
        failures = 3

        class Exhausted:
            def accept(self) -> object:
                nonlocal failures
                failures -= 1
                if failures < 0:
                    return inner.accept()
                raise OSError(errno.EMFILE, "Too many open files")

            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

        listener._sock = Exhausted()
        client = await network.connect()
        assert await client.ask(metadata_request()) == MetadataResponse()
        assert failures < 0
        (record,) = caplog.records
        assert "ulimit -n" in record.getMessage()


def refused() -> socket.socket:
    return socket.socket()


def is_open(sock: socket.socket) -> bool:
    return sock.fileno() >= 0


def test_a_connection_stays_open_until_its_time() -> None:
    timer = ManualTimer()
    closes = DelayedCloses(timer)
    now, later = refused(), refused()
    closes.close(now, 0)
    closes.close(later, 100)
    assert (is_open(now), is_open(later), len(closes)) == (False, True, 1)
    timer.advance(99)
    assert is_open(later)
    timer.advance(1)
    assert (is_open(later), len(closes)) == (False, 0)


def test_too_many_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_closes, "MAX_DELAYED", 1)
    timer = ManualTimer()
    closes = DelayedCloses(timer)
    first, second = refused(), refused()
    closes.close(first, 100)
    closes.close(second, 100)
    assert (is_open(first), is_open(second)) == (True, False)
    closes.close_all()
    assert not is_open(first)
    timer.advance(100)  # what was closed before is not closed again
    assert len(closes) == 0
