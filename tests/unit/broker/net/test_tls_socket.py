import gc
import random
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from ottla.broker.net import tls as tls_socket
from ottla.broker.net.tls import (
    MAX_ALERT_BYTES,
    MAX_BYTES_AT_ONCE,
    MAX_RECORDS_AT_ONCE,
    RECEIVE_BYTES,
    SEND_BYTES,
    TlsSocket,
)
from ottla.broker.requests.memory_budget import SHORT_BYTES
from ottla.protocol.framing import has_no_views
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually

CONTENT = random.Random(5).randbytes(1_000_000)
RECORD_BYTES = 16384


class CountingSocket(socket.socket):
    """Counts its system calls."""

    receives = 0
    sends = 0
    before_receive: Callable[[int], None] | None = None

    def recv_into(self, *arguments: Any) -> int:
        self.receives += 1
        if self.before_receive is not None:
            self.before_receive(self.receives)
        return super().recv_into(*arguments)

    def send(self, *arguments: Any) -> int:
        self.sends += 1
        return super().send(*arguments)


class Peer:
    """The client: decides which bytes of which records are sent when."""

    def __init__(self, context: ssl.SSLContext) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            self.sock = socket.create_connection(listening.getsockname())
            accepted, _ = listening.accept()
        self.accepted = CountingSocket(fileno=accepted.detach())
        self.accepted.setblocking(False)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    def handshake(self, server: TlsSocket) -> None:
        done = False
        while not done:
            try:
                self.tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            self.send(self._outgoing.read())
            try:
                server.do_handshake()
            except ssl.SSLWantReadError:
                if not done:
                    self._incoming.write(self.sock.recv(65536))

    def records(self, *contents: bytes) -> bytes:
        """A record for each, as it is sent."""
        for content in contents:
            self.tls.write(content)
        return self._outgoing.read()

    def send(self, encrypted: bytes) -> None:
        self.sock.sendall(encrypted)

    def close_notify(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self._outgoing.read()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.sock.close()

    def read(self, size: int) -> bytes:
        """So many bytes of what the server sent, once they are there."""
        found = bytearray()
        while len(found) < size:
            try:
                found += self.tls.read(size - len(found))
            except ssl.SSLWantReadError:
                self._incoming.write(self.sock.recv(65536))
        return bytes(found)

    def read_now(self) -> bytes:
        """What is there, without the last record, if it is not complete."""
        found = bytearray()
        with suppress(BlockingIOError):
            self._incoming.write(self.sock.recv(1 << 20, socket.MSG_DONTWAIT))
        with suppress(ssl.SSLWantReadError):
            while True:
                found += self.tls.read(65536)
        return bytes(found)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def peer(certificates: Certificates) -> Iterator[Peer]:
    peer = Peer(certificates.client_context())
    yield peer
    peer.sock.close()


@pytest.fixture
def server(peer: Peer, certificates: Certificates) -> Iterator[TlsSocket]:
    buffer = memoryview(bytearray(SEND_BYTES))
    server = TlsSocket(peer.accepted, certificates.server_context(), buffer)
    peer.handshake(server)
    peer.accepted.receives = peer.accepted.sends = 0
    yield server
    server.close()


def arrived(peer: Peer, size: int) -> bool:
    """The bytes that were sent are at the server."""
    try:
        return len(peer.accepted.recv(size, socket.MSG_PEEK)) == size
    except BlockingIOError:
        return False


def deliver(peer: Peer, encrypted: bytes) -> None:
    peer.send(encrypted)
    eventually(lambda: arrived(peer, len(encrypted)), seconds=20)


def test_many_records_take_one_system_call(peer: Peer, server: TlsSocket) -> None:
    """librdkafka sends each value, and what is between two values, in a record of its own."""
    contents = [bytes([number]) * (1000 if number % 2 else 10) for number in range(50)]
    deliver(peer, peer.records(*contents))
    buffer = bytearray(65536)
    size = server.recv_into(buffer)
    assert bytes(buffer[:size]) == b"".join(contents)
    assert peer.accepted.receives == 1
    assert not server.pending()


def test_a_read_takes_all_that_came(peer: Peer, server: TlsSocket) -> None:
    sent = peer.records(*(CONTENT[n : n + RECORD_BYTES] for n in range(0, 81920, RECORD_BYTES)))
    deliver(peer, sent)
    buffer = bytearray(200_000)
    assert server.recv_into(buffer) == 81920
    assert buffer[:81920] == CONTENT[:81920]
    assert peer.accepted.receives == len(sent) // RECEIVE_BYTES + 1


def test_half_a_record_waits_for_the_other_half(peer: Peer, server: TlsSocket) -> None:
    record = peer.records(CONTENT[:5000])
    buffer = bytearray(65536)
    for part in (record[:3], record[3:2000]):
        deliver(peer, part)
        with pytest.raises(BlockingIOError):
            server.recv_into(buffer)
        assert not server.pending()
    deliver(peer, record[2000:])
    assert server.recv_into(buffer) == 5000
    assert buffer[:5000] == CONTENT[:5000]


def test_what_does_not_fit_is_pending(peer: Peer, server: TlsSocket) -> None:
    deliver(peer, peer.records(CONTENT[:5000], CONTENT[5000:6000]))
    found = bytearray()
    for expected in (2000, 2000, 2000):
        buffer = bytearray(2000)
        assert server.recv_into(buffer) == expected
        found += buffer
        assert server.pending() == (len(found) < 6000)
    assert found == CONTENT[:6000]
    assert peer.accepted.receives == 2, "a short buffer is filled by short pieces"


@pytest.mark.parametrize("last", ["close_notify", "end", "end in a record"])
def test_the_end_comes_after_the_data(peer: Peer, server: TlsSocket, last: str) -> None:
    """In the same packet, so that nothing that the loop sees follows it."""
    sent = peer.records(b"before the end")
    if last == "close_notify":
        sent += peer.close_notify()
    elif last == "end in a record":
        sent += peer.records(b"never complete")[:-1]
    deliver(peer, sent)
    if last != "close_notify":
        peer.sock.shutdown(socket.SHUT_WR)
        poll = select.poll()
        poll.register(peer.accepted, getattr(select, "POLLRDHUP", select.POLLIN))  # Linux has it
        eventually(lambda: poll.poll(0), seconds=20)
    buffer = bytearray(14)
    assert server.recv_into(buffer) == 14
    assert buffer == b"before the end"
    if last == "close_notify":
        assert server.pending()
    assert server.recv_into(buffer) == 0
    assert server.pending()
    assert server.recv_into(buffer) == 0


def test_a_reset_is_seen_behind_half_a_record(peer: Peer, server: TlsSocket) -> None:
    """uvloop reports it once, with the data before it."""
    deliver(peer, peer.records(CONTENT[:5000])[:1000])
    peer.accepted.before_receive = lambda count: peer.reset() if count == 2 else None
    with pytest.raises(ConnectionResetError):
        server.recv_into(bytearray(65536))


def test_a_reset_comes_after_the_data(peer: Peer, server: TlsSocket) -> None:
    first = peer.records(bytes(RECORD_BYTES))
    overhead = len(first) - RECORD_BYTES
    size = RECEIVE_BYTES - len(first) - overhead
    sent = first + peer.records(bytes(size))
    assert len(sent) == RECEIVE_BYTES  # a full read, after which there may be more
    deliver(peer, sent)
    peer.accepted.before_receive = lambda count: peer.reset() if count == 2 else None
    assert server.recv_into(bytearray(65536)) == RECORD_BYTES + size
    assert server.pending()
    with pytest.raises(ConnectionResetError):
        server.recv_into(bytearray(65536))


def test_a_wrong_record_is_an_error_after_the_data_before_it(peer: Peer, server: TlsSocket) -> None:
    wrong = bytearray(peer.records(b"right", b"wrong"))
    wrong[-1] ^= 1
    deliver(peer, bytes(wrong))
    buffer = bytearray(100)
    assert server.recv_into(buffer) == 5
    assert server.pending()
    with pytest.raises(ssl.SSLError, match="bad record mac"):
        server.recv_into(buffer)


@pytest.mark.parametrize("is_reset", [False, True])
def test_an_error_after_data_does_not_keep_the_buffer(
    peer: Peer, server: TlsSocket, is_reset: bool
) -> None:
    """It may be one of those that are used again, or as long as a request may be."""
    memory = bytearray(65536)
    first = peer.records(bytes(RECORD_BYTES))
    rest = bytes(RECEIVE_BYTES - 2 * len(first) + RECORD_BYTES)
    last = bytearray(peer.records(rest))  # a full read, after which there may be more
    if is_reset:
        peer.accepted.before_receive = lambda count: peer.reset() if count == 2 else None
    else:
        last[-1] ^= 1
    deliver(peer, first + last)
    gc.disable()
    try:
        assert server.recv_into(memoryview(memory)) > 0
        with suppress(OSError):
            server.recv_into(memoryview(memory))
            raise AssertionError("there was an error")
        assert has_no_views(memory)
    finally:
        gc.enable()


def test_tiny_records_are_read_in_turns(peer: Peer, server: TlsSocket) -> None:
    count = 2 * MAX_RECORDS_AT_ONCE + 100
    peer.send(peer.records(*(CONTENT[n : n + 1] for n in range(count))))
    found = bytearray()
    while len(found) < count:
        buffer = bytearray(65536)
        size = server.recv_into(buffer)
        # What was left of the last read, and a whole one.
        assert 0 < size <= 2 * MAX_RECORDS_AT_ONCE
        found += buffer[:size]
    assert found == CONTENT[:count]


def test_a_read_is_bounded(peer: Peer, server: TlsSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other connections get their turn, however fast a client sends."""
    monkeypatch.setattr(tls_socket, "MAX_BYTES_AT_ONCE", 65536)
    deliver(peer, peer.records(*([bytes(RECORD_BYTES)] * 8)))
    assert server.recv_into(bytearray(1_000_000)) < 65536
    assert peer.accepted.receives == 2


def test_records_without_data_end_the_connection(
    peer: Peer, server: TlsSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_socket, "RECEIVE_BYTES", 1000)
    monkeypatch.setattr(tls_socket, "MAX_BYTES_AT_ONCE", 10_000)
    deliver(peer, peer.records(bytes(RECORD_BYTES)))
    with pytest.raises(OSError, match="no data in 10000 bytes"):
        server.recv_into(bytearray(1_000_000))


def test_little_is_kept_of_a_client_that_sends_much(peer: Peer, server: TlsSocket) -> None:
    peer.sock.setblocking(False)
    encrypted = peer.records(*([bytes(RECORD_BYTES)] * 60))
    peer.sock.send(encrypted)
    buffer = bytearray(1)
    for _ in range(100):
        assert server.recv_into(buffer) == 1
        assert server._incoming.pending <= RECEIVE_BYTES
    assert peer.accepted.receives <= RECORD_BYTES // SHORT_BYTES + 1
    assert MAX_BYTES_AT_ONCE > RECEIVE_BYTES + 2 * RECORD_BYTES  # a record always fits


def test_one_send_takes_several_records(peer: Peer, server: TlsSocket) -> None:
    assert server.send(CONTENT) == SEND_BYTES
    assert server.send(b"behind") == 6
    assert peer.accepted.sends == 2
    assert peer.read(SEND_BYTES + 6) == CONTENT[:SEND_BYTES] + b"behind"


def send_all(server: TlsSocket, peer: Peer, content: bytes) -> bytes:
    """Send when the socket has no room, too; what the client got."""
    found, sent, blocked = b"", 0, 0
    while sent < len(content):
        try:
            sent += server.send(memoryview(content)[sent:])
        except BlockingIOError:
            blocked += 1
            found += peer.read_now()
    assert blocked
    return found + peer.read(len(content) - len(found))


def test_what_a_full_socket_does_not_take_is_sent_later(peer: Peer, server: TlsSocket) -> None:
    peer.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
    content = CONTENT * 12
    assert send_all(server, peer, content) == content


def test_parts_of_files(peer: Peer, server: TlsSocket, tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    path.write_bytes(CONTENT)
    with path.open("rb") as file:
        fd = file.fileno()
        assert server.send_file(fd, 100, 1000) == 1000
        assert peer.read(1000) == CONTENT[100:1100]
        assert server.send_file(fd, len(CONTENT) - 10, 1000) == 10
        assert peer.read(10) == CONTENT[-10:]
        assert server.send_file(fd, len(CONTENT), 1000) == 0
        peer.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        found, sent = b"", 0
        while sent < len(CONTENT):
            try:
                sent += server.send_file(fd, sent, len(CONTENT) - sent)
            except BlockingIOError:
                found += peer.read_now()
        assert found + peer.read(len(CONTENT) - len(found)) == CONTENT


def test_alerts_are_not_kept_for_a_client_that_does_not_read(peer: Peer, server: TlsSocket) -> None:
    peer.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
    blocked = 0
    while blocked < 100:  # also when the kernels have moved what they had
        try:
            server.send(CONTENT)
        except BlockingIOError:
            blocked += 1

    def provoke_alerts(times: int) -> None:
        for _ in range(times):
            server._outgoing.write(bytes(100))  # as OpenSSL writes an alert
            deliver(peer, peer.records(b"data"))
            assert server.recv_into(bytearray(100)) == 4

    provoke_alerts(5)
    with pytest.raises(OSError, match="does not read TLS alerts"):
        provoke_alerts(500)
    assert server._outgoing.pending < MAX_ALERT_BYTES + 200


def test_close_sends_close_notify(peer: Peer, server: TlsSocket) -> None:
    server.send(b"the last")
    server.close()
    assert peer.read(8) == b"the last"
    peer._incoming.write(peer.sock.recv(1000))
    assert peer.tls.read(1) == b""
    assert peer.sock.recv(1) == b""
