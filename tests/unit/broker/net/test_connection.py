import asyncio
import gc
import os
import random
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.metrics.statistics import NetworkStatistics
from ottla.broker.net import output as output_module
from ottla.broker.net.connection import MAX_IN_A_ROW, READ_BYTES, Connection
from ottla.broker.net.output import TurnLimit
from ottla.broker.net.services import ListenerFacts
from ottla.broker.requests import held_responses as held_module
from ottla.broker.requests import request_channel as channel_module
from ottla.broker.requests.held_responses import MAX_HELD
from ottla.broker.requests.request_channel import DEFERRED, RequestContext
from ottla.protocol.headers import encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.doubles.channel import VERSION, Channel
from tests.doubles.network import (
    METADATA,
    SIZE,
    Client,
    Network,
    entry,
    metadata_request,
    running_network,
)

PRODUCE = 0
RESET = pack("ii", 1, 0)  # for SO_LINGER: closing sends a reset


def topics(response: Message) -> list[str | None]:
    assert isinstance(response, MetadataResponse)
    return [topic.name for topic in response.topics]


class Gate:
    """A handler that keeps requests until the test completes them."""

    def __init__(self) -> None:
        self.waiting: list[RequestContext] = []

    def handle(self, context: RequestContext, _: Message) -> object:
        self.waiting.append(context)
        return DEFERRED

    def open(self) -> None:
        """Complete the oldest, as the echo does."""
        context = self.waiting.pop(0)
        request = context.request
        assert isinstance(request, MetadataRequest)
        responses = [MetadataResponseTopic(name=topic.name) for topic in request.topics or ()]
        context.respond(MetadataResponse(topics=responses))


def only_connection(network: Network) -> Connection:
    (connection,) = network.server.connections
    return connection


async def test_responses_come_back_for_every_version() -> None:
    async with running_network() as network:
        client = await network.connect()
        for version in range(5):
            response = await client.ask(metadata_request("a", "b"), version)
            assert topics(response) == ["a", "b"]
        await client.close()
    assert network.statistics.bytes_in > 0
    assert network.statistics.bytes_out > 0


async def test_requests_sent_together_are_completed_in_order() -> None:
    async with running_network() as network:
        client = await network.connect()
        for number in range(300):
            client.send(metadata_request(f"t{number}"))
        for number in range(300):
            correlation_id, response = await client.receive()
            assert (correlation_id, topics(response)) == (number + 1, [f"t{number}"])
        await client.close()


@pytest.mark.parametrize("bad_frame", [b"\x7f\xff" + bytes(8), None])
async def test_responses_from_before_the_close_are_sent(bad_frame: bytes | None) -> None:
    """What was handled is acknowledged: a producer would send it again. A request that came in with
    it is no frame of a request, or its handler closes the connection, as with acks=0."""

    def handler(context: RequestContext, request: MetadataRequest) -> Message | object:
        if context.header.correlation_id < 3:
            return MetadataResponse()
        context.close("the test says so")
        return DEFERRED

    requests = [encode_request(number, "tester", metadata_request(), 0) for number in (1, 2, 3)]
    if bad_frame is not None:
        requests[2] = SIZE.pack(len(bad_frame)) + bad_frame
    async with running_network(entry(METADATA, "Metadata", handler)) as network:
        client = await network.connect()
        client.writer.write(b"".join(map(bytes, requests)))
        for number in (1, 2):
            assert (await client.receive())[0] == number
        assert await client.is_closed()


async def test_responses_of_many_busy_clients_stay_in_order() -> None:
    """With others waiting, responses are held back and leave together."""

    async def pipeline(network: Network, name: str) -> None:
        client = await network.connect()
        for number in range(60):
            client.send(metadata_request(f"{name}{number}"))
        for number in range(60):
            correlation_id, response = await client.receive()
            assert (correlation_id, topics(response)) == (number + 1, [f"{name}{number}"])
        await client.close()

    async with running_network() as network:
        await asyncio.gather(*(pipeline(network, name) for name in "abcdef"))


async def test_requests_that_came_together_are_handled_in_a_row_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Numbers bound the rows, not times.
    monkeypatch.setattr(channel_module, "IN_A_ROW_SECONDS", 60.0)
    monkeypatch.setattr(channel_module, "MAX_TURN_SECONDS", 60.0)
    handled: list[int] = []

    def handler(context: RequestContext, _: Message) -> Message:
        handled.append(context.client_port)
        return MetadataResponse()

    count = 2 * MAX_IN_A_ROW + 8
    requests = encode_request(1, "tester", metadata_request("t"), 4) * count
    async with running_network(entry(METADATA, "Metadata", handler)) as network:
        with network.raw_socket() as one, network.raw_socket() as other:
            await network.until(lambda: len(network.server.connections) == 2)
            for sock in (one, other):
                sock.send(requests)
            await network.until(lambda: len(handled) == 2 * count)
    rows = [len(list(row)) for _, row in groupby(handled)]
    assert rows == [MAX_IN_A_ROW] * 4 + [8, 8]


async def test_one_request_at_a_time_even_when_it_waits() -> None:
    gate = Gate()
    async with running_network(entry(METADATA, "Metadata", gate.handle)) as network:
        client = await network.connect()
        for name in "abc":
            client.send(metadata_request(name))
        for name in "abc":
            await network.until(lambda: bool(gate.waiting))
            await asyncio.sleep(0.005)
            assert len(gate.waiting) == 1
            gate.open()
            assert topics((await client.receive())[1]) == [name]
        await client.close()


async def test_a_client_with_a_request_in_flight_is_not_read() -> None:
    gate = Gate()
    async with running_network(entry(METADATA, "Metadata", gate.handle)) as network:
        client = await network.connect()
        client.send(metadata_request("a"))
        await network.until(lambda: bool(gate.waiting))
        before = network.statistics.bytes_in
        client.writer.write(b"\x00" * 200_000)
        await asyncio.sleep(0.02)
        assert network.statistics.bytes_in == before
        await client.close()


async def test_no_more_than_one_read_is_kept_beyond_a_request() -> None:
    gate = Gate()
    async with running_network(entry(METADATA, "Metadata", gate.handle)) as network:
        sock = network.raw_socket()
        frame = encode_request(1, "tester", metadata_request("a"), 0)
        sock.setblocking(True)
        sock.sendall(frame * (200_000 // len(frame)))
        await network.until(lambda: bool(gate.waiting))
        await asyncio.sleep(0.02)
        assert network.statistics.bytes_in <= READ_BYTES
        sock.close()


async def test_a_request_may_come_byte_by_byte() -> None:
    async with running_network() as network:
        client = await network.connect()
        for byte in encode_request(7, "tester", metadata_request("slow"), 1):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        correlation_id, response = await client.receive(METADATA, 1)
        assert (correlation_id, topics(response)) == (7, ["slow"])
        await client.close()


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 11, 30])
async def test_frames_may_be_cut_anywhere(cut: int) -> None:
    async with running_network() as network:
        client = await network.connect()
        frames = encode_request(1, "t", metadata_request("one"), 0)
        frames += encode_request(2, "t", metadata_request("two"), 0)
        for start in range(0, len(frames), cut):
            client.writer.write(frames[start : start + cut])
            await client.writer.drain()
            await asyncio.sleep(0.0005)
        assert topics((await client.receive())[1]) == ["one"]
        assert topics((await client.receive())[1]) == ["two"]
        await client.close()


def produce_request(records: bytes) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=records)
    return ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=[data])])


@pytest.mark.parametrize("size", [100, 70_000, 3_000_000])
async def test_records_arrive_in_a_buffer_that_the_broker_may_write(size: int) -> None:
    seen: list[bytes] = []

    def handle(_: RequestContext, request: ProduceRequest) -> ProduceResponse:
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        records[:4] = b"\xff\xff\xff\xff"
        seen.append(bytes(records))
        return ProduceResponse()

    async with running_network(entry(PRODUCE, "Produce", handle)) as network:
        client = await network.connect()
        payload = bytes(range(256)) * (size // 256 + 1)
        for _ in range(2):
            client.send(produce_request(payload[:size]), 3)
        for _ in range(2):
            await client.receive(PRODUCE, 3)
        await client.close()
        assert seen == [b"\xff\xff\xff\xff" + payload[4:size]] * 2
        await network.until(lambda: network.channel.in_progress_bytes == 0)


async def test_memory_grows_with_what_has_come_not_with_what_was_promised() -> None:
    async with running_network() as network:
        client = await network.connect()
        client.writer.write(SIZE.pack(100_000_000) + b"\x00" * 10)
        await network.until(lambda: network.channel.in_progress_bytes == 100_000_000)
        frame = only_connection(network)._frame
        assert frame is not None
        assert len(frame) == 10
        client.writer.write(b"\x00" * 1_000_000)
        await network.until(lambda: network.statistics.bytes_in == 1_000_014)
        assert len(frame) <= 4_000_040
        await client.close()
        await network.until(lambda: network.channel.in_progress_bytes == 0)


async def test_a_request_without_a_response_lets_the_next_one_in() -> None:
    async with running_network(entry(PRODUCE, "Produce", lambda *_: None)) as network:
        client = await network.connect()
        client.send(produce_request(b"x"), 3)
        client.send(metadata_request("next"))
        assert topics((await client.receive())[1]) == ["next"]
        await client.close()


async def test_coroutines_respond_too_and_hold_up_no_client() -> None:
    go_on = asyncio.Event()

    async def handle(_: RequestContext, __: Message) -> ProduceResponse:
        await go_on.wait()
        return ProduceResponse(throttle_time_ms=5)

    async with running_network(entry(PRODUCE, "Produce", handle)) as network:
        slow, quick = await network.connect(), await network.connect()
        slow.send(produce_request(b"x"), 3)
        assert topics(await quick.ask(metadata_request("quick"))) == ["quick"]
        go_on.set()
        _, response = await slow.receive(PRODUCE, 3)
        assert response == ProduceResponse(throttle_time_ms=5)
        await slow.close()
        await quick.close()


async def test_a_client_that_only_closes_its_sending_side_gets_its_response() -> None:
    gate = Gate()
    async with running_network(entry(METADATA, "Metadata", gate.handle)) as network:
        client = await network.connect()
        client.send(metadata_request("last"))
        await network.until(lambda: bool(gate.waiting))
        client.writer.write_eof()
        await asyncio.sleep(0.005)
        gate.open()
        assert topics((await client.receive())[1]) == ["last"]
        assert await client.is_closed()
        await client.close()


async def test_a_response_to_a_client_that_is_gone_goes_nowhere() -> None:
    gate = Gate()
    async with running_network(entry(METADATA, "Metadata", gate.handle)) as network:
        sock = network.raw_socket()
        sock.send(encode_request(1, "t", metadata_request("a"), 0))
        await network.until(lambda: bool(gate.waiting))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.close()
        gate.open()
        await network.until(lambda: not network.server.connections)
        assert network.channel.in_progress_bytes == 0


@pytest.mark.parametrize("kind", ["half a request", "half a big request", "acks=0"])
async def test_a_reset_right_behind_bytes_is_noticed(kind: str) -> None:
    """uvloop reports both at once, and then watches the socket no more."""
    if kind == "acks=0":
        sent = encode_request(1, "t", produce_request(b"x"), 3)
    else:
        sent = SIZE.pack(100 if kind == "half a request" else 500_000) + b"\x00\x03"
    async with running_network(entry(PRODUCE, "Produce", lambda *_: None)) as network:
        sock = network.raw_socket()
        await network.until(lambda: len(network.server.connections) == 1)
        sock.send(sent)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.close()  # the server sees nothing of this before we wait
        await network.until(lambda: not network.server.connections)
        assert network.channel.in_progress_bytes == 0


async def test_a_closed_connection_is_freed_without_a_collection() -> None:
    async with running_network() as network:
        client = await network.connect()
        await client.ask(metadata_request())
        (connection,) = network.server.connections
        closed = weakref.ref(connection)
        gc.disable()
        try:
            connection.close("the test says so")
            del connection
            await network.until(lambda: closed() is None)
        finally:
            gc.enable()


async def test_closing_the_server_with_a_request_in_flight_gives_its_memory_back() -> None:
    gate = Gate()
    async with running_network(entry(METADATA, "Metadata", gate.handle)) as network:
        client = await network.connect()
        client.send(metadata_request("a"))
        await network.until(lambda: bool(gate.waiting))
        network.server.close()
        assert gate.waiting[0].client_gone
        assert network.channel.in_progress_bytes > 0
        gate.open()
        assert network.channel.in_progress_bytes == 0
        await client.close()


async def test_a_handler_may_close_the_connection() -> None:
    def handle(context: RequestContext, _: Message) -> object:
        context.close("as acks=0 with an error")
        return DEFERRED

    async with running_network(entry(PRODUCE, "Produce", handle)) as network:
        client = await network.connect()
        client.send(produce_request(b"x"), 3)
        assert await client.is_closed()
        assert network.channel.in_progress_bytes == 0
        await client.close()


async def test_a_throttled_client_gets_its_response_at_once_and_is_then_not_read() -> None:
    def handle(context: RequestContext, _: Message) -> Message:
        context.throttle_time_ms = 40
        return MetadataResponse()

    async with running_network(entry(METADATA, "Metadata", handle)) as network:
        client = await network.connect()
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        for _ in range(3):
            client.send(metadata_request(), 3)
        for _ in range(3):
            _, response = await client.receive(METADATA, 3)
            assert isinstance(response, MetadataResponse)
            assert response.throttle_time_ms == 40
        assert loop.time() - started_at >= 0.08
        await client.close()


async def test_closing_a_throttled_connection_leaves_no_timer() -> None:
    def handle(context: RequestContext, _: Message) -> object:
        context.respond(MetadataResponse(), throttle_time_ms=60_000)
        return DEFERRED

    metadata = entry(METADATA, "Metadata", handle)
    async with running_network(metadata, max_idle_ms=0) as network:
        client = await network.connect()
        await client.ask(metadata_request(), 3)
        only_connection(network).close("the test says so")
        network.server.close()  # it has a timer of its own
        assert network.timer._wheel.next_expiration_ms() is None
        await client.close()


async def test_the_client_and_our_address_are_known_to_handlers() -> None:
    seen: list[RequestContext] = []

    def handle(context: RequestContext, _: Message) -> Message:
        seen.append(context)
        return MetadataResponse()

    async with running_network(entry(METADATA, "Metadata", handle)) as network:
        client = await network.connect()
        await client.ask(ApiVersionsRequest("my-client", "1.2.3"), 3)
        await client.ask(metadata_request())
        address: Any = client.writer.get_extra_info("sockname")
        await client.close()
    (context,) = seen
    assert context.listener_name == "PLAINTEXT"
    assert (context.client_host, context.client_port) == tuple(address)
    assert context.local_address == ("127.0.0.1", network.port)
    assert str(context.principal) == "User:ANONYMOUS"
    assert context.connection.client_software_name == "my-client"
    assert context.connection.client_software_version == "1.2.3"


async def test_frames_may_be_tokens_instead_of_requests() -> None:
    """SaslHandshake version 0 is followed by tokens without any header."""
    tokens: list[bytes] = []

    def handshake(context: RequestContext, _: Message) -> Message:
        connection = context.connection
        assert isinstance(connection, Connection)

        def take(token: bytes) -> None:
            tokens.append(token)
            if token == b"last":
                connection.token_handler = None
            connection.send_token(b"response to " + token)

        connection.token_handler = take
        return MetadataResponse()

    async with running_network(entry(METADATA, "Metadata", handshake)) as network:
        client = await network.connect()
        client.send(metadata_request())
        for token in (b"first", b"", b"last"):
            client.writer.write(SIZE.pack(len(token)) + token)
        client.send(ApiVersionsRequest())
        await client.receive()
        for token in (b"first", b"", b"last"):
            assert await client.receive_frame() == b"response to " + token
        assert (await client.receive(18))[0] == 2
        assert tokens == [b"first", b"", b"last"]
        await network.until(lambda: network.channel.in_progress_bytes == 0)


async def test_a_refusal_may_wait_and_meanwhile_nothing_is_read() -> None:
    def refuse(context: RequestContext, _: Message) -> object:
        assert isinstance(context.connection, Connection)
        context.connection.refuse_after(20, b"too bad", 100, "wrong password")
        return MetadataResponse()

    async with running_network(entry(METADATA, "Metadata", refuse)) as network:
        client = await network.connect()
        client.send(metadata_request())
        client.send(metadata_request())
        assert (await client.receive())[0] == 1
        async with asyncio.timeout(20):
            assert await client.reader.read() == b"too bad"


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


async def test_a_request_that_waits_leaves_the_socket_unwatched(fetches: Fetches) -> None:
    """The loop goes on to watch the socket for room if a request was read ahead. Its handler may
    wait for long, in which nothing is to be sent."""
    gate = Gate()
    length = 2_500_000  # more than the buffers of both sockets hold
    async with running_network(
        entry(FETCH, "Fetch", fetches.handle), entry(METADATA, "Metadata", gate.handle)
    ) as network:
        client = await network.connect()
        client.send(FetchRequest(max_bytes=length), 4)
        client.send(metadata_request())
        check((await client.receive(FETCH, 4))[1], length)
        await network.until(lambda: bool(gate.waiting))
        connection = only_connection(network)
        await network.until(lambda: not connection._writing)
        client.send(FetchRequest(max_bytes=length), 4)
        gate.open()
        await client.receive()
        check((await client.receive(FETCH, 4))[1], length)
        await network.until(lambda: not connection._writing and not connection.in_flight)


class Reluctant:
    """A socket that takes nothing at times, and little otherwise."""

    def __init__(self, sock: socket.socket, chosen: random.Random) -> None:
        self._sock = sock
        self._random = chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def most(self) -> int:
        if self._random.random() < 0.3:
            raise BlockingIOError
        return self._random.choice([1, 3, 1000, 100_000])

    def send(self, data: bytes | memoryview) -> int:
        return self._sock.send(data[: self.most()])

    def sendmsg(self, buffers: list[Any], *_: object) -> int:
        return self.send(b"".join(buffers))

    def sendfile(self, to: int, fd: int, position: int, length: int) -> int:
        return os.sendfile(to, fd, position, min(length, self.most()))


async def test_whatever_the_socket_takes_all_arrives_in_order_and_nothing_is_left(
    fetches: Fetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that were sent together, some of which wait; parts of files that are cold."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chosen = random.Random(seed)

    def handle(context: RequestContext, request: FetchRequest) -> object:
        response = fetches.handle(context, request)
        if chosen.random() < 0.6:
            return response
        asyncio.get_running_loop().call_later(0.001, context.respond, response)
        return DEFERRED

    sends = Reluctant(socket.socket(), chosen)
    monkeypatch.setattr(
        output_module, "os", SimpleNamespace(**{**vars(os), "sendfile": sends.sendfile})
    )
    monkeypatch.setattr(output_module, "is_cached", lambda *_: chosen.random() < 0.7)
    async with running_network(entry(FETCH, "Fetch", handle)) as network:
        clients = [await network.connect() for _ in range(3)]
        await network.until(lambda: len(network.server.connections) == 3)
        connections = list(network.server.connections)
        for connection in connections:
            connection._sock = Reluctant(connection._sock, chosen)  # type: ignore[assignment]
        for _ in range(3):
            lengths = [chosen.choice([0, 1, 3_000, 8_192, 8_193, 70_000]) for _ in range(12)]
            for client in clients:
                for length in lengths:
                    client.send(FetchRequest(max_bytes=length), 4)
            for client in clients:
                for length in lengths:
                    check((await client.receive(FETCH, 4))[1], length)
        await network.until(
            lambda: not any(each.in_flight or each._writing for each in connections)
        )
        assert not any(each.held_leases() for each in connections)
        assert [each._unread for each in connections] == [-1] * 3
    sends.close()


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
        await network.until(lambda: not connection._warming)
        assert network.channel.in_progress_bytes == 0


async def held_responses(network: Network) -> int:
    """Let two clients pipeline; returns how many sends their responses took."""
    sends = 0
    clients = [await network.connect() for _ in range(2)]
    await network.until(lambda: len(network.server.connections) == 2)
    for connection in network.server.connections:
        inner = connection._sock

        class Counting:
            def __getattr__(self, name: str, inner: socket.socket = inner) -> object:
                nonlocal sends
                sends += name in ("send", "sendmsg")
                return getattr(inner, name)

        connection._sock = Counting()
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
        assert not network.channel.held.flushes


class Taking:
    """A socket that takes everything, or so much in each call."""

    def __init__(self, sent: list[bytes], at_once: int = 1000) -> None:
        self._sent = sent
        self._at_once = at_once

    def fileno(self) -> int:
        return 3

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 9092)

    def send(self, data: bytes) -> int:
        part = data[: self._at_once]
        self._sent.append(part)
        return len(part)

    def sendmsg(self, buffers: list[bytes], *_: object) -> int:
        self._sent += buffers
        return sum(map(len, buffers))


def connections_to(sock: Any, channel: Channel, count: int) -> list[Connection]:
    """Connections that share one socket and the services of a loop."""
    services: Any = SimpleNamespace(
        loop=SimpleNamespace(add_reader=lambda *_: None, remove_reader=lambda *_: None),
        channel=channel.channel,
        statistics=NetworkStatistics(),
        turn_limit=TurnLimit(),
    )
    listener = ListenerFacts("PLAINTEXT")

    def broken(connection: Connection) -> None:
        raise AssertionError(f"{connection} is closed")

    return [
        Connection(sock, ("10.0.0.1", 50_000), listener, services, broken) for _ in range(count)
    ]


def test_responses_of_several_connections_are_sent_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_module, "MAX_HELD_SECONDS", 60.0)
    channel = Channel(lambda *_: None)
    sent: list[bytes] = []
    connections = connections_to(Taking(sent), channel, 4)
    held = channel.channel.held

    def respond(number: int) -> None:
        connections[number]._context = context = channel.context()
        connections[number].send_response(context, [bytes([number])])

    respond(0)  # outside of a turn
    assert sent == [b"\0"]
    held.is_open = True
    respond(1)  # no other request waits, so perhaps it is the only one
    assert sent == [b"\0", b"\1"]
    respond(2)
    respond(3)
    assert len(sent) == 2
    assert all(connection.in_flight for connection in connections[2:])
    held.end()
    assert sent[2:] == [b"\2", b"\3"]
    assert not any(connection.in_flight for connection in connections)


def test_a_response_that_is_sent_in_two_parts_is_finished_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_module, "MAX_HELD_SECONDS", 60.0)
    channel = Channel(lambda *_: None)
    sent: list[bytes] = []
    connections = connections_to(Taking(sent, at_once=1), channel, MAX_HELD)
    channel.channel.held.is_open = True
    channel.channel.held.expects_more = True
    for connection in connections:
        connection._context = context = channel.context()
        connection.send_response(context, [b"ab"])
    # The last one made all of them due.
    assert sent == [b"a", b"b"] * MAX_HELD
    assert context.route.statistics.by_version == {VERSION: MAX_HELD}
    assert not any(connection.in_flight for connection in connections)
