"""Fuzz of what `ottla zookeeper` reads from its clients. The invariant: any bytes, in any pieces
and at any time, give well-formed responses or the end of that connection; nothing is raised, other
clients are served, and the tree stays a tree.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.controller.tree.store import Acl
from ottla.controller.zookeeper_server import connection as connection_module
from ottla.controller.zookeeper_server import jute
from ottla.controller.zookeeper_server import requests as requests_module
from ottla.controller.zookeeper_server.codes import Code, OpCode, Xid
from ottla.controller.zookeeper_server.connection import MAX_FRAME_BYTES, Connection
from ottla.controller.zookeeper_server.four_letter_words import WORDS
from ottla.controller.zookeeper_server.server import ZooKeeperServer
from ottla.controller.zookeeper_server.sessions import OPEN

HEADER = struct.Struct(">iqi")
CODES = {int(code) for code in Code}
HUGE = (2**31 - 1, -(2**31), -2, 1 << 24, MAX_FRAME_BYTES)


class Transport:
    """What asyncio has between a connection and its socket."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_closed = False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 50_000)

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def taken(self) -> bytes:
        found = bytes(self.written)
        self.written.clear()
        return found


class Client:
    """One connection to the server, without a socket."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self.transport = Transport()
        self.connection = Connection(server)
        self.connection.connection_made(cast("asyncio.BaseTransport", self.transport))

    def connect(self) -> Client:
        self.send(CONNECT)
        (frame,) = frames_of(self.transport.taken())
        assert len(frame) == 4 + 4 + 8 + 4 + 16 + 1
        return self

    def send(self, data: bytes) -> None:
        if not self.transport.is_closed:
            self.connection.data_received(data)

    def call(self, op_code: int, body: bytes) -> tuple[int, bytes]:
        self.send(jute.buffer(jute.int32(7) + jute.int32(op_code) + body))
        (frame,) = frames_of(self.transport.taken())
        xid, _, error = HEADER.unpack_from(frame)
        assert xid == 7
        return error, frame[HEADER.size :]

    def lose(self) -> None:
        self.connection.connection_lost(None)


def connect_body(session_id: int = 0, timeout_ms: int = 10_000, zxid: int = 0) -> bytes:
    body = jute.int32(0) + jute.int64(zxid) + jute.int32(timeout_ms) + jute.int64(session_id)
    return body + jute.buffer(bytes(16)) + b"\0"


CONNECT = jute.buffer(connect_body())


def frames_of(data: bytes) -> list[bytes]:
    """Checks that all of it are whole frames."""
    found = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        assert 0 <= size <= len(data) - 4
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def new_server() -> ZooKeeperServer:
    server = ZooKeeperServer()
    server._create_system_paths()
    return server


def check_tree(server: ZooKeeperServer) -> None:
    nodes = server.tree.nodes
    for path, node in nodes.items():
        if path != "/":
            parent, _, name = path.rpartition("/")
            assert name in nodes[parent or "/"].children
        assert all(f"{path.rstrip('/')}/{name}" in nodes for name in node.children)
    for session_id, owned in server.tree.sessions.items():
        assert all(nodes[path].ephemeral_owner == session_id for path in owned)


# Pieces of requests. Any of them may stand where another is expected.

PATHS = st.sampled_from(
    ["/", "/a", "/a/b", "/kept", "", "a", "/a/", "//", "/.", "/\0", "/\ud7ff", "/é"]
)
NUMBERS = st.one_of(st.integers(-2, 7), st.sampled_from(HUGE))
INT32 = NUMBERS.map(jute.int32)
INT64 = st.integers(-(2**63), 2**63 - 1).map(jute.int64)
BUFFERS = st.one_of(
    PATHS.map(jute.string),
    st.binary(max_size=20).map(jute.buffer),
    st.just(jute.int32(-1)),
    st.tuples(INT32, st.binary(max_size=8)).map(b"".join),
)
ACLS = st.one_of(
    st.just(jute.acl(OPEN)),
    st.lists(
        st.builds(
            Acl,
            st.integers(0, 31),
            st.sampled_from(["world", "auth", "digest", "ip", "sasl", ""]),
            st.sampled_from(["anyone", "", "u:p", "127.0.0.1", "10.0.0.0/8", "::1", "x/99"]),
        ),
        max_size=3,
    ).map(jute.acl),
    INT32,
)
BOOLEANS = st.sampled_from([b"\0", b"\1", b"\xff"])
VECTORS = st.one_of(st.lists(PATHS, max_size=3).map(jute.strings), INT32)
PIECES = st.lists(st.one_of(BUFFERS, INT32, INT64, ACLS, BOOLEANS, VECTORS), max_size=6).map(
    b"".join
)
CREATES = st.tuples(PATHS.map(jute.string), BUFFERS, ACLS, INT32).map(b"".join)
SETS = st.tuples(PATHS.map(jute.string), BUFFERS, INT32).map(b"".join)
CHECKS = st.tuples(PATHS.map(jute.string), INT32).map(b"".join)
READS = st.tuples(PATHS.map(jute.string), BOOLEANS).map(b"".join)
OPS = st.one_of(
    st.tuples(st.sampled_from([OpCode.CREATE, OpCode.CREATE2]), CREATES),
    st.tuples(st.just(OpCode.SET_DATA), SETS),
    st.tuples(st.sampled_from([OpCode.DELETE, OpCode.CHECK]), CHECKS),
    st.tuples(st.sampled_from([OpCode.GET_DATA, OpCode.GET_CHILDREN, OpCode.EXISTS]), READS),
    st.tuples(st.sampled_from(list(OpCode)), PIECES),
    st.tuples(NUMBERS, PIECES),
)


def multi(ops: list[tuple[int, bytes]], end: bytes) -> bytes:
    return b"".join(jute.multi_header(kind, False, -1) + body for kind, body in ops) + end


MULTIS = st.tuples(
    st.sampled_from([OpCode.MULTI, OpCode.MULTI_READ]),
    st.builds(
        multi,
        st.lists(OPS, max_size=4),
        st.sampled_from([jute.multi_header(-1, True, -1), b"", b"\xff"]),
    ),
)
AUTHS = st.tuples(
    st.just(OpCode.AUTH),
    st.tuples(INT32, st.sampled_from(["digest", "ip", "x"]).map(jute.string), BUFFERS).map(
        b"".join
    ),
)
SET_WATCHES = st.tuples(
    st.sampled_from([OpCode.SET_WATCHES, OpCode.SET_WATCHES2]),
    st.tuples(INT64, VECTORS, VECTORS, VECTORS, VECTORS, VECTORS).map(b"".join),
)


def request(xid: int, op: tuple[int, bytes], cut: int) -> bytes:
    body = jute.int32(xid) + jute.int32(op[0]) + op[1]
    return jute.buffer(body[: len(body) - cut] if cut else body)


XIDS = st.one_of(st.integers(1, 5), st.sampled_from([int(each) for each in Xid]), NUMBERS)
REQUESTS = st.builds(
    request,
    XIDS,
    st.one_of(OPS, MULTIS, AUTHS, SET_WATCHES),
    st.sampled_from([0, 0, 0, 1, 4, 9]),
)
CONNECTS = st.builds(
    lambda session_id, timeout_ms, zxid, cut: jute.buffer(
        connect_body(session_id, timeout_ms, zxid)[: 45 - cut]
    ),
    st.sampled_from([0, 0, 0, 1, -1]),
    NUMBERS,
    st.sampled_from([0, 0, 0, 2**62, -1]),
    st.sampled_from([0, 0, 0, 1, 5, 20, 45]),
)
GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.tuples(st.sampled_from(HUGE).map(jute.int32), st.binary(max_size=20)).map(b"".join),
    st.sampled_from([*WORDS, b"nope"]),
)
CONVERSATIONS = st.tuples(
    st.one_of(st.just(CONNECT), st.just(CONNECT), CONNECTS, GARBAGE, REQUESTS),
    st.lists(st.one_of(REQUESTS, REQUESTS, REQUESTS, GARBAGE, CONNECTS), max_size=8),
)


@settings(max_examples=400)
@given(CONVERSATIONS, st.integers(1, 200))
def test_any_bytes_are_served_or_end_the_connection(
    conversation: tuple[bytes, list[bytes]], piece: int
) -> None:
    server = new_server()
    honest = Client(server).connect()
    kept = jute.string("/kept") + jute.buffer(b"1") + jute.acl(OPEN) + jute.int32(0)
    assert honest.call(OpCode.CREATE, kept)[0] == Code.OK
    client = Client(server)
    first, rest = conversation
    data = first + b"".join(rest)
    for start in range(0, len(data), piece):
        client.send(data[start : start + piece])
        assert len(client.connection._received) <= MAX_FRAME_BYTES + 4
    check_output(client, first)
    check_tree(server)
    client.lose()
    # Watches of others may have sent events; the honest client has no watch.
    assert not honest.transport.is_closed
    path = jute.string("/honest") + jute.buffer(b"") + jute.acl(OPEN) + jute.int32(0)
    error, _ = honest.call(OpCode.CREATE, path)
    root = server.tree.nodes["/"].acl
    assert error == Code.OK or (error == Code.NO_AUTH and root is not None)
    assert server.connections.keys() == {honest.connection}


def check_output(client: Client, first: bytes) -> None:
    """Each frame is a response or an event, in the order of the protocol."""
    output = client.transport.taken()
    if first[:4] in WORDS or (client.connection.session is None and output[:1] != b"\0"):
        assert client.transport.is_closed or not output
        return
    for number, frame in enumerate(frames_of(output)):
        if number == 0:
            assert len(frame) in (36, 37)
            continue
        xid, _, error = HEADER.unpack_from(frame)
        if xid == Xid.NOTIFICATION and not error:
            continue
        assert error in CODES
        assert not error or len(frame) == HEADER.size


@given(st.lists(REQUESTS, max_size=6))
def test_nothing_changes_before_a_session(requests: list[bytes]) -> None:
    server = new_server()
    before = server.tree.zxid, set(server.tree.nodes)
    for data in requests:
        client = Client(server)
        client.send(data)
        client.lose()
    assert (server.tree.zxid, set(server.tree.nodes)) == before
    assert not any(server.tree.sessions.values())


@pytest.mark.parametrize("size", HUGE)
def test_a_length_alone_takes_no_memory(size: int) -> None:
    server = new_server()
    for client in (Client(server), Client(server).connect()):
        client.send(jute.int32(size) + b"x" * 100)
        is_refused = not 0 <= size <= MAX_FRAME_BYTES
        assert client.transport.is_closed == is_refused
        assert len(client.connection._received) <= 104


def test_a_response_is_not_many_times_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "MAX_RESPONSE_BYTES", 10_000)
    server = new_server()
    honest, client = Client(server).connect(), Client(server).connect()
    data = jute.string("/a") + jute.buffer(b"x" * 2000) + jute.acl(OPEN) + jute.int32(0)
    assert client.call(OpCode.CREATE, data)[0] == Code.OK
    read = (int(OpCode.GET_DATA), jute.string("/a") + b"\0")
    end = jute.multi_header(-1, True, -1)
    assert client.call(OpCode.MULTI_READ, multi([read] * 4, end))[0] == Code.OK
    client.send(request(1, (OpCode.MULTI_READ, multi([read] * 6, end)), 0))
    assert client.transport.is_closed
    assert not client.transport.taken()
    assert honest.call(OpCode.EXISTS, jute.string("/a") + b"\0")[0] == Code.OK


def test_a_defect_ends_the_connection_and_others_get_their_responses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> bytes:
        raise KeyError("a defect")

    server = new_server()
    honest, client = Client(server).connect(), Client(server).connect()
    watch = honest.call(OpCode.ADD_WATCH, jute.string("/a") + jute.int32(0))
    assert watch[0] == Code.OK
    create = jute.string("/a") + jute.buffer(b"") + jute.acl(OPEN) + jute.int32(0)
    monkeypatch.setitem(server._processor._handlers, OpCode.GET_CHILDREN, broken)
    client.send(
        request(1, (OpCode.CREATE, create), 0)
        + request(2, (OpCode.GET_CHILDREN, jute.string("/") + b"\0"), 0)
    )
    assert client.transport.is_closed
    # The change before it is made, and its event is sent.
    assert len(frames_of(honest.transport.taken())) == 1
    assert "127.0.0.1:50000" in caplog.text
    assert connection_module.__name__ in {record.name for record in caplog.records}
