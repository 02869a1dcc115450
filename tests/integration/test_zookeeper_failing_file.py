"""`ottla zookeeper` whose file cannot be written from some commit on: the process ends with a
sentence, and no client has seen what is not in the file.

The operating system fails the write: the limit of the size of files (`ulimit -f`) of the running
process is set to the size that its journal has.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.cli.zookeeper import FILE_NAME
from ottla.controller.tree.store import Acl
from ottla.controller.zookeeper_server import jute
from ottla.controller.zookeeper_server.acl import OPEN
from ottla.controller.zookeeper_server.codes import OpCode
from ottla.controller.zookeeper_server.jute import Reader
from tests.doubles.zookeeper_process import OttlaZooKeeperProcess, ZooKeeperProcess

SECONDS = 60.0
PERSISTENT, EPHEMERAL, SEQUENTIAL = 0, 1, 2
LOCAL = Acl(31, "ip", "127.0.0.1")


def create(path: str, data: bytes = b"", flags: int = PERSISTENT) -> bytes:
    return jute.string(path) + jute.buffer(data) + jute.acl(OPEN) + jute.int32(flags)


def multi(*ops: tuple[OpCode, bytes]) -> bytes:
    parts = [jute.multi_header(kind, False, -1) + body for kind, body in ops]
    return b"".join(parts) + jute.multi_header(-1, True, -1)


# Each of them is one commit; the next one is made on what those before it left.
CHANGES: list[tuple[OpCode, bytes]] = [
    (OpCode.CREATE, create("/a", b"1")),
    (OpCode.SET_DATA, jute.string("/a") + jute.buffer(b"2") + jute.int32(-1)),
    (OpCode.CREATE, create("/a/number-", flags=SEQUENTIAL)),
    (OpCode.CREATE2, create("/ephemeral", flags=EPHEMERAL)),
    (
        OpCode.SET_ACL,
        jute.string("/a") + jute.acl([OPEN[0]._replace(permissions=31)] * 2) + jute.int32(-1),
    ),
    (
        OpCode.MULTI,
        multi(
            (OpCode.CREATE, create("/b")),
            (OpCode.SET_DATA, jute.string("/a") + jute.buffer(b"3") + jute.int32(-1)),
        ),
    ),
    (OpCode.DELETE, jute.string("/b") + jute.int32(-1)),
    (OpCode.CLOSE_SESSION, b""),
]


class Client:
    """A session; requests and responses as they are on the wire."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        body = jute.int32(0) + jute.int64(0) + jute.int32(10_000) + jute.int64(0)
        self._socket.sendall(jute.buffer(body + jute.buffer(bytes(16)) + b"\0"))
        self.is_connected = bool(self.rest(1))

    def send(self, op_code: int, body: bytes) -> None:
        self._socket.sendall(jute.buffer(jute.int32(1) + jute.int32(op_code) + body))

    def call(self, op_code: int, body: bytes) -> tuple[int, bytes]:
        """Error code and body."""
        self.send(op_code, body)
        (frame,) = self.rest(1)
        reader = Reader(frame)
        reader.int32()
        reader.int64()
        return reader.int32(), frame[16:]

    def rest(self, count: int = 1 << 30) -> list[bytes]:
        """The next frames, fewer if the connection ends."""
        found: list[bytes] = []
        while len(found) < count:
            head = self._exactly(4)
            if not head:
                break
            found.append(self._exactly(struct.unpack(">i", head)[0]))
        return found

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self._socket.recv(size - len(data))
            except ConnectionResetError:
                return b""
            if not piece:
                return b""
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    process = OttlaZooKeeperProcess(tmp_path, {}, ())
    process.tick_time_ms = 1000
    process.start()
    try:
        yield process
    finally:
        process.stop()


def pid_of(zookeeper: ZooKeeperProcess) -> int:
    assert zookeeper.process is not None
    return zookeeper.process.pid


def fail_writes(zookeeper: ZooKeeperProcess) -> None:
    """No file of the process may become longer than its journal is."""
    size = os.stat(zookeeper.directory / f"{FILE_NAME}-wal").st_size
    resource.prlimit(pid_of(zookeeper), resource.RLIMIT_FSIZE, (size, size))


def znodes(client: Client, path: str = "/") -> dict[str, bytes]:
    """Data of all znodes."""
    error, body = client.call(OpCode.GET_DATA, jute.string(path) + b"\0")
    assert not error
    found = {path: Reader(body).buffer()}
    error, body = client.call(OpCode.GET_CHILDREN, jute.string(path) + b"\0")
    assert not error
    for name in Reader(body).strings():
        found |= znodes(client, f"{path.rstrip('/')}/{name}")
    return found


@pytest.mark.parametrize("failing", range(len(CHANGES)), ids=lambda index: CHANGES[index][0].name)
def test_no_client_sees_a_change_that_is_not_in_the_file(
    zookeeper: ZooKeeperProcess, failing: int
) -> None:
    writer, watcher = Client(zookeeper.port), Client(zookeeper.port)
    for op_code, body in CHANGES[:failing]:
        assert writer.call(op_code, body)[0] == 0
    before = znodes(watcher)
    assert watcher.call(OpCode.ADD_WATCH, jute.string("/") + jute.int32(1))[0] == 0
    fail_writes(zookeeper)
    writer.send(*CHANGES[failing])
    assert writer.rest() == []
    assert watcher.rest() == []
    assert_ended(zookeeper)
    zookeeper.start()
    reader = Client(zookeeper.port)
    # The ephemeral znode is there: its session has not ended.
    assert znodes(reader) == before
    for each in (writer, watcher, reader):
        each.close()


def assert_ended(zookeeper: ZooKeeperProcess) -> None:
    """With a sentence, and no traceback."""
    assert zookeeper.process is not None
    assert zookeeper.process.wait(SECONDS) == 1
    output = zookeeper.output()
    assert "Traceback" not in output
    assert f"{FILE_NAME} cannot be written: " in output.splitlines()[-1]


def test_a_session_that_is_not_in_the_file_is_not_given(zookeeper: ZooKeeperProcess) -> None:
    fail_writes(zookeeper)
    client = Client(zookeeper.port)
    assert not client.is_connected
    client.close()
    assert_ended(zookeeper)


def test_a_file_that_cannot_be_written_at_the_start(zookeeper: ZooKeeperProcess) -> None:
    Client(zookeeper.port).close()
    zookeeper.stop()
    size = os.stat(zookeeper.directory / FILE_NAME).st_size
    command = ["sh", "-c", f'ulimit -f {size // 512}; exec "$@"', "sh", *zookeeper._command_line()]
    found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    assert FILE_NAME in found.stderr.splitlines()[-1]
