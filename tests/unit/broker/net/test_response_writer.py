import asyncio
import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.metrics.statistics import NetworkStatistics
from ottla.broker.net import output as output_module
from ottla.broker.net.connection import ResponseWriter
from ottla.broker.net.output import Output, TurnLimit
from ottla.broker.requests import held_responses as held_module
from ottla.broker.requests import request_channel as channel_module
from ottla.broker.requests.held_responses import MAX_HELD
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.metadata import MetadataResponse
from tests.doubles.channel import Channel
from tests.doubles.network import Client, Network, entry, metadata_request, running_network

FETCH = 1
CONTENT = random.Random(2).randbytes(8_000_000)


class Slice:
    """A part of a file, as the log hands it out."""

    def __init__(self, fd: int, position: int, length: int) -> None:
        self.fd, self.position, self.length = fd, position, length

    def __len__(self) -> int:
        return self.length


class Fetches:
    """A handler that returns for each fetch three parts of a file; `max_bytes` of the request
    says how many bytes each has."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(CONTENT)
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)

    def handle(self, _: RequestContext, request: FetchRequest) -> FetchResponse:
        length = request.max_bytes
        rows = [
            PartitionData(partition_index=n, records=Slice(self.fd, n * length, length))
            for n in range(3)
        ]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=rows)])


@pytest.fixture
def fetches(tmp_path: Path) -> Iterator[Fetches]:
    fetches = Fetches(tmp_path / "segment.log")
    yield fetches
    os.close(fetches.fd)


def check(response: Message, length: int) -> None:
    assert isinstance(response, FetchResponse)
    for number, row in enumerate(response.responses[0].partitions):
        records = row.records
        assert isinstance(records, bytes | memoryview)
        assert bytes(records) == CONTENT[number * length : (number + 1) * length]


async def fetch(client: Client, length: int) -> None:
    check(await client.ask(FetchRequest(max_bytes=length), 4), length)


@pytest.mark.parametrize("length", [100_000, 2_500_000])
async def test_parts_of_files_go_by_sendfile(fetches: Fetches, length: int) -> None:
    async with running_network(entry(FETCH, "Fetch", fetches.handle)) as network:
        client = await network.connect()
        for _ in range(3):
            await fetch(client, length)
        assert network.statistics.sendfile_bytes == 9 * length
        assert network.statistics.bytes_out > 9 * length


@pytest.mark.parametrize("length", [1, 1_000])
async def test_small_parts_leave_with_what_stands_around_them(
    fetches: Fetches, length: int
) -> None:
    async with running_network(entry(FETCH, "Fetch", fetches.handle)) as network:
        client = await network.connect()
        for _ in range(3):
            await fetch(client, length)


async def test_responses_of_both_kinds_stay_in_order(fetches: Fetches) -> None:
    async with running_network(entry(FETCH, "Fetch", fetches.handle)) as network:
        clients = [await network.connect() for _ in range(3)]
        for client in clients:
            for _ in range(5):
                client.send(metadata_request())
                client.send(FetchRequest(max_bytes=5_000), 4)
        for client in clients:
            for number in range(5):
                assert await client.receive() == (2 * number + 1, MetadataResponse())
                correlation_id, response = await client.receive(FETCH, 4)
                assert correlation_id == 2 * number + 2
                check(response, 5_000)


async def test_a_client_that_reads_slowly_gets_everything_and_holds_up_no_other(
    fetches: Fetches,
) -> None:
    length = 2_500_000  # three parts of it are more than the buffers of both sockets hold
    async with running_network(entry(FETCH, "Fetch", fetches.handle)) as network:
        slow = await network.connect()
        slow.writer.transport.pause_reading()
        for _ in range(3):
            slow.send(FetchRequest(max_bytes=length), 4)
        quick = await network.connect()
        for _ in range(50):
            await fetch(quick, 100)
        # One response is on its way, the other requests are not even read.
        fetched = network.channel.routes[FETCH].statistics.by_version
        assert fetched == {4: 50}
        assert sum(connection.in_flight for connection in network.server.connections) == 1
        slow.writer.transport.resume_reading()
        for _ in range(3):
            check((await slow.receive(FETCH, 4))[1], length)


async def test_a_client_that_leaves_in_the_middle_of_a_response_does_no_harm(
    fetches: Fetches,
) -> None:
    async with running_network(entry(FETCH, "Fetch", fetches.handle)) as network:
        client = await network.connect()
        client.writer.transport.pause_reading()
        client.send(FetchRequest(max_bytes=2_500_000), 4)
        await network.until(lambda: network.statistics.sendfile_bytes > 0)
        client.writer.transport.abort()
        await network.until(lambda: not network.server.connections)
        assert network.channel.in_progress_bytes == 0


async def test_a_file_that_is_too_short_closes_the_connection(
    fetches: Fetches, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_network(entry(FETCH, "Fetch", fetches.handle)) as network:
        client = await network.connect()
        client.send(FetchRequest(max_bytes=5_000_000), 4)
        received = 0
        with suppress(ConnectionResetError):
            while data := await client.reader.read(1 << 20):
                received += len(data)
        assert 0 < received < len(CONTENT) + 1_000
        await network.until(lambda: not network.server.connections)
        assert "a log file is too short" in caplog.text


async def test_cold_files_are_read_by_a_worker_while_others_are_served(
    fetches: Fetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, int]] = []

    def warm(fd: int, position: int, length: int) -> None:
        read.append((position, length))
        output_module.warm(fd, position, length)

    monkeypatch.setattr(output_module, "is_cached", lambda *_: False)
    monkeypatch.setattr("ottla.broker.net.connection.warm", warm)
    async with running_network(entry(FETCH, "Fetch", fetches.handle)) as network:
        clients = [await network.connect() for _ in range(3)]
        await asyncio.gather(*(fetch(client, 2_500_000) for client in clients))
        assert await clients[0].ask(metadata_request()) == MetadataResponse()
        # Each piece once for each client, not again and again while the socket has room.
        assert sum(length for _, length in read) == 3 * 7_500_000
        assert len(read) == 3 * len(set(read))


async def test_a_cold_file_that_cannot_be_read_closes_the_connection(
    fetches: Fetches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(output_module, "is_cached", lambda *_: False)
    monkeypatch.setattr("ottla.broker.net.connection.warm", fail)
    async with running_network(entry(FETCH, "Fetch", fetches.handle)) as network:
        client = await network.connect()
        client.send(FetchRequest(max_bytes=100_000), 4)
        await network.until(lambda: not network.server.connections)
        assert "Input/output error" in caplog.text


async def test_closing_while_a_worker_reads_does_no_harm(
    fetches: Fetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def read_slowly(*_: int) -> None:
        reading.set()
        go_on.wait(20)

    monkeypatch.setattr(output_module, "is_cached", lambda *_: False)
    monkeypatch.setattr("ottla.broker.net.connection.warm", read_slowly)
    async with running_network(entry(FETCH, "Fetch", fetches.handle)) as network:
        client = await network.connect()
        client.send(FetchRequest(max_bytes=100_000), 4)
        await network.until(reading.is_set)
        (connection,) = network.server.connections
        connection.close("the test says so")
        go_on.set()
        await network.until(lambda: not connection._writer._warming)
        assert network.channel.in_progress_bytes == 0


async def held_responses(network: Network) -> int:
    """Let two clients pipeline; returns how many sends their responses took."""
    sends = 0
    clients = [await network.connect() for _ in range(2)]
    await network.until(lambda: len(network.server.connections) == 2)
    for connection in network.server.connections:
        inner = connection._writer._sock

        class Counting:
            def __getattr__(self, name: str, inner: socket.socket = inner) -> object:
                nonlocal sends
                sends += name in ("send", "sendmsg")
                return getattr(inner, name)

        connection._writer._sock = Counting()
    for client in clients:
        for _ in range(20):
            client.send(metadata_request())
    for client in clients:
        for number in range(20):
            assert (await client.receive())[0] == number + 1
    return sends


async def test_responses_to_requests_that_came_together_leave_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_module, "MAX_HELD_SECONDS", 60.0)
    monkeypatch.setattr(channel_module, "IN_A_ROW_SECONDS", 60.0)
    monkeypatch.setattr(channel_module, "MAX_TURN_SECONDS", 60.0)
    async with running_network() as network:
        assert await held_responses(network) < 20


async def test_no_more_than_so_many_bytes_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.net.connection.MAX_HELD_BYTES", 0)
    async with running_network() as network:
        assert await held_responses(network) == 40


async def test_a_held_response_whose_client_is_gone_does_no_harm() -> None:
    async with running_network() as network:
        clients = [await network.connect() for _ in range(4)]
        for client in clients:
            for _ in range(50):
                client.send(metadata_request())
            client.writer.transport.abort()
        await network.until(lambda: network.statistics.connections_closed == 4)
        await network.until(lambda: network.channel.in_progress_bytes == 0)
        assert not network.channel.held._flushes


class Taking:
    """A socket that takes everything, or so much in the first call, and its owner."""

    at_once = 1000

    def __init__(self, sent: list[bytes]) -> None:
        self._sent = sent
        self.responses = 0

    def fileno(self) -> int:
        return 3

    def send(self, data: bytes) -> int:
        part = data[: self.at_once]
        self._sent.append(part)
        return len(part)

    def sendmsg(self, buffers: list[bytes], *_: object) -> int:
        self._sent += buffers
        return sum(map(len, buffers))

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def response_is_sent(self, _: RequestContext) -> None:
        self.responses += 1

    def has_whole_request(self) -> bool:
        return False


def writers_to(owner: Any, channel: Channel, count: int) -> list[ResponseWriter]:
    """Writers of `count` connections that share one socket and the services of a loop."""
    services: Any = SimpleNamespace(
        channel=channel.channel,
        statistics=NetworkStatistics(),
        turn_limit=TurnLimit(),
        release=lambda *_: None,
    )
    return [ResponseWriter(owner, services, owner, Output) for _ in range(count)]


def test_responses_of_several_connections_are_sent_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_module, "MAX_HELD_SECONDS", 60.0)
    channel = Channel(lambda *_: None)
    sent: list[bytes] = []
    writers = writers_to(Taking(sent), channel, 4)
    held = channel.channel.held

    def respond(number: int) -> None:
        writers[number].context = context = channel.context()
        writers[number].send_response(context, [bytes([number])])

    respond(0)  # outside of a turn
    assert sent == [b"\0"]
    held.begin()
    respond(1)  # no other request waits, so perhaps it is the only one
    assert sent == [b"\0", b"\1"]
    respond(2)
    respond(3)
    assert len(sent) == 2
    assert all(writer.in_flight for writer in writers[2:])
    held.end()
    assert sent[2:] == [b"\2", b"\3"]
    assert not any(writer.in_flight for writer in writers)


def test_a_response_that_is_sent_in_two_parts_is_finished_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_module, "MAX_HELD_SECONDS", 60.0)
    channel = Channel(lambda *_: None)
    sent: list[bytes] = []
    owner = Taking(sent)
    owner.at_once = 1
    writers = writers_to(owner, channel, MAX_HELD)
    channel.channel.held.begin()
    channel.channel.held.expects_more = True
    for writer in writers:
        writer.context = context = channel.context()
        writer.send_response(context, [b"ab"])
    # The last one made all of them due.
    assert sent == [b"a", b"b"] * MAX_HELD
    assert owner.responses == MAX_HELD
    assert not any(writer.in_flight for writer in writers)
