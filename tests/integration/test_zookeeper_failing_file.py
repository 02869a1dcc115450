"""`ottla zookeeper` whose file cannot be written from some commit on: the process ends with a
sentence, and no client has seen what is not in the file.

The operating system fails the calls: the limit of the size of files (`ulimit -f`) of the running
process is set to the size that its journal has, or a little more (a short write); or a filter of
the kernel returns an error.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.cli.zookeeper import FILE_NAME
from ottla.controller.tree.store import Acl
from ottla.controller.tree.tree_file import LONGEST_JOURNAL_BYTES, TreeFile
from ottla.controller.zookeeper_server import jute
from ottla.controller.zookeeper_server.codes import OpCode
from ottla.controller.zookeeper_server.jute import Reader
from ottla.controller.zookeeper_server.sessions import OPEN
from tests.doubles.eventually import eventually
from tests.doubles.failing_system_calls import FailingCalls
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
    process.start()
    try:
        yield process
    finally:
        process.stop()


def pid_of(zookeeper: ZooKeeperProcess) -> int:
    assert zookeeper.process is not None
    return zookeeper.process.pid


def fail_writes(zookeeper: ZooKeeperProcess, after_bytes: int = 0) -> None:
    """No file of the process may become longer than its journal is, and so many bytes."""
    size = os.stat(zookeeper.directory / f"{FILE_NAME}-wal").st_size + after_bytes
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


class FailingZooKeeper(OttlaZooKeeperProcess):
    """With a fault that begins on command; a process that is started later has none."""

    tick_time_ms = 1000
    fault: FailingCalls | None = None

    def _command_line(self) -> list[str]:
        command = super()._command_line()
        if self.fault is None:
            return command
        return self.fault.command(*command[command.index("zookeeper") :])


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[FailingZooKeeper]:
    process = FailingZooKeeper(tmp_path, {}, ())
    try:
        yield process
    finally:
        process.stop()


JOURNAL = f"{FILE_NAME}-wal"


def write_until_the_end(port: int, name: str, acknowledged: dict[str, bytes]) -> None:
    """Creates znodes one after the other until the connection ends."""
    client = Client(port)
    for number in range(100_000):
        path, data = f"/{name}-{number}", bytes(100)
        client.send(OpCode.CREATE, create(path, data))
        if not client.rest(1):
            break
        acknowledged[path] = data
    client.close()


@pytest.mark.parametrize(
    "fault",
    [
        FailingCalls("sync", errno.EIO, JOURNAL),
        FailingCalls("sync", errno.ENOSPC, JOURNAL),
        FailingCalls("write", errno.EIO, JOURNAL),
        FailingCalls("write", errno.ENOSPC, JOURNAL),
    ],
    ids=lambda fault: f"{fault.kind}-{errno.errorcode[fault.error]}",
)
def test_what_was_acknowledged_is_there_after_an_error(
    failing: FailingZooKeeper, fault: FailingCalls
) -> None:
    """Several clients write, commits are of several changes, and one of them fails."""
    failing.fault = fault
    failing.start()
    acknowledged: dict[str, bytes] = {}
    writers = [
        threading.Thread(target=write_until_the_end, args=(failing.port, name, acknowledged))
        for name in "abcd"
    ]
    for writer in writers:
        writer.start()
    eventually(lambda: len(acknowledged) > 50, "the clients write", seconds=SECONDS)
    fault.begin(pid_of(failing))
    for writer in writers:
        writer.join()
    assert_ended(failing)
    failing.fault = None
    failing.start()
    reader = Client(failing.port)
    found = znodes(reader)
    reader.close()
    # A change whose commit failed may be there; no client got a response to it.
    assert acknowledged.items() <= found.items()


def test_a_journal_that_is_written_in_part(zookeeper: ZooKeeperProcess) -> None:
    client = Client(zookeeper.port)
    for op_code, body in CHANGES[:3]:
        assert client.call(op_code, body)[0] == 0
    before = znodes(client)
    fail_writes(zookeeper, after_bytes=1000)
    client.send(OpCode.CREATE, create("/torn", bytes(5000)))
    assert client.rest() == []
    assert_ended(zookeeper)
    zookeeper.start()
    reader = Client(zookeeper.port)
    assert znodes(reader) == before
    for each in (client, reader):
        each.close()


def test_a_checkpoint_that_fails_loses_nothing(failing: FailingZooKeeper) -> None:
    """The znode file itself cannot be written; the journal can, and is enough for a while."""
    failing.fault = FailingCalls("write", errno.EIO, FILE_NAME)
    failing.start()
    failing.fault.begin(pid_of(failing))
    client = Client(failing.port)
    acknowledged: dict[str, bytes] = {}
    for number in range(LONGEST_JOURNAL_BYTES // 900_000 + 10):
        path, data = f"/{number}", bytes([number]) * 900_000
        client.send(OpCode.CREATE, create(path, data))
        if not client.rest(1):
            break
        acknowledged[path] = data
    assert len(acknowledged) > 10
    assert_ended(failing)
    failing.fault = None
    failing.start()
    reader = Client(failing.port)
    assert acknowledged.items() <= znodes(reader).items()
    for each in (client, reader):
        each.close()


def test_a_start_does_not_build_on_a_journal_that_may_not_be_on_disk(
    zookeeper: ZooKeeperProcess,
) -> None:
    """After a failed flush the kernel shows what the disk does not have. What is appended to such a
    journal is lost with it, so it is moved into the file before anything else is written."""
    client = Client(zookeeper.port)
    assert client.call(*CHANGES[0])[0] == 0
    zookeeper.stop()
    client.close()
    journal = zookeeper.directory / JOURNAL
    length = journal.stat().st_size
    database = TreeFile(str(zookeeper.directory / FILE_NAME), "FULL")
    assert journal.stat().st_size < length
    assert b"/a" in (zookeeper.directory / FILE_NAME).read_bytes()
    database.close()
