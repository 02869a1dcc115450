"""The store on a real ZooKeeper: outages, credentials, encryption, old servers."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import uvloop
from kazoo.exceptions import ConnectionLoss

from ottla.cli.zookeeper_server import free_port
from ottla.controller.tree import zookeeper_session
from ottla.controller.tree import zookeeper_store as zookeeper_multi_read
from ottla.controller.tree.store import (
    CHANGED,
    REARMED,
    SESSION_CONNECTED,
    SESSION_EXPIRED,
    SESSION_SUSPENDED,
    CheckOp,
    ConnectionLost,
    CreateOp,
    DeleteOp,
    NoNode,
    NotPermitted,
    SetOp,
    TooLarge,
    WatchEvent,
)
from ottla.controller.tree.zookeeper_connection import Connection
from ottla.controller.tree.zookeeper_session import (
    MAX_IN_FLIGHT,
    AsyncResult,
    split_connect,
)
from ottla.controller.tree.zookeeper_store import ZooKeeperStore
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually_async
from tests.doubles.tcp_proxy import TcpProxy
from tests.doubles.znode_ensembles import ZooKeeperEnsemble
from tests.doubles.zookeeper_process import (
    ZooKeeperProcess,
    start_ottla_zookeeper,
    start_zookeeper,
    tls_settings,
)

if TYPE_CHECKING:
    from kazoo.client import KazooClient

import struct

from ottla.controller.tree.zookeeper_store import NO_NODE, MultiRead, read_stat

pytestmark = pytest.mark.zookeeper

# Session, create, delete, exists, get and set data, children (8, 12), ping, check, multi, close.
REQUESTS_OF_3_4 = (0, None, 1, 2, 3, 4, 5, 8, 11, 12, 13, 14, -11)


@pytest.fixture(params=["zookeeper", "ottla zookeeper"])
def zookeeper(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperProcess, ottla_zookeeper: ZooKeeperProcess
) -> ZooKeeperProcess:
    """Apache ZooKeeper and the server without Java behave alike."""
    return zookeeper if request.param == "zookeeper" else ottla_zookeeper


@pytest.fixture
async def ensemble(zookeeper: ZooKeeperProcess) -> AsyncIterator[ZooKeeperEnsemble]:
    made = ZooKeeperEnsemble(zookeeper)
    yield made
    await made.close()


@pytest.fixture(scope="module", params=[start_zookeeper, start_ottla_zookeeper])
def own_zookeeper(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperProcess]:
    """A server that a test may stop and pause, and leaves running."""
    with request.param(tmp_path_factory.mktemp("own-zookeeper")) as process:
        yield process


@pytest.fixture
async def proxy(zookeeper: ZooKeeperProcess) -> AsyncIterator[TcpProxy]:
    """A way to the server that can be cut."""
    made = TcpProxy(zookeeper.port)
    await made.start()
    yield made
    await made.stop()


async def opened(connect: str, **options: object) -> ZooKeeperStore:
    store = ZooKeeperStore(connect, **options)  # type: ignore[arg-type] # as the caller wrote them
    await store.connect()
    return store


@pytest.mark.parametrize(
    ("connect", "hosts", "path"),
    [
        ("h:2181", "h:2181", ""),
        ("h1:1,h2:2/kafka", "h1:1,h2:2", "/kafka"),
        ("h:1/a/b/", "h:1", "/a/b"),
        ("h:1/", "h:1", ""),
        (" h1:1 , h2:2 /a", "h1:1,h2:2", "/a"),
        (",h1:1,,h2:2,", "h1:1,h2:2", ""),
        ("h:1,/a", "h:1", "/a"),
        ("h:1//a//b", "h:1", "/a/b"),
        ("[::1]:1,h/a b/\u00fc ", "[::1]:1,h", "/a b/\u00fc"),
        ("h:1/a,b", "h:1", "/a,b"),
    ],
)
def test_hosts_and_path(connect: str, hosts: str, path: str) -> None:
    assert split_connect(connect) == (hosts, path)


@pytest.mark.parametrize(
    ("connect", "named"),
    [
        *(("", "no host"), (" , ,/a", "no host"), ("/a", "no host")),
        *(("h:1a", "'h:1a'"), ("h:99999", "'h:99999'"), ("h:0", "'h:0'"), ("h:-1", "'h:-1'")),
        *(("h 1:2", "'h 1:2'"), (":2181", "':2181'"), ("[::1:2181", r"'\[::1:2181'")),
        *(("h:1/a/../b", "a part"), ("h:1/.", "a part"), ("u@h:1", "'u@h:1'")),
    ],
)
def test_what_names_no_server_is_refused_with_a_sentence(connect: str, named: str) -> None:
    with pytest.raises(ValueError, match=named) as wrong:
        split_connect(connect)
    assert "zookeeper.connect" in str(wrong.value)


async def test_path_is_made_and_kept_apart(zookeeper: ZooKeeperProcess) -> None:
    inside = await opened(f"{zookeeper.connect}/chroot-{time.time_ns()}/deep")
    outside = await opened(zookeeper.connect)
    await inside.create("/n", b"x")
    made = await inside.multi([CreateOp("/s_", sequential=True)])
    assert made == ["/s_0000000001"]
    assert (await outside.get(f"{inside.session.chroot}/n"))[0] == b"x"
    await inside.close()
    await outside.close()


async def test_no_server_there() -> None:
    store = ZooKeeperStore(f"127.0.0.1:{free_port()}", connection_timeout_ms=300)
    with pytest.raises(ConnectionLost, match=r"within 300 ms.*zookeeper\.connect"):
        await store.connect()
    with pytest.raises(ConnectionLost):
        await store.get("/")


async def test_one_dead_server_among_several(zookeeper: ZooKeeperProcess) -> None:
    store = await opened(f"127.0.0.1:{free_port()},{zookeeper.connect}")
    assert await store.exists("/") is not None
    await store.close()


async def test_outage_is_waited_out_without_blocking_the_loop(
    own_zookeeper: ZooKeeperProcess,
) -> None:
    # A busy machine takes many seconds to start the server again.
    store = await opened(own_zookeeper.connect, session_timeout_ms=40_000)
    notified: list[str] = []
    store.on_session(notified.append)
    await store.create("/a", b"x")
    session = store.session_id
    await asyncio.to_thread(own_zookeeper.stop)
    await eventually_async(lambda: notified == [SESSION_SUSPENDED])
    calls = asyncio.gather(store.get("/a"), store.create("/b"), store.get_many(["/a"] * 300))
    turns = 0
    while turns < 50:  # the loop goes round while they wait
        await asyncio.sleep(0)
        turns += 1
    assert not calls.done()
    await asyncio.to_thread(own_zookeeper.start)
    (data, _), made, many = await calls
    assert (data, made, len(many)) == (b"x", "/b", 300)
    assert store.session_id == session
    assert notified[-1] == SESSION_CONNECTED
    await store.close()


async def test_calls_give_up_in_time(
    own_zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(own_zookeeper.connect, session_timeout_ms=60_000)
    await store.create("/paused")
    usual_ms = store.session._call_timeout_ms
    monkeypatch.setattr(store.session, "_call_timeout_ms", 200)
    own_zookeeper.pause()
    try:
        for call in (
            store.get("/paused"),
            store.set("/paused", b""),
            store.get_many(["/paused", "/b"]),
            store.multi([SetOp("/paused", b"")]),
            store.multi_many([[SetOp("/paused", b"")]] * (MAX_IN_FLIGHT * 2)),
            store.watch_data("/paused", lambda _: None),
        ):
            with pytest.raises(ConnectionLost):
                await call
    finally:
        own_zookeeper.resume()
    monkeypatch.setattr(store.session, "_call_timeout_ms", usual_ms)
    await eventually_async(lambda: store.session._in_flight == 0)  # what was in flight is completed
    assert await store.exists("/paused") is not None
    await store.close()


async def test_write_whose_response_was_lost_is_not_sent_again(
    zookeeper: ZooKeeperProcess, proxy: TcpProxy
) -> None:
    store = await opened(f"127.0.0.1:{proxy.port}", session_timeout_ms=10_000)
    path = f"/lost-{time.time_ns()}"
    await store.create(path)
    proxy.swallow_responses()
    write = asyncio.ensure_future(store.set(path, b"once"))  # noqa: TID251 - a caller of its own
    other = await opened(zookeeper.connect)
    for _ in range(1000):
        if (await other.get(path))[1].version == 1:
            break
    proxy.cut()
    with pytest.raises(ConnectionLost):
        await write
    proxy.heal()
    assert (await store.get(path))[1].version == 1  # a read is repeated until it succeeds
    await other.close()
    await store.close()


@pytest.mark.parametrize("in_a_pipeline", [False, True])
async def test_loss_that_is_reported_after_the_reconnection_does_not_cost_the_new_connection(
    zookeeper: ZooKeeperProcess, proxy: TcpProxy, in_a_pipeline: bool
) -> None:
    """kazoo reports states and results from two threads, so either may be first."""
    store = await opened(f"127.0.0.1:{proxy.port}", session_timeout_ms=10_000)
    notified: list[str] = []
    store.on_session(notified.append)
    session = store.session
    late: list[AsyncResult] = []

    def start() -> AsyncResult:
        client = session.kazoo()
        if late:
            return client.exists_async("/")
        late.append(client.handler.async_result())
        return late[0]

    if in_a_pipeline:
        call = asyncio.ensure_future(session.pipeline([start], repeat=True))  # noqa: TID251
    else:
        call = asyncio.ensure_future(session.request("/", start, repeat=True))  # noqa: TID251
    await eventually_async(lambda: bool(late))
    proxy.cut()
    await eventually_async(lambda: notified == [SESSION_SUSPENDED])
    proxy.heal()
    await eventually_async(lambda: notified == [SESSION_SUSPENDED, SESSION_CONNECTED])
    late[0].set_exception(ConnectionLoss())
    await call
    await store.close()


async def test_data_that_the_server_does_not_take_is_no_lost_connection(
    ensemble: ZooKeeperEnsemble,
) -> None:
    store = await ensemble.open()
    await store.create("/a")
    for write in (
        store.set("/a", b"x" * 1_100_000),
        store.multi([SetOp("/a", b"x" * 600_000), SetOp("/a", b"x" * 600_000)]),
    ):
        with pytest.raises(TooLarge, match=r"1[12]00000 bytes for /a.*jute\.maxbuffer"):
            await write
    await store.set("/a", b"x")
    assert (await store.get("/a"))[0] == b"x"


async def test_watches_tell_what_happened_during_an_outage(
    zookeeper: ZooKeeperProcess, proxy: TcpProxy
) -> None:
    store = await opened(f"127.0.0.1:{proxy.port}", session_timeout_ms=10_000)
    writer = await opened(zookeeper.connect)
    root = f"/watched-{time.time_ns()}"
    await writer.multi([CreateOp(root), CreateOp(f"{root}/a"), CreateOp(f"{root}/b")])
    changed: list[WatchEvent] = []
    unchanged: list[WatchEvent] = []
    children: list[WatchEvent] = []
    await store.watch_data(f"{root}/a", changed.append)
    await store.watch_data(f"{root}/b", unchanged.append)
    await store.watch_children(root, children.append)
    notified: list[str] = []
    store.on_session(notified.append)
    proxy.cut()
    await eventually_async(lambda: notified == [SESSION_SUSPENDED])
    await writer.set(f"{root}/a", b"x")
    await writer.create(f"{root}/c")
    proxy.heal()
    await eventually_async(lambda: bool(changed and children))
    assert changed == [WatchEvent(REARMED, f"{root}/a")]
    assert children == [WatchEvent(REARMED, root)]
    await writer.set(f"{root}/b", b"x")  # and they stand again
    await eventually_async(lambda: bool(unchanged))
    assert unchanged == [WatchEvent(CHANGED, f"{root}/b")]
    await writer.close()
    await store.close()


async def test_server_that_cannot_read_many_at_once(
    ensemble: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_multi_read.MultiRead, "type", 999)  # as unknown to it
    store = await ensemble.open()
    await store.create("/a", b"x")
    for _ in range(2):
        found = await store.get_many(["/a", "/none"])
        assert [None if node is None else node[0] for node in found] == [b"x", None]


async def test_no_request_but_one_is_newer_than_zookeeper_3_4(
    ensemble: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one is multiRead, which has a substitute."""
    sent: set[int] = set()
    submit = Connection._submit

    def note(self: Connection, request: Any, *rest: Any) -> None:
        sent.add(request.type)
        submit(self, request, *rest)

    monkeypatch.setattr(Connection, "_submit", note)
    store = await ensemble.open()
    await store.create("/a/b", make_parents=True)
    await store.multi([CreateOp("/a/c"), SetOp("/a", b"x"), CheckOp("/a", 1), DeleteOp("/a/c")])
    await store.set("/a", b"y")
    await store.get("/a")
    await store.get_many(["/a", "/a/b"])
    await store.watch_data("/a", lambda _: None)
    await store.watch_children("/a", lambda _: None)
    await store.delete("/a/b")
    await store.close()
    assert sent - {MultiRead.type} <= set(REQUESTS_OF_3_4)


async def test_reading_many_at_once_is_reading_each(ensemble: ZooKeeperEnsemble) -> None:
    store = await ensemble.open()
    assert isinstance(store, ZooKeeperStore)
    paths = []
    for number in range(250):
        await store.create(f"/n{number}", b"\x00" * number)
        paths += [f"/n{number}", f"/none{number}"]
    at_once = await store.get_many(paths)
    store._multi_read = False
    assert await store.get_many(paths) == at_once


# Credentials


async def test_nodes_of_a_secured_broker(zookeeper: ZooKeeperProcess) -> None:
    root = f"/secured-{time.time_ns()}"
    plain = await opened(zookeeper.connect)
    await plain.create(root)
    broker = await opened(
        zookeeper.connect + root, credentials=[("digest", "broker:secret")], set_acl=True
    )
    unauthenticated = await opened(zookeeper.connect + root)
    await broker.create("/brokers/topics/t", b"x", make_parents=True)
    await broker.create("/config/users/u", b"secret", make_parents=True)
    await broker.create("/consumers")
    assert (await unauthenticated.get("/brokers/topics/t"))[0] == b"x"
    await unauthenticated.create("/consumers/group")
    for call in (
        unauthenticated.set("/brokers/topics/t", b"y"),
        unauthenticated.create("/brokers/topics/u"),
        unauthenticated.get("/config/users/u"),
        unauthenticated.get_many(["/brokers/topics/t", "/config/users/u"]),
        unauthenticated.multi([SetOp("/brokers/topics/t", b"y")]),
    ):
        with pytest.raises(NotPermitted, match=r"denied"):
            await call
    again = await opened(zookeeper.connect + root, credentials=[("digest", "broker:secret")])
    await again.set("/brokers/topics/t", b"y")
    assert (await again.get("/config/users/u"))[0] == b"secret"
    for store in (plain, broker, unauthenticated, again):
        await store.close()


JAAS = """Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_broker="secret";
};
"""


@pytest.mark.skipif(
    importlib.util.find_spec("puresasl") is None,
    reason="SASL to ZooKeeper needs the package pure-sasl",
)
async def test_sasl(tmp_path: Path) -> None:
    (tmp_path / "jaas.conf").write_text(JAAS)
    settings = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }
    java = (f"-Djava.security.auth.login.config={tmp_path / 'jaas.conf'}",)
    sasl = {"mechanism": "DIGEST-MD5", "username": "broker", "password": "secret"}
    with start_zookeeper(tmp_path, settings=settings, java=java) as server:
        store = await opened(server.connect, sasl=sasl, set_acl=True)
        await store.create("/config/users/u", b"secret", make_parents=True)
        assert (await store.get("/config/users/u"))[0] == b"secret"
        await store.close()
        wrong = ZooKeeperStore(
            server.connect, sasl={**sasl, "password": "wrong"}, connection_timeout_ms=2_000
        )
        with pytest.raises(NotPermitted, match="credentials"):
            await wrong.connect()


async def test_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # kazoo leaves the sockets of handshakes that failed to the garbage collector; a kept log
    # record would hold the exception, its frames, and so the socket.
    caplog.set_level(logging.CRITICAL, "ottla.zookeeper.client")
    ours, others = tmp_path / "ours", tmp_path / "others"
    ours.mkdir()
    others.mkdir()
    certificates = Certificates(ours)
    port = free_port()
    settings = tls_settings(certificates, port)

    with start_zookeeper(tmp_path, settings=settings):
        store = await opened(
            f"127.0.0.1:{port}",
            tls=lambda: certificates.client_context(with_certificate=True),
            set_acl=True,
        )
        await store.create("/a/b", b"x", make_parents=True)
        assert (await store.get("/a/b"))[0] == b"x"
        await store.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            for wrong in (
                lambda: Certificates(others).client_context(),
                certificates.client_context,
            ):
                refused = ZooKeeperStore(
                    f"127.0.0.1:{port}", tls=wrong, connection_timeout_ms=1_000
                )
                with pytest.raises(ConnectionLost):
                    await refused.connect()
            gc.collect()


@pytest.mark.parametrize("hangs", [True, False])
async def test_end_of_a_session_does_not_wait_for_a_server(
    own_zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """A stop would exceed the time after which it is killed."""
    monkeypatch.setattr(zookeeper_session, "CLOSE_TIMEOUT_SECONDS", 0.2)
    store = await opened(own_zookeeper.connect, session_timeout_ms=60_000)
    if hangs:
        own_zookeeper.pause()
    else:
        await asyncio.to_thread(own_zookeeper.stop)
        await eventually_async(lambda: not store.session._connected)
    try:
        async with asyncio.timeout(20.0):  # less than two thirds of the session timeout
            await store.close()
    finally:
        if hangs:
            own_zookeeper.resume()
        else:
            await asyncio.to_thread(own_zookeeper.start)


async def test_client_that_died_is_replaced(
    ensemble: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_session, "RESTART_DELAY_SECONDS", 0.0)
    store = await ensemble.open()
    assert isinstance(store, ZooKeeperStore)
    events: list[WatchEvent] = []
    await store.create("/a")
    await store.watch_data("/a", events.append)
    notified: list[str] = []
    store.on_session(notified.append)
    dead = store.session.kazoo()
    await asyncio.to_thread(dead.stop)  # as it ends when its thread fails
    await eventually_async(lambda: notified[-1:] == [SESSION_CONNECTED])
    assert notified[0] == SESSION_EXPIRED
    assert store.session.kazoo() is not dead
    await store.set("/a", b"x")
    await eventually_async(lambda: bool(events))


class StoppedElsewhere:
    """A client of kazoo's whose thread has not quite ended, so that it refuses to be closed."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.is_closed = False

    def stop(self) -> None:
        """It was stopped already."""

    def close(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError("Cannot close connection until it is stopped")
        self.is_closed = True


def test_a_client_is_closed_when_its_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its notification pipe would be left to the garbage collector."""
    client = StoppedElsewhere(refusals=3)
    zookeeper_session._stop(cast("KazooClient", client))
    assert client.is_closed
    monkeypatch.setattr(zookeeper_session, "STOP_TIMEOUT_SECONDS", 0.0)
    zookeeper_session._stop(cast("KazooClient", StoppedElsewhere(refusals=3)))


async def test_error_words_name_the_node(ensemble: ZooKeeperEnsemble) -> None:
    store = await ensemble.open()
    with pytest.raises(NoNode, match="/nothing"):
        await store.get("/nothing")


class Noticed:
    """A result of kazoo's; `handed_over` is set when the loop has been given it."""

    def __init__(self, result: AsyncResult, handed_over: threading.Event) -> None:
        self._result = result
        self._handed_over = handed_over

    def rawlink(self, callback: Callable[[AsyncResult], None]) -> None:
        def tell(result: AsyncResult) -> None:
            callback(result)
            self._handed_over.set()

        self._result.rawlink(tell)


def hold_up(until: threading.Event) -> None:
    assert until.wait(60)
    time.sleep(0.1)


def test_a_response_counts_that_came_while_the_loop_was_held_up(
    zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On uvloop timers run first, and a response taken for lost ends a controller's reign."""

    async def ask() -> None:
        store = await opened(zookeeper.connect)
        monkeypatch.setattr(store.session, "_call_timeout_ms", 50)
        client = store.session.kazoo()
        handed_over = threading.Event()
        try:
            async with asyncio.TaskGroup() as group:
                response = group.create_task(
                    store.session.request(
                        "/", lambda: Noticed(client.exists_async("/"), handed_over)
                    )
                )
                await asyncio.sleep(0)  # the request is sent
                hold_up(handed_over)
            assert response.result() is not None
        finally:
            await store.close()

    uvloop.run(ask())


STAT = struct.pack(">qqqqiiiqiiq", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)


def test_request() -> None:
    assert bytes(MultiRead(["/a", "/\u00fc"]).serialize()) == (
        struct.pack(">iBi", 4, 0, -1)
        + struct.pack(">i", 2)
        + b"/a\x00"
        + struct.pack(">iBi", 4, 0, -1)
        + struct.pack(">i", 3)
        + b"/\xc3\xbc\x00"
        + struct.pack(">iBi", -1, 1, -1)
    )


def test_response() -> None:
    response = (
        b"head"
        + struct.pack(">iBi", 4, 0, 0)
        + struct.pack(">i", 4)
        + b"data"
        + STAT
        + struct.pack(">iBi", -1, 0, NO_NODE)
        + struct.pack(">i", NO_NODE)
        + struct.pack(">iBi", 4, 0, 0)
        + struct.pack(">i", -1)  # no data at all
        + STAT
        + struct.pack(">iBi", -1, 1, -1)
    )
    stat = read_stat(STAT, 0)
    assert MultiRead.deserialize(response, 4) == [(b"data", stat), NO_NODE, (b"", stat)]


def test_stat() -> None:
    stat = read_stat(STAT, 0)
    assert (stat.czxid, stat.mzxid, stat.ctime_ms, stat.mtime_ms) == (1, 2, 3, 4)
    assert (stat.version, stat.cversion, stat.ephemeral_owner) == (5, 6, 8)
    assert (stat.data_length, stat.children_count, stat.pzxid) == (9, 10, 11)
