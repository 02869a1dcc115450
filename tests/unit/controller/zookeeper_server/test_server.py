"""The server by its wire: order, durability, refused input, sessions that move and expire."""

from __future__ import annotations

import asyncio
import sqlite3
import struct
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import StoreError
from ottla.controller.tree.tree_file import TreeCommits
from ottla.controller.zookeeper_server import jute
from ottla.controller.zookeeper_server.codes import Code, OpCode, Xid
from ottla.controller.zookeeper_server.connection import MAX_FRAME_BYTES
from ottla.controller.zookeeper_server.jute import Reader
from ottla.controller.zookeeper_server.server import ZooKeeperServer
from ottla.controller.zookeeper_server.sessions import OPEN
from ottla.controller.zookeeper_server.watches import EventType

DEADLINE_SECONDS = 30.0


OPENED: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def _clients_end() -> AsyncIterator[None]:
    yield
    for writer in OPENED:
        writer.close()
    for writer in OPENED:
        with suppress(ConnectionError):
            await writer.wait_closed()
    OPENED.clear()


class WireClient:
    """Frames as they come; nothing is matched or retried."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.session_id = 0
        self.password = b""
        self.timeout_ms = 0
        self._xid = 0

    @classmethod
    async def connected(
        cls,
        server: ZooKeeperServer,
        *,
        session_id: int = 0,
        password: bytes = bytes(16),
        last_zxid: int = 0,
        timeout_ms: int = 10_000,
        path: str = "",
    ) -> WireClient:
        if path:
            client = cls(*await asyncio.open_unix_connection(path))
        else:
            client = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        OPENED.append(client.writer)
        body = jute.int32(0) + jute.int64(last_zxid) + jute.int32(timeout_ms)
        client.write(body + jute.int64(session_id) + jute.buffer(password) + b"\0")
        frame = await client.frame()
        if frame is not None:
            reader = Reader(frame)
            reader.int32()
            client.timeout_ms = reader.int32()
            client.session_id, client.password = reader.int64(), reader.buffer()
        return client

    def write(self, body: bytes) -> None:
        self.writer.write(jute.buffer(body))

    def send(self, op_code: int, body: bytes = b"", xid: int | None = None) -> int:
        self._xid += 1
        number = self._xid if xid is None else xid
        self.write(jute.int32(number) + jute.int32(op_code) + body)
        return number

    async def frame(self) -> bytes | None:
        """The next frame, None at the end of the connection."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                (size,) = struct.unpack(">i", await self._reader.readexactly(4))
                return await self._reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                return None

    async def reply(self) -> tuple[int, int, Reader]:
        """xid, error and body of the next frame."""
        frame = await self.frame()
        assert frame is not None
        reader = Reader(frame)
        xid, _, error = reader.int32(), reader.int64(), reader.int32()
        return xid, error, reader

    async def call(self, op_code: int, body: bytes = b"") -> tuple[int, Reader]:
        number = self.send(op_code, body)
        xid, error, reader = await self.reply()
        assert xid == number
        return error, reader

    async def create(self, path: str, flags: int = 0) -> int:
        body = jute.string(path) + jute.buffer(b"x") + jute.acl(OPEN) + jute.int32(flags)
        return (await self.call(OpCode.CREATE, body))[0]

    async def exists(self, path: str, watch: bool = False) -> int:
        body = jute.string(path) + bytes([watch])
        return (await self.call(OpCode.EXISTS, body))[0]

    async def event(self) -> tuple[EventType, str]:
        xid, error, reader = await self.reply()
        assert (xid, error) == (Xid.NOTIFICATION, 0)
        kind, _ = reader.int32(), reader.int32()
        return EventType(kind), reader.string()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ZooKeeperServer]:
    made = ZooKeeperServer(str(tmp_path / "znodes.db"), tick_time_ms=100)
    await made.start()
    yield made
    await made.stop()


async def test_an_event_comes_before_the_response_that_shows_the_change(
    server: ZooKeeperServer,
) -> None:
    watcher, writer = await WireClient.connected(server), await WireClient.connected(server)
    assert await watcher.exists("/a", watch=True) == Code.NO_NODE
    assert await writer.create("/a") == Code.OK
    number = watcher.send(OpCode.EXISTS, jute.string("/a") + b"\0")
    assert await watcher.event() == (EventType.NODE_CREATED, "/a")
    xid, error, _ = await watcher.reply()
    assert (xid, error) == (number, Code.OK)


async def test_no_client_learns_of_a_change_before_it_is_durable(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = await WireClient.connected(server), await WireClient.connected(server)
    loop = asyncio.get_running_loop()
    barriers: list[asyncio.Future[None]] = []
    both = asyncio.Event()

    def barrier(commits: TreeCommits) -> asyncio.Future[None]:
        barriers.append(loop.create_future())
        if len(barriers) == 2:
            both.set()
        return barriers[-1]

    monkeypatch.setattr(TreeCommits, "barrier", barrier)
    async with asyncio.TaskGroup() as group:
        created = group.create_task(writer.create("/a"))
        seen = group.create_task(reader.exists("/a"))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await both.wait()
        assert "/a" in server.tree.nodes
        assert not created.done()
        assert not seen.done()
        for each in barriers:
            each.set_result(None)
    assert created.result() == Code.OK


async def test_a_failed_commit_ends_all_connections_and_the_server(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await WireClient.connected(server), await WireClient.connected(server)

    def full(*arguments: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    assert server._commits is not None
    monkeypatch.setattr(server._commits.file, "commit", full)
    client.send(
        OpCode.CREATE,
        jute.string("/a") + jute.buffer(b"") + jute.acl(OPEN) + jute.int32(0),
    )
    assert await client.frame() is None
    assert await other.frame() is None
    assert server.failure is not None
    with pytest.raises(StoreError, match="cannot be written: database or disk is full"):
        await server.failure


async def test_a_stop_while_the_file_system_hangs_does_not_hold_the_loop(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor of workers opens the tree again then, and has to go on meanwhile."""
    client = await WireClient.connected(server)
    writes, goes_on = threading.Event(), threading.Event()

    def hang(*arguments: object) -> None:
        writes.set()
        goes_on.wait(5)

    assert server._commits is not None
    monkeypatch.setattr(server._commits.file, "commit", hang)
    client.send(
        OpCode.CREATE,
        jute.string("/a") + jute.buffer(b"") + jute.acl(OPEN) + jute.int32(0),
    )
    assert await asyncio.to_thread(writes.wait, DEADLINE_SECONDS)
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        stopping = group.create_task(server.stop())
        await asyncio.sleep(0)
        assert time.monotonic() - began < 2
        assert not stopping.done()
        goes_on.set()


async def test_sessions_ephemerals_and_acls_survive_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "znodes.db")
    first = ZooKeeperServer(path, tick_time_ms=100)
    await first.start()
    client = await WireClient.connected(first)
    assert await client.create("/e", flags=1) == Code.OK
    read_only = (OPEN[0]._replace(permissions=1),)
    body = jute.string("/r") + jute.buffer(b"") + jute.acl(read_only) + jute.int32(0)
    assert (await client.call(OpCode.CREATE, body))[0] == Code.OK
    await first.stop()
    second = ZooKeeperServer(path, tick_time_ms=100)
    await second.start()
    again = await WireClient.connected(
        second,
        session_id=client.session_id,
        password=client.password,
        last_zxid=first.tree.zxid,
    )
    assert again.session_id == client.session_id
    assert await again.exists("/e") == Code.OK
    set_data = jute.string("/r") + jute.buffer(b"") + jute.int32(-1)
    assert (await again.call(OpCode.SET_DATA, set_data))[0] == Code.NO_AUTH
    assert (await again.call(OpCode.CLOSE_SESSION))[0] == Code.OK
    assert await again.frame() is None
    last = await WireClient.connected(second)
    assert await last.exists("/e") == Code.NO_NODE
    await second.stop()


async def test_a_broker_without_zookeeper_takes_the_file_back(tmp_path: Path) -> None:
    path = str(tmp_path / "znodes.db")
    store = EmbeddedStore(path)
    await store.connect()
    await store.create("/kept", b"by the broker")
    await store.close()
    server = ZooKeeperServer(path, tick_time_ms=100)
    await server.start()
    client = await WireClient.connected(server)
    assert await client.exists("/kept") == Code.OK
    assert await client.create("/e", flags=1) == Code.OK
    await server.stop()
    store = EmbeddedStore(path)
    await store.connect()
    assert await store.get("/kept") == (b"by the broker", await store.exists("/kept"))
    assert await store.exists("/e") is None  # its session has no server any more
    assert await store.children("/") == ["kept", "zookeeper"]
    await store.close()


async def test_an_expired_session_is_refused_and_its_ephemerals_go(
    server: ZooKeeperServer,
) -> None:
    watcher = await WireClient.connected(server)
    assert (await WireClient.connected(server, timeout_ms=1)).timeout_ms == 200
    client = await WireClient.connected(server)
    assert await client.create("/e", flags=1) == Code.OK
    assert await watcher.exists("/e", watch=True) == Code.OK
    server.sessions.by_id[client.session_id].deadline = 0.0  # it was silent for so long
    assert await client.frame() is None
    assert await watcher.event() == (EventType.NODE_DELETED, "/e")
    again = await WireClient.connected(
        server, session_id=client.session_id, password=client.password
    )
    assert (again.session_id, again.timeout_ms) == (0, 0)
    assert await again.frame() is None


async def test_a_stall_of_the_server_expires_no_session(server: ZooKeeperServer) -> None:
    """It could not receive what its clients sent meanwhile."""
    client = await WireClient.connected(server, timeout_ms=200)
    assert await client.create("/e", flags=1) == Code.OK
    time.sleep(1.0)  # noqa: ASYNC251 (the server stands still)
    await asyncio.sleep(0.05)  # its timers run before the clients do
    assert await client.exists("/e") == Code.OK


async def test_sessions_of_a_process_that_died_are_ended_at_once(tmp_path: Path) -> None:
    """On a Unix socket the process at the other end is known."""
    processes = iter((7, 8, 8))
    server = ZooKeeperServer(process_of=lambda _: next(processes))
    path = str(tmp_path / "tree")
    await server.start_unix(path)
    try:
        watcher, first, second = [await WireClient.connected(server, path=path) for _ in range(3)]
        assert await first.create("/e", flags=1) == Code.OK
        assert await watcher.exists("/e", watch=True) == Code.OK
        assert server.end_sessions(9) == 0
        assert server.end_sessions(8) == 2
        assert await watcher.event() == (EventType.NODE_DELETED, "/e")
        assert await first.frame() is None
        assert await second.frame() is None
        assert await watcher.exists("/e") == Code.NO_NODE
        assert server.end_sessions() == 1
    finally:
        await server.stop()


async def test_a_session_moves_to_its_newest_connection(server: ZooKeeperServer) -> None:
    first = await WireClient.connected(server)
    assert await first.create("/e", flags=1) == Code.OK
    second = await WireClient.connected(
        server, session_id=first.session_id, password=first.password
    )
    assert second.session_id == first.session_id
    assert await first.frame() is None
    assert await second.exists("/e") == Code.OK


async def test_set_watches_reports_what_was_missed(server: ZooKeeperServer) -> None:
    client = await WireClient.connected(server)
    for path in ("/changed", "/deleted", "/same", "/parent"):
        await client.create(path)
    zxid = server.tree.zxid
    body = jute.string("/changed") + jute.buffer(b"2") + jute.int32(-1)
    await client.call(OpCode.SET_DATA, body)
    await client.call(OpCode.DELETE, jute.string("/deleted") + jute.int32(-1))
    await client.create("/parent/child")
    await client.create("/new")
    watches = jute.int64(zxid) + jute.strings(["/changed", "/deleted", "/same"])
    watches += jute.strings(["/new", "/absent"]) + jute.strings(["/parent"])
    client.send(OpCode.SET_WATCHES, watches, xid=Xid.SET_WATCHES)
    assert [await client.event() for _ in range(4)] == [
        (EventType.NODE_DATA_CHANGED, "/changed"),
        (EventType.NODE_DELETED, "/deleted"),
        (EventType.NODE_CREATED, "/new"),
        (EventType.NODE_CHILDREN_CHANGED, "/parent"),
    ]
    assert (await client.reply())[:2] == (Xid.SET_WATCHES, Code.OK)
    assert server.watches.paths().keys() == {"/same", "/absent"}


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", MAX_FRAME_BYTES + 1),
        struct.pack(">i", -1),
        jute.buffer(b"short"),
        jute.buffer(jute.int32(0) + jute.int64(0) + jute.int32(1) + jute.int64(0)),
    ],
)
async def test_an_invalid_first_frame_ends_the_connection(
    server: ZooKeeperServer, data: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await reader.read() == b""
    writer.close()


async def test_an_invalid_request_ends_its_connection_only(server: ZooKeeperServer) -> None:
    client, other = await WireClient.connected(server), await WireClient.connected(server)
    client.send(OpCode.GET_DATA, jute.int32(1_000_000))
    assert await client.frame() is None
    assert await other.exists("/") == Code.OK


async def test_refused_requests_have_zookeepers_codes(server: ZooKeeperServer) -> None:
    client = await WireClient.connected(server)
    assert await client.create("relative") == Code.BAD_ARGUMENTS
    assert await client.create("/ttl", flags=5) == Code.UNIMPLEMENTED
    assert (await client.call(99))[0] == Code.UNIMPLEMENTED
    root = jute.string("/") + jute.int32(-1)
    assert (await client.call(OpCode.DELETE, root))[0] == Code.BAD_ARGUMENTS
    no_watch = jute.string("/") + jute.int32(3)
    assert (await client.call(OpCode.REMOVE_WATCHES, no_watch))[0] == Code.NO_WATCHER
    wrong_mode = jute.string("/") + jute.int32(2)
    assert (await client.call(OpCode.ADD_WATCH, wrong_mode))[0] == Code.BAD_ARGUMENTS


async def test_a_client_of_the_future_is_refused(server: ZooKeeperServer) -> None:
    """It has seen changes that this server does not have."""
    client = await WireClient.connected(server, last_zxid=server.tree.zxid + 1)
    assert client.session_id == 0
    assert await client.frame() is None


async def test_connections_above_the_limit_are_closed() -> None:
    server = ZooKeeperServer(max_connections=1)
    await server.start()
    first = await WireClient.connected(server)
    second = await WireClient.connected(server)
    assert second.session_id == 0
    assert await first.exists("/") == Code.OK
    await server.stop()


async def test_a_restart_in_memory_accepts_clients_that_have_seen_the_last_tree() -> None:
    first = ZooKeeperServer()
    await first.start()
    client = await WireClient.connected(first)
    await client.create("/a")
    await first.stop()
    second = ZooKeeperServer()
    second.tree.zxid = max(second.tree.zxid, first.tree.zxid)  # within one second
    await second.start()
    again = await WireClient.connected(second, last_zxid=first.tree.zxid)
    assert again.session_id
    await second.stop()


async def test_four_letter_words(server: ZooKeeperServer) -> None:
    client = await WireClient.connected(server)
    await client.create("/e", flags=1)
    await client.exists("/e", watch=True)

    async def word(text: bytes) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(text)
        async with asyncio.timeout(DEADLINE_SECONDS):
            data = await reader.read()
        writer.close()
        return data.decode()

    assert await word(b"ruok") == "imok"
    assert "not highly available" in await word(b"srvr")
    assert "zk_ephemerals_count\t1\n" in await word(b"mntr")
    assert f"0x{client.session_id:x}:\n\t/e\n" in await word(b"dump")
    assert "1 connections watching 1 paths\nTotal watches:1\n" in await word(b"wchs")
    assert await word(b"wchp") == f"/e\n\t0x{client.session_id:x}\n"
    assert f"sid=0x{client.session_id:x},to=2000" in await word(b"cons")
    for each in (b"stat", b"conf", b"envi", b"isro"):
        assert await word(each)
