import asyncio
from contextlib import suppress

import pytest

from ottla.broker.net import invalid_frames
from ottla.broker.net.invalid_frames import (
    FOREIGN_SIZE,
    HTTP_METHODS,
    explanation,
    http_response,
    recognise,
)
from tests.doubles.network import SIZE, metadata_request, running_network

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + b"\x00" * 190


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invalid_frames, "LINGER_MS", 10)


async def test_http_gets_a_response_as_text(caplog: pytest.LogCaptureFixture) -> None:
    async with running_network() as network:
        client = await network.connect()
        client.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = (await client.reader.read()).decode()
        head, _, body = response.partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 400 ")
        assert f"Content-Length: {len(body)}" in head
        assert "This is a Kafka port" in body
        assert f"127.0.0.1:{network.port}" in body
        assert "sent HTTP" in caplog.text
        await network.until(lambda: not network.server.connections)
        assert network.statistics.wrong_protocol == 1


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_every_method_of_http_is_known(method: str) -> None:
    async with running_network() as network:
        client = await network.connect()
        client.writer.write(f"{method} /topics HTTP/1.1\r\n\r\n".encode())
        assert (await client.reader.read()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("first_bytes", "words"),
    [
        (TLS_HELLO, "sent TLS: listener PLAINTEXT is not encrypted"),
        (bytes.fromhex("15030300020230"), "sent a TLS alert"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "sent SSH"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 4000 9092\r\n", "sent the PROXY protocol"),
        (
            b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12),
            "sent the PROXY protocol: listener PLAINTEXT does not read it; disable it in the load",
        ),
    ],
)
async def test_others_are_closed_with_a_log_line(
    first_bytes: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_network() as network:
        for _ in range(3):
            client = await network.connect()
            client.writer.write(first_bytes)
            assert await client.is_closed()
        assert [words in record.getMessage() for record in caplog.records] == [True]
        assert network.statistics.wrong_protocol == 3
        assert network.channel.in_progress_bytes == 0


async def test_first_bytes_may_come_one_by_one() -> None:
    async with running_network() as network:
        client = await network.connect()
        for byte in b"GET ":
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.002)
        assert (await client.reader.read()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("size", [-1, -(2**31), 1_000_001, 2**31 - 1])
async def test_impossible_sizes_close_the_connection(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_network(request_max_bytes=1_000_000) as network:
        client = await network.connect()
        await client.ask(metadata_request())
        client.writer.write(SIZE.pack(size) + b"GET ")
        assert await client.is_closed()
        (line,) = [record.getMessage() for record in caplog.records]
        assert f"announced a request of {size} bytes; allowed are 0 to 1000000" in line
        assert network.statistics.protocol_errors == 1
        assert network.channel.in_progress_bytes == 0


async def test_a_client_known_to_speak_kafka_may_send_huge_requests_if_settings_allow() -> None:
    async with running_network(request_max_bytes=2**31 - 1) as network:
        client = await network.connect()
        await client.ask(metadata_request())
        size = int.from_bytes(b"GET ", "big")
        client.writer.write(SIZE.pack(size) + b"\0\0\0\0")  # Produce has records
        await network.until(lambda: network.channel.in_progress_bytes == size)
        other = await network.connect()
        other.writer.write(b"GET ")
        assert (await other.reader.read()).startswith(b"HTTP/1.1 400 ")


async def test_a_client_that_is_gone_before_the_response_does_no_harm() -> None:
    async with running_network() as network:
        sock = network.raw_socket()
        sock.send(b"GET / HTTP/1.1\r\n\r\n")
        sock.close()
        await network.until(lambda: network.statistics.connections_closed == 1)
        with suppress(OSError):
            sock.close()


@pytest.mark.parametrize(
    ("first_bytes", "protocol"),
    [
        (b"GET ", "HTTP"),
        (b"DELE", "HTTP"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"\x15\x03\x03\x00", "a TLS alert"),
        (b"SSH-", "SSH"),
        (b"PROX", "the PROXY protocol"),
        (b"\r\n\r\n", "the PROXY protocol"),
        (b"\x00\x00\x00\x10", None),
        (b"get ", None),
        (b"", None),
    ],
)
def test_recognise(first_bytes: bytes, protocol: str | None) -> None:
    assert recognise(first_bytes) == protocol
    if protocol is not None:
        assert "PLAINTEXT" in explanation(protocol, "PLAINTEXT") or protocol == "a TLS alert"


def test_only_sizes_from_foreign_size_on_can_be_of_another_protocol() -> None:
    smallest = min(
        int.from_bytes(first, "big")
        for first in (*HTTP_METHODS, b"SSH-", b"\x16\x03\x00\x00", b"PROX", b"\r\n\r\n")
    )
    assert smallest == FOREIGN_SIZE


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert b"bootstrap.servers=[::1]:9092 " in http_response("EXTERNAL", "::1", 9092)


async def test_a_second_mistake_of_an_address_is_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_network() as network:
        for first_bytes in (b"GET / HTTP/1.1\r\n\r\n", TLS_HELLO):
            client = await network.connect()
            client.writer.write(first_bytes)
            await client.reader.read()
        assert ["HTTP" in each.getMessage() for each in caplog.records] == [True, False]
