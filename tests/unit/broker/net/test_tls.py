import asyncio
import logging
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from ottla.broker.net import connection as connection_module
from ottla.broker.net import tls as tls_module
from ottla.broker.net import tls as tls_socket_module
from ottla.broker.requests.memory_budget import MemoryBudget
from ottla.broker.requests.request_channel import Principal, RequestContext
from ottla.broker.security.audit.repeats import LINES_OF_EVENT
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.tls.distinguished_names import distinguished_name, subject_of
from ottla.protocol.headers import encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.metadata import MetadataResponse
from tests.doubles.certificates import Certificates
from tests.doubles.network import (
    METADATA,
    Client,
    Network,
    entry,
    metadata_request,
    running_network,
)

FETCH = 1
CONTENT = random.Random(3).randbytes(4_000_000)


class Slice:
    """A part of a file, as the log hands it out."""

    def __init__(self, fd: int, position: int, length: int) -> None:
        self.fd, self.position, self.length = fd, position, length

    def __len__(self) -> int:
        return self.length


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls_options(certificates: Certificates) -> dict[str, Any]:
    return {"security_protocol": "SSL", "tls_context": certificates.server_context()}


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "segment.log"
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


async def raw_tls_client(
    network: Network, certificates: Certificates
) -> tuple[socket.socket, ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """A client after its handshake, whose records the test sends in pieces of its own."""
    sock = network.raw_socket()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = certificates.client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    loop = asyncio.get_running_loop()
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            await loop.sock_sendall(sock, outgoing.read())
            incoming.write(await loop.sock_recv(sock, 65536))
    return sock, tls, incoming, outgoing


def response_bytes(tls: ssl.SSLObject) -> bytes:
    try:
        return tls.read(100)
    except ssl.SSLWantReadError:
        return b""


@pytest.mark.usefixtures("_nobody_is_fast")
async def test_long_requests_that_were_set_aside_go_on(
    certificates: Certificates, tls_options: dict[str, Any]
) -> None:
    memory = MemoryBudget()
    memory.limit(500_000, 1 << 20, 1 << 20)
    async with running_network(
        memory=memory, authentication_timeout_ms=40, **tls_options
    ) as network:
        frame = encode_request(1, "t", metadata_request(*(["n" * 30_000] * 4)), 0)
        silent = [await network.connect(certificates.client_context()) for _ in range(3)]
        for client in silent:
            client.writer.write(frame[:20_000])
        await network.until(lambda: memory.large.waiting > 0)
        busy = await network.connect(certificates.client_context())
        busy.writer.write(frame)
        await busy.receive()
        await network.until(lambda: len(memory.aside) == 3)
        for client in silent:
            client.writer.write(frame[20_000:])
        for client in silent:
            await client.receive()
        assert memory.stalled_total == 0
        assert memory.used == 0


@pytest.mark.usefixtures("_nobody_is_fast")
async def test_a_request_that_was_set_aside_within_a_record_goes_on(
    certificates: Certificates, tls_options: dict[str, Any]
) -> None:
    memory = MemoryBudget()
    memory.limit(500_000, 1 << 20, 1 << 20)
    async with running_network(
        memory=memory, authentication_timeout_ms=40, **tls_options
    ) as network:
        frame = encode_request(1, "t", metadata_request(*(["n" * 30_000] * 4)), 0)
        slow, tls, incoming, outgoing = await raw_tls_client(network, certificates)
        loop = asyncio.get_running_loop()
        sent = 0
        while sent < len(frame):
            sent += tls.write(frame[sent:])
        records = outgoing.read()
        # Less than what wakes a connection without TLS whose request was set aside.
        await loop.sock_sendall(slow, records[:-200])
        others = [await network.connect(certificates.client_context()) for _ in range(3)]
        for client in others:
            client.writer.write(frame)
        await network.until(lambda: len(memory.aside) == 1)
        await loop.sock_sendall(slow, records[-200:])
        with closing(slow):
            async with asyncio.timeout(5):
                while not response_bytes(tls):
                    received = await loop.sock_recv(slow, 1 << 20)
                    assert received, "the broker closed the connection"
                    incoming.write(received)
        for client in others:
            await client.receive()


async def test_requests_and_responses(
    certificates: Certificates, tls_options: dict[str, Any]
) -> None:
    async with running_network(**tls_options) as network:
        client = await network.connect(certificates.client_context())
        for _ in range(3):
            assert await client.ask(metadata_request()) == MetadataResponse()
        for _ in range(500):
            client.send(metadata_request("x" * 200))
        for number in range(500):
            assert (await client.receive())[0] == 3 + number + 1


async def test_requests_longer_than_a_record(
    certificates: Certificates, tls_options: dict[str, Any]
) -> None:
    """What OpenSSL has decrypted and not handed out yet is invisible to the loop."""
    async with running_network(**tls_options) as network:
        client = await network.connect(certificates.client_context())
        for size in (15_000, 16_384, 20_000, 32_000):
            names = ["x" * size] * 40
            client.send(metadata_request(*names))
            client.send(metadata_request())
        for _ in range(8):
            await client.receive()


@pytest.mark.parametrize("size", [10, 1_000, 20_000])
async def test_requests_that_share_a_record(
    certificates: Certificates, tls_options: dict[str, Any], size: int
) -> None:
    """A long request is read up to its end exactly; the next one is then in OpenSSL's hands."""
    long = encode_request(1, "t", metadata_request(*["x" * 30_000] * 7, "y" * size), 0)
    short = encode_request(2, "t", metadata_request(), 0)
    async with running_network(**tls_options) as network:
        client = await network.connect(certificates.client_context())
        for _ in range(3):
            client.writer.write(long + short)
            assert (await client.receive())[0] == 1
            assert (await client.receive())[0] == 2


async def test_a_record_that_does_not_fit_into_the_buffer_of_a_request(
    certificates: Certificates, tls_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rest is decrypted, and no further byte will come that could tell of it."""
    monkeypatch.setattr(connection_module, "FEW_BYTES", 0)
    # The first record brings 16,380 bytes of the request; its buffer grows by 65,536 bytes, then
    # fourfold to 327,664. The last record goes beyond that by ten bytes.
    names = ["x" * 30_000] * 10
    empty = encode_request(1, "t", metadata_request(*names, ""), 0)
    padding = "y" * (4 + 327_664 + 10 - len(empty))
    request = encode_request(1, "t", metadata_request(*names, padding), 0)
    async with running_network(**tls_options) as network:
        client = await network.connect(certificates.client_context())
        client.writer.write(request)
        assert (await client.receive())[0] == 1


async def test_requests_in_tiny_records(
    certificates: Certificates, tls_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read in turns; what is left after one is not forgotten."""
    monkeypatch.setattr(tls_socket_module, "MAX_RECORDS_AT_ONCE", 10)
    monkeypatch.setattr(tls_module, "MAX_READS_AT_ONCE", 2)
    async with running_network(**tls_options) as network:
        client = await network.connect(certificates.client_context())
        transport = client.writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(1, 6):
            for byte in encode_request(number, "t", metadata_request("x" * 100), 0):
                client.writer.write(bytes([byte]))
        transport.resume_reading()  # type: ignore[attr-defined]
        for number in range(1, 6):
            assert (await client.receive())[0] == number


async def test_requests_are_handled_that_came_before_the_client_closed(
    certificates: Certificates, tls_options: dict[str, Any]
) -> None:
    """As a producer with acks=0 does it: with many more than one read, some in the same record."""
    handled = 0

    def handle(_: RequestContext, request: Message) -> None:
        nonlocal handled
        handled += 1

    async with running_network(entry(METADATA, "Metadata", handle), **tls_options) as network:
        client = await network.connect(certificates.client_context())
        request = encode_request(1, "t", metadata_request("x" * 1000), 0)
        for _ in range(100):
            client.writer.write(request * 7)
        await client.close()
        await network.until(lambda: network.statistics.connections_closed == 1)
        assert handled == 700


async def test_a_client_that_stops_within_a_record_is_idle(
    certificates: Certificates, tls_options: dict[str, Any]
) -> None:
    async with running_network(max_idle_ms=500, **tls_options) as network:
        sock, tls, _, outgoing = await raw_tls_client(network, certificates)
        loop = asyncio.get_running_loop()
        tls.write(encode_request(1, "t", metadata_request(), 0))
        await loop.sock_sendall(sock, outgoing.read()[:-1])
        await network.until(lambda: network.statistics.idle_closed == 1)
        sock.close()


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl s_client")


class OpenSslClient:
    """`openssl s_client`: a line with one letter is a command, anything else is sent."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.output = process.stdin, process.stdout
        self._seen = b""

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int, *options: str) -> AsyncIterator["OpenSslClient"]:
        process = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-connect", f"127.0.0.1:{port}", *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            yield cls(process)
        finally:
            # Not Process.kill(), which collects the status of one that has just ended by itself:
            # asyncio then logs that it does not know this child.
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.communicate()

    async def until(self, wanted: bytes) -> None:
        """Read up to this output."""
        async with asyncio.timeout(20):
            while wanted not in self._seen:
                more = await self.output.read(65536)
                assert more, self._seen
                self._seen += more
        self._seen = self._seen.partition(wanted)[2]


@needs_openssl
@pytest.mark.parametrize("command", [b"K", b"k"])
async def test_a_client_changes_its_keys(tls_options: dict[str, Any], command: bytes) -> None:
    async with running_network(**tls_options) as network:
        async with OpenSslClient.connect(network.port) as client:
            await client.until(b"Verify return code")
            for number in range(3):
                client.stdin.write(command + b"\n")
                await client.until(b"KEYUPDATE\n")
                name = f"name-{number}"
                client.stdin.write(encode_request(1, "t", metadata_request(name), 0))
                await client.until(name.encode())
        await network.until(lambda: network.statistics.connections_closed == 1)


@needs_openssl
async def test_a_client_that_wants_to_renegotiate_gets_an_alert(
    certificates: Certificates,
) -> None:
    context = certificates.server_context()
    context.options |= ssl.OP_NO_RENEGOTIATION
    async with running_network(security_protocol="SSL", tls_context=context) as network:
        async with OpenSslClient.connect(network.port, "-tls1_2") as client:
            await client.until(b"Verify return code")
            client.stdin.write(b"R\n")
            await client.until(b"no renegotiation")
        await network.until(lambda: network.statistics.connections_closed == 1)


async def test_parts_of_files_are_copied(
    certificates: Certificates, tls_options: dict[str, Any], fd: int
) -> None:
    def handle(_: RequestContext, request: FetchRequest) -> FetchResponse:
        length = request.max_bytes
        rows = [
            PartitionData(partition_index=n, records=Slice(fd, n * length, length))
            for n in range(3)
        ]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=rows)])

    async def fetch(client: Client, length: int) -> None:
        response = await client.ask(FetchRequest(max_bytes=length), 4)
        assert isinstance(response, FetchResponse)
        for number, row in enumerate(response.responses[0].partitions):
            assert row.records is not None
            assert bytes(row.records) == CONTENT[number * length : (number + 1) * length]

    async with running_network(entry(FETCH, "Fetch", handle), **tls_options) as network:
        context = certificates.client_context()
        clients = [await network.connect(context) for _ in range(3)]
        for length in (1, 16_000, 1_300_000):
            await asyncio.gather(*(fetch(client, length) for client in clients))
        assert network.statistics.sendfile_bytes == 0


async def test_a_client_is_known_by_its_certificate(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    seen: list[Principal] = []

    def handle(context: RequestContext, _: Message) -> Message:
        seen.append(context.principal)
        return MetadataResponse()

    def principal(certificate: bytes) -> Principal:
        return Principal("User", distinguished_name(subject_of(certificate)))

    async with running_network(
        entry(METADATA, "Metadata", handle),
        security_protocol="SSL",
        tls_context=certificates.server_context(ask_for_certificate=True),
        principal_of_certificate=principal,
    ) as network:
        client = await network.connect(certificates.client_context(with_certificate=True))
        await client.ask(metadata_request())
    assert seen == [Principal("User", "CN=client")]
    [line] = [each.getMessage() for each in caplog.records if each.name == "ottla.audit"]
    assert line.startswith("Authenticated User:CN=client from 127.0.0.1:")
    assert line.endswith(" with a certificate")


async def test_many_clients_without_a_certificate_are_counted(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    server = certificates.server_context(ask_for_certificate=True)
    log = SecurityLog(None)
    attempts = LINES_OF_EVENT + 5
    async with running_network(
        security_protocol="SSL", tls_context=server, security_log=log
    ) as network:
        for _ in range(attempts):
            client = await network.connect(certificates.client_context())
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await client.ask(metadata_request())
    log.flush()
    lines = [each for each in caplog.records if each.name == "ottla.audit"]
    assert len(lines) == LINES_OF_EVENT + 1
    assert "Suppressed 5 more lines" in lines[-1].getMessage()


async def test_a_client_without_the_required_certificate_is_refused_with_a_reason(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    server = certificates.server_context(ask_for_certificate=True)
    async with running_network(security_protocol="SSL", tls_context=server) as network:
        client = await network.connect(certificates.client_context())
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await client.ask(metadata_request())
        assert "has no certificate, which this listener requires" in caplog.text


PROXY_V2 = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12)


@pytest.mark.parametrize(
    ("first_bytes", "words"),
    [
        (
            b"\x00\x00\x00\x14" + b"\x00" * 20,
            "sent data without TLS: listener PLAINTEXT speaks",
        ),
        (b"GET / HTTP/1.1\r\n\r\n", "sent HTTP: listener PLAINTEXT speaks the Kafka protocol over"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "sent SSH"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 4000 9092\r\n", "sent the PROXY protocol"),
        (PROXY_V2, "sent the PROXY protocol: listener PLAINTEXT does not read it; disable it"),
    ],
)
async def test_clients_that_do_not_speak_tls_get_the_reason(
    first_bytes: bytes,
    words: str,
    tls_options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_network(**tls_options) as network:
        for count in range(1, 3):
            client = await network.connect()
            client.writer.write(first_bytes)
            await network.until(lambda: network.statistics.connections_closed == count)  # noqa: B023
        assert [words in record.getMessage() for record in caplog.records] == [True]
        assert network.statistics.wrong_protocol == 2


async def test_a_handshake_has_a_deadline(
    tls_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "HANDSHAKE_TIMEOUT_MS", 20)
    async with running_network(**tls_options) as network:
        client = await network.connect()
        client.writer.write(bytes.fromhex("16030100c801"))  # the beginning of a hello
        assert await client.is_closed()


async def test_a_client_that_closes_in_the_middle_of_a_handshake_does_no_harm(
    tls_options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with running_network(**tls_options) as network:
        client = await network.connect()
        client.writer.write(bytes.fromhex("16030100c801"))
        await client.close()
        await network.until(lambda: network.statistics.connections_closed == 1)


async def test_a_reset_in_the_middle_of_a_handshake_is_noticed(
    tls_options: dict[str, Any],
) -> None:
    async with running_network(**tls_options) as network:
        sock = network.raw_socket()
        await network.until(lambda: len(network.server.connections) == 1)
        sock.send(bytes.fromhex("16030100c801"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        sock.close()
        await network.until(lambda: not network.server.connections)
