"""What comes in on the port and is no request: handled as in Kafka, or closed with a log line."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.broker_process import BrokerProcess, start_broker

SECONDS = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("bad-input")) as started:
        yield started


def connect(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=SECONDS)


def header(key: int, version: int, correlation_id: int = 7) -> bytes:
    return struct.pack(">hhih", key, version, correlation_id, -1)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part, f"closed after {len(data)} of {size} bytes"
        data += part
    return data


def read_frame(sock: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", read_exactly(sock, 4))
    return read_exactly(sock, size)


def is_closed(sock: socket.socket) -> bool:
    """Whether the broker closes the connection without another word."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def resident_kilobytes(broker: BrokerProcess) -> int:
    with open(f"/proc/{broker.pid}/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1])


def still_serves(broker: BrokerProcess) -> bool:
    with connect(broker) as sock:
        sock.sendall(frame(header(18, 0)))
        response = read_frame(sock)
    return struct.unpack(">ih", response[:6]) == (7, 0)


def test_an_unknown_version_of_api_versions_gets_the_range_in_version_0(
    broker: BrokerProcess,
) -> None:
    with connect(broker) as sock:
        sock.sendall(frame(header(18, 127) + b"\x00garbage that no broker decodes"))
        response = read_frame(sock)
    correlation_id, error_code, count = struct.unpack(">ihi", response[:10])
    assert (correlation_id, error_code) == (7, 35)
    assert count == 1
    assert struct.unpack(">hhh", response[10:]) == (18, 0, 4)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(header(9999, 0), id="unknown api"),
        pytest.param(header(0, 99), id="unknown version"),
        pytest.param(header(17, 0), id="api that is not offered"),
        pytest.param(header(3, 1) + b"\x00\x00\x00\x09", id="array longer than the frame"),
        pytest.param(header(3, 1) + b"\xff\xff\xff\xfe", id="negative length inside"),
        pytest.param(b"\x00", id="frame shorter than a header"),
    ],
)
def test_what_is_no_request_of_ours_ends_the_connection(broker: BrokerProcess, body: bytes) -> None:
    with connect(broker) as sock:
        sock.sendall(frame(body))
        assert is_closed(sock)
    assert still_serves(broker)


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 104_857_601])
def test_impossible_lengths_end_the_connection_and_take_no_memory(
    broker: BrokerProcess, size: int
) -> None:
    assert still_serves(broker)
    before = resident_kilobytes(broker)
    with connect(broker) as sock:
        sock.sendall(struct.pack(">i", size) + b"x" * 100)
        assert is_closed(sock)
    assert resident_kilobytes(broker) - before < 8_192
    assert still_serves(broker)


@pytest.mark.parametrize(
    ("greeting", "word"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP"),
        (bytes.fromhex("160301020001000001fc0303") + bytes(32), "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
    ],
)
def test_other_protocols_are_named_in_the_log(tmp_path: Path, greeting: bytes, word: str) -> None:
    # A broker of its own: one that has seen much of this from an address says less about it.
    with start_broker(tmp_path) as broker:
        with connect(broker) as sock:
            sock.sendall(greeting)
            while sock.recv(4096):
                pass  # An HTTP client gets the reason in HTTP.
        assert still_serves(broker)
        assert word in broker.log()


def test_a_torn_frame_harms_no_client(broker: BrokerProcess) -> None:
    with connect(broker) as sock:
        sock.sendall(struct.pack(">i", 1000) + header(3, 1) + b"half")
    assert still_serves(broker)


def test_requests_after_each_other_are_completed_in_order(broker: BrokerProcess) -> None:
    with connect(broker) as sock:
        sock.sendall(b"".join(frame(header(18, 0, number)) for number in range(50)))
        ids = [struct.unpack(">i", read_frame(sock)[:4])[0] for _ in range(50)]
    assert ids == list(range(50))


def test_produce_with_acks_0_that_fails_closes_the_connection(broker: BrokerProcess) -> None:
    topic = b"no such topic!"
    body = (
        header(0, 2)
        + struct.pack(">hi", 0, 1000)
        + struct.pack(">i", 1)
        + struct.pack(">h", len(topic))
        + topic
        + struct.pack(">iii", 1, 0, 4)
        + b"none"
    )
    with connect(broker) as sock:
        sock.sendall(frame(body))
        assert is_closed(sock)
    assert still_serves(broker)


def test_nothing_of_this_leaves_a_traceback(broker: BrokerProcess) -> None:
    assert "Traceback" not in broker.log()
