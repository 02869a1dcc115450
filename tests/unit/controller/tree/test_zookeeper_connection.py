"""An ensemble whose members do not all work: the session lives on those that do."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ottla.controller.tree import zookeeper_connection
from ottla.controller.tree.store import (
    SESSION_CONNECTED,
    SESSION_SUSPENDED,
    ConnectionLost,
    NotPermitted,
    StoreError,
    ZooKeeperUnreachable,
)
from ottla.controller.tree.zookeeper_store import ZooKeeperStore
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually_async
from tests.doubles.scripted_zookeeper import (
    AUTH_FAILED,
    REQUIRES_SASL,
    UNIMPLEMENTED,
    DroppedSyns,
    ScriptedServer,
    closes_during_login,
    never_responds,
    refuses,
    responds,
)
from tests.doubles.tcp_proxy import TcpProxy
from tests.doubles.zookeeper_process import ZooKeeperProcess, start_zookeeper

pytestmark = pytest.mark.zookeeper

STARTS = 6
"""Hosts are tried in a random order: with fewer the bad one may never be the first."""
LOGIN = [("digest", "broker:secret")]


@pytest.fixture
async def proxy(zookeeper: ZooKeeperProcess) -> AsyncIterator[TcpProxy]:
    made = TcpProxy(zookeeper.port)
    await made.start()
    yield made
    await made.stop()


async def opened(connect: str, **options: Any) -> ZooKeeperStore:
    store = ZooKeeperStore(connect, **options)
    await store.connect()
    return store


async def all_start(connect: str, **options: Any) -> None:
    stores = await asyncio.gather(*(opened(connect, **options) for _ in range(STARTS)))
    for store in stores:
        assert await store.exists("/") is not None
        await store.close()


async def test_host_that_drops_syns_costs_its_share_of_the_timeout(
    zookeeper: ZooKeeperProcess,
) -> None:
    with DroppedSyns() as dropped:
        await all_start(f"{dropped},{zookeeper.connect}", connection_timeout_ms=3_000)


async def test_host_that_accepts_and_is_silent_costs_its_share_of_the_timeout(
    zookeeper: ZooKeeperProcess,
) -> None:
    async with ScriptedServer(never_responds) as silent:
        connect = f"{silent.connect},{zookeeper.connect}"
        await all_start(connect, session_timeout_ms=3_000)


async def test_a_handshake_that_hangs_costs_its_share_of_the_timeout(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    async with ScriptedServer(never_responds) as silent, TlsProxy(zookeeper, certificates) as tls:
        await all_start(
            f"{silent.connect},{tls.connect}",
            session_timeout_ms=3_000,
            tls=certificates.client_context,
        )


async def test_session_outlives_a_host_that_drops_syns(
    zookeeper: ZooKeeperProcess, proxy: TcpProxy
) -> None:
    with DroppedSyns() as dropped:
        store = await opened(f"{dropped},127.0.0.1:{proxy.port}", session_timeout_ms=4_000)
        session = store.session_id
        for _ in range(3):
            proxy.cut()
            await eventually_async(lambda: not store.session._connected)
            proxy.heal()
            assert await store.exists("/") is not None
        assert store.session_id == session
        await store.close()


async def test_a_member_that_hangs_under_requests_does_not_cost_the_session(
    zookeeper: ZooKeeperProcess, proxy: TcpProxy
) -> None:
    other = TcpProxy(zookeeper.port)
    await other.start()
    store = await opened(f"127.0.0.1:{proxy.port},127.0.0.1:{other.port}", session_timeout_ms=3_000)
    session = store.session_id
    own = await store.create(f"/own-{time.time_ns()}", ephemeral=True)
    notified: list[str] = []
    store.on_session(notified.append)
    hanging = proxy if proxy._writers else other
    hanging.swallow_responses()
    while SESSION_CONNECTED not in notified:
        try:
            async with asyncio.timeout(0.1):
                await store.set(own, b"x")
        except (TimeoutError, ConnectionLost):
            continue
    assert notified == [SESSION_SUSPENDED, SESSION_CONNECTED]
    assert store.session_id == session
    assert await store.exists(own) is not None
    await store.close()
    await other.stop()


@pytest.mark.parametrize("error", [AUTH_FAILED, REQUIRES_SASL])
async def test_member_that_refuses_the_login_is_not_the_ensemble(
    zookeeper: ZooKeeperProcess, error: int
) -> None:
    async with ScriptedServer(refuses(error)) as refusing:
        await all_start(f"{refusing.connect},{zookeeper.connect}", credentials=LOGIN)


@pytest.mark.parametrize("error", [AUTH_FAILED, REQUIRES_SASL])
@pytest.mark.parametrize("login", [LOGIN, []])
async def test_login_that_all_refuse_is_named(error: int, login: list[tuple[str, str]]) -> None:
    async with ScriptedServer(refuses(error)) as refusing:
        with pytest.raises(NotPermitted, match=r"credentials|SASL"):
            await opened(refusing.connect, credentials=login)


async def test_server_that_is_too_old_is_named_at_the_start() -> None:
    async with ScriptedServer(refuses(UNIMPLEMENTED)) as old:
        store = ZooKeeperStore(old.connect)
        with pytest.raises(StoreError, match=r"it is older than ZooKeeper 3\.4\.14, or a"):
            await store.connect()
        with pytest.raises(ConnectionLost, match="not connected"):
            store.session.kazoo()


async def test_refusal_after_a_good_connection_is_a_lost_connection(
    zookeeper: ZooKeeperProcess, proxy: TcpProxy, caplog: pytest.LogCaptureFixture
) -> None:
    store = await opened(f"127.0.0.1:{proxy.port}", credentials=LOGIN, session_timeout_ms=20_000)
    session = store.session_id
    notified: list[str] = []
    store.on_session(notified.append)
    async with ScriptedServer(refuses(AUTH_FAILED)) as refusing:
        good, proxy._target_port = proxy._target_port, int(refusing.connect.rpartition(":")[2])
        proxy.cut()
        proxy.heal()
        await eventually_async(lambda: refusing.connections >= 3)
        proxy._target_port = good
        assert await store.exists("/") is not None
    assert store.session_id == session
    assert notified == [SESSION_SUSPENDED, SESSION_CONNECTED]  # not once for each refusal
    told = [each.message for each in caplog.records if each.name == "ottla.zookeeper"]
    assert len(told) == 1
    assert "refused the credentials" in told[0]
    await store.close()


async def test_connection_that_is_lost_during_the_login_is_no_refusal(
    zookeeper: ZooKeeperProcess, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("puresasl", reason="SASL to ZooKeeper needs the package pure-sasl")
    sasl = {"mechanism": "DIGEST-MD5", "username": "broker", "password": "secret"}
    async with ScriptedServer(closes_during_login) as closing:
        with pytest.raises(ZooKeeperUnreachable, match="closed the connection during the SASL log"):
            await opened(closing.connect, sasl=sasl, connection_timeout_ms=1_500)
        assert closing.connections > 1
    told = [each.message for each in caplog.records if each.name == "ottla.zookeeper"]
    assert len(told) == 1


JAAS = """Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_broker="%s";
};
"""


async def test_server_with_the_wrong_password_for_a_moment(tmp_path: Path) -> None:
    pytest.importorskip("puresasl", reason="SASL to ZooKeeper needs the package pure-sasl")
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(JAAS % "secret")
    settings = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }
    java = (f"-Djava.security.auth.login.config={jaas}",)
    sasl = {"mechanism": "DIGEST-MD5", "username": "broker", "password": "secret"}
    with start_zookeeper(tmp_path, settings=settings, java=java) as server:
        store = await opened(server.connect, sasl=sasl)
        jaas.write_text(JAAS % "wrong")
        await asyncio.to_thread(server.restart)
        problem = "refused the credentials"
        await eventually_async(lambda: problem in store.session.kazoo().problem)
        jaas.write_text(JAAS % "secret")
        await asyncio.to_thread(server.restart)
        assert await store.exists("/") is not None
        await store.close()


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\1\0", b"\0\0\0\0"])
async def test_other_program_at_a_port_is_passed_by(
    zookeeper: ZooKeeperProcess, data: bytes
) -> None:
    async with ScriptedServer(responds(data)) as other:
        await all_start(f"{other.connect},{zookeeper.connect}", session_timeout_ms=6_000)
        with pytest.raises(ConnectionLost, match=other.connect):
            await opened(other.connect, connection_timeout_ms=500)


async def test_name_server_that_hangs_costs_its_share_of_the_timeout(
    zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    responded = threading.Event()
    resolve = socket.getaddrinfo

    def slow(host: str, *arguments: Any) -> Any:
        if host == "slow.example":
            responded.wait()
        return resolve(host, *arguments)

    monkeypatch.setattr(zookeeper_connection.socket, "getaddrinfo", slow)
    await all_start(f"slow.example:2181,{zookeeper.connect}", connection_timeout_ms=2_000)
    responded.set()


async def test_name_that_moves_is_asked_again(
    zookeeper: ZooKeeperProcess, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo
    ports = [proxy.port]

    def moving(host: str, port: int, *arguments: Any) -> Any:
        if host == "zk.example":
            return resolve("127.0.0.1", ports[-1], *arguments)
        return resolve(host, port, *arguments)

    class Moving(zookeeper_connection.Waits):
        def create_connection(self, address: Any, hostname: str, **rest: Any) -> socket.socket:
            return super().create_connection((address[0], ports[-1]), hostname, **rest)

    monkeypatch.setattr(zookeeper_connection.socket, "getaddrinfo", moving)
    monkeypatch.setattr(zookeeper_connection, "Waits", Moving)
    store = await opened("zk.example:2181", session_timeout_ms=10_000)
    session = store.session_id
    ports.append(zookeeper.port)
    proxy.cut()
    assert await store.exists("/") is not None
    assert store.session_id == session
    await store.close()


async def test_session_timeout_that_the_server_limits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_zookeeper(tmp_path, settings={"maxSessionTimeout": "2000"}) as server:
        store = await opened(server.connect, session_timeout_ms=2_000_000)
        assert "limits the session timeout to 2 s" in caplog.text
        server.pause()
        try:
            with pytest.raises(ConnectionLost):  # not after 2,000 seconds
                await store.get("/")
        finally:
            server.resume()
        await store.close()


async def test_session_timeout_that_the_server_raises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With clocks that jump: only those that do not count the time of a session."""
    with start_zookeeper(tmp_path, settings={"minSessionTimeout": "5000"}) as server:
        store = await opened(server.connect, session_timeout_ms=400)
        session = store.session_id
        assert "limits the session timeout to 5 s, not the 0.4 s" in caplog.text
        notified: list[str] = []
        store.on_session(notified.append)
        now = time.time
        for jump in (86_400, -86_400):
            monkeypatch.setattr(time, "time", lambda: now() + jump)  # noqa: B023
            await asyncio.sleep(1)  # longer than the timeout that was asked for
            assert await store.exists("/") is not None
        assert (store.session_id, notified) == (session, [])
        await store.close()


async def test_idle_connections_that_are_cut_keep_the_session(
    zookeeper: ZooKeeperProcess, proxy: TcpProxy
) -> None:
    store = await opened(f"127.0.0.1:{proxy.port}", session_timeout_ms=10_000)
    session = store.session_id
    notified: list[str] = []
    store.on_session(notified.append)
    for round_ in range(1, 4):
        proxy.cut()
        proxy.heal()
        await eventually_async(lambda: notified.count(SESSION_CONNECTED) == round_)  # noqa: B023
    assert store.session_id == session
    await store.close()


class TlsProxy:
    """Ends TLS before the server, as stunnel does; responses that come together share a record."""

    def __init__(self, zookeeper: ZooKeeperProcess, certificates: Certificates) -> None:
        self._port = zookeeper.port
        self._context = certificates.server_context()

    async def __aenter__(self) -> TlsProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.connect = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._port)

        async def requests() -> None:
            while data := await reader.read(65536):
                forth.write(data)
            forth.close()

        async def responses() -> None:
            while data := await back.read(65536):
                await asyncio.sleep(0.05)
                writer.write(data)
            writer.close()

        try:
            await asyncio.gather(requests(), responses(), return_exceptions=True)
        finally:
            writer.transport.abort()
            forth.transport.abort()


async def test_responses_in_one_record_of_tls(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    async with TlsProxy(zookeeper, certificates) as proxy:
        store = await opened(
            proxy.connect,
            session_timeout_ms=20_000,
            call_timeout_ms=2_000,
            tls=certificates.client_context,
        )
        kazoo = store.session.kazoo
        for _ in range(5):
            # The second response is in the record of the first one, and nothing follows.
            results = await store.session.pipeline(
                [lambda: kazoo().exists_async("/")] * 20, repeat=False
            )
            assert len(results) == 20
        await store.close()


async def test_certificate_that_cannot_be_read_for_a_moment_keeps_the_session(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    asked: list[int] = []

    def context() -> ssl.SSLContext:
        asked.append(1)
        if len(asked) in (2, 3):
            raise ValueError("half written")
        return certificates.client_context()

    async with TlsProxy(zookeeper, certificates) as tls:
        proxy = TcpProxy(int(tls.connect.rpartition(":")[2]))
        await proxy.start()
        store = await opened(f"127.0.0.1:{proxy.port}", session_timeout_ms=20_000, tls=context)
        session = store.session_id
        proxy.cut()
        proxy.heal()
        await eventually_async(lambda: len(asked) >= 4)
        assert await store.exists("/") is not None
        assert store.session_id == session
        await store.close()
        await proxy.stop()


async def test_reason_is_in_the_error(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    for name in ("ours", "others"):
        (tmp_path / name).mkdir()
    ours, others = Certificates(tmp_path / "ours"), Certificates(tmp_path / "others")
    async with TlsProxy(zookeeper, ours) as tls:
        with pytest.raises(ConnectionLost, match="certificate verify failed"):
            await opened(tls.connect, connection_timeout_ms=1_000, tls=others.client_context)
