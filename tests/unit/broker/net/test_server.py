import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

import ottla.broker.net.connection as connection_module
import ottla.broker.net.server as server_module
from ottla.broker.net.connection import Connection
from ottla.broker.net.descriptors import LEAST_RESERVED, DescriptorReserve
from ottla.broker.net.large_frames import LargeFrames
from ottla.broker.net.listener import ListenError, PortInUse, SocketSettings, bind, reserve
from ottla.broker.quotas.connection_quotas import ConnectionLimits, ListenerLimits
from ottla.broker.requests import memory_budget as memory_module
from ottla.broker.requests.memory_budget import MemoryBudget
from ottla.broker.requests.request_channel import DEFERRED, RequestContext
from ottla.protocol.headers import encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.metadata import MetadataResponse
from tests.doubles.network import METADATA, SIZE, entry, metadata_request, running_network


async def test_several_listeners_serve_side_by_side() -> None:
    async with running_network() as network:
        ports = {network.port}
        for name in ("EXTERNAL", "INTERNAL"):
            port = network.server.add_listener(name, "127.0.0.1", 0)
            ports.add(port)
        network.server.start()
        assert len(ports) == 3
        for port in ports:
            network.port = port
            client = await network.connect()
            assert await client.ask(metadata_request()) == MetadataResponse()
        names = sorted(connection.listener_name for connection in network.server.connections)
        assert names == ["EXTERNAL", "INTERNAL", "PLAINTEXT"]


async def test_a_port_that_processes_share_belongs_to_its_listener() -> None:
    """`held` keeps the port, as the supervisor of workers does, and gets no connection."""
    held = reserve("x", "127.0.0.1", 0)
    port = held.getsockname()[1]
    try:
        with pytest.raises(PortInUse):
            reserve("x", "127.0.0.1", port)
        with pytest.raises(PortInUse):
            bind("x", "127.0.0.1", port, SocketSettings())
        async with running_network() as network, running_network() as other:
            for each in (network, other):
                each.server.add_bootstrap_port("PLAINTEXT", "127.0.0.1", port)
            assert list(network.server.listeners) == ["PLAINTEXT"]
            network.port = port
            clients = [await network.connect() for _ in range(40)]
            for client in clients:
                assert await client.ask(metadata_request()) == MetadataResponse()
            served = [len(each.server.connections) for each in (network, other)]
            assert sum(served) == 40
            assert min(served) > 0
            limits = network.server.listeners["PLAINTEXT"].limits
            assert limits.open == served[0]
            network.server.remove_listener("PLAINTEXT")
            await asyncio.sleep(server_module.REMOVAL_MS / 1000 + 0.2)
            assert network.server.connections == []
    finally:
        held.close()
    # The ends of those connections, which this side has closed first, do not keep the port.
    reserve("x", "127.0.0.1", port).close()


async def test_connections_of_a_listener_that_was_removed_and_added_again_are_closed() -> None:
    async with running_network() as network:
        server = network.server
        clients = []
        for _ in range(2):
            server.remove_listener("LOGIN")
            network.port = server.add_listener("LOGIN", "127.0.0.1", 0)
            clients.append(await network.connect())
            await clients[-1].ask(metadata_request())
        assert len(server.connections) == 2
        server.close()
        for client in clients:
            assert await client.is_closed()


async def test_tls_without_keys_is_refused() -> None:
    async with running_network() as network:
        with pytest.raises(ListenError, match="protocol SASL_SSL but no keys"):
            network.server.add_listener("SECURE", "127.0.0.1", 0, security_protocol="SASL_SSL")


async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    waiting: list[RequestContext] = []

    def wait(context: RequestContext, _: Message) -> object:
        waiting.append(context)
        return DEFERRED

    async with running_network(entry(METADATA, "Metadata", wait), max_idle_ms=500) as network:
        busy = await network.connect()
        busy.send(metadata_request())
        idle = await network.connect()
        assert await idle.is_closed()
        assert network.statistics.idle_closed == 1
        waiting[0].respond(MetadataResponse())
        assert (await busy.receive())[1] == MetadataResponse()
        assert await busy.is_closed()


async def test_idle_connections_are_closed_after_one_run_has_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_network(max_idle_ms=60) as network:
        with monkeypatch.context() as patch:
            patch.setattr("ottla.broker.net.server.monotonic", Mock(side_effect=ValueError("once")))
            await network.until(lambda: "once" in caplog.text)
        idle = await network.connect()
        assert await idle.is_closed()


async def test_a_client_that_does_not_take_its_response_is_idle() -> None:
    def response(_: RequestContext, __: Message) -> Message:
        return MetadataResponse(cluster_id="x" * 30_000)

    # Not by a client of this loop: on a busy machine it may be closed for its silence before it has
    # asked anything, and asyncio would log each of its writes. Here the requests are in the socket
    # before the server sees it.
    frames = b"".join(encode_request(n, "tester", metadata_request(), 2) for n in range(1_000))
    async with running_network(entry(METADATA, "Metadata", response), max_idle_ms=60) as network:
        with network.raw_socket(), network.raw_socket(receive_buffer_bytes=2_000) as asking:
            assert asking.send(frames) == len(frames)
            await network.until(lambda: network.statistics.idle_closed == 2)


async def test_drain_waits_for_requests_in_flight() -> None:
    waiting: list[RequestContext] = []

    def wait(context: RequestContext, _: Message) -> object:
        waiting.append(context)
        return DEFERRED

    async with running_network(entry(METADATA, "Metadata", wait)) as network:
        client = await network.connect()
        client.send(metadata_request())
        await network.until(lambda: bool(waiting))
        network.server.stop_accepting()
        assert await network.server.drain(timeout_ms=20) == 1
        draining = asyncio.ensure_future(network.server.drain(timeout_ms=20_000))  # noqa: TID251
        await asyncio.sleep(0.02)
        assert not draining.done()
        waiting[0].respond(MetadataResponse())
        assert await draining == 0
        assert (await client.receive())[1] == MetadataResponse()


async def test_no_client_connects_after_stop_accepting() -> None:
    async with running_network() as network:
        client = await network.connect()
        assert await client.ask(metadata_request()) == MetadataResponse()
        network.server.stop_accepting()
        with pytest.raises(ConnectionRefusedError):
            await network.connect()
        assert await client.ask(metadata_request()) == MetadataResponse()


async def test_brokers_do_not_wait_for_clients() -> None:
    """Above max.connections a broker comes in, and the client silent longest must go."""
    limits = ConnectionLimits(max_connections=2)
    async with running_network(limits=limits) as network:
        silent, active = await network.connect(), await network.connect()
        for client in (silent, active):
            await client.ask(metadata_request())
        client_port = network.port
        network.port = network.server.add_listener(
            "INTERNAL", "127.0.0.1", 0, limits=ListenerLimits(protected=True)
        )
        network.server.start()
        broker = await network.connect()
        assert await broker.ask(metadata_request()) == MetadataResponse()
        assert await silent.is_closed()
        assert await active.ask(metadata_request()) == MetadataResponse()
        network.port = client_port
        waiting = await network.connect()
        waiting.send(metadata_request())
        await asyncio.sleep(0.02)
        assert limits.open == 2
        await active.close()
        assert (await waiting.receive())[1] == MetadataResponse()


def budget(requests: int) -> MemoryBudget:
    memory = MemoryBudget()
    memory.limit(requests, 1 << 20, 1 << 20)
    return memory


def waiting(memory: MemoryBudget) -> int:
    """Large requests that wait, whether they arrive fast or not."""
    return memory.large.waiting + memory.quick.waiting


async def test_large_requests_of_an_address_wait_and_small_ones_pass_them() -> None:
    memory = budget(1_000_000)
    released = asyncio.Event()

    async def handle(_: RequestContext, request: Any) -> MetadataResponse:
        await released.wait()
        return MetadataResponse()

    large = metadata_request("n" * 30_000, *(["n" * 30_000] * 5))  # one element of each is decoded
    async with running_network(entry(METADATA, "Metadata", handle), memory=memory) as network:
        clients = [await network.connect() for _ in range(5)]
        for client in clients:
            client.send(large)
        await network.until(lambda: waiting(memory) > 0)
        assert memory.large.used <= memory.large.limit
        small = await network.connect()
        sent = small.send(metadata_request())
        medium = await network.connect()
        medium_sent = medium.send(metadata_request("n" * 20_000))
        await network.until(lambda: network.statistics.connections_accepted == 7)
        await network.until(lambda: sum(c.in_flight for c in network.server.connections) >= 4)
        released.set()
        assert (await small.receive())[0] == sent
        assert (await medium.receive())[0] == medium_sent
        for client in clients:
            await client.receive()
        assert memory.used == 0
        assert not waiting(memory)


async def test_a_large_frame_of_a_small_api_is_refused_before_it_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_network(large_frames=LargeFrames(100_000)) as network:
        client = await network.connect()
        client.writer.write(SIZE.pack(100_001) + b"\0\3\0\0" + bytes(8))
        assert await client.is_closed()
        assert network.channel.in_progress_bytes == 0
    assert "ottla.request.max.bytes" in caplog.text


@pytest.mark.usefixtures("_nobody_is_fast")
async def test_clients_that_send_nothing_of_a_large_frame_do_not_block_their_address() -> None:
    memory = budget(500_000)
    async with running_network(memory=memory, authentication_timeout_ms=40) as network:
        frame = encode_request(1, "t", metadata_request(*(["n" * 30_000] * 4)), 0)
        silent = [await network.connect() for _ in range(3)]
        for client in silent:
            client.writer.write(frame[:100])
        await network.until(lambda: memory.large.waiting == 2)
        busy = await network.connect()
        busy.writer.write(frame)
        await busy.receive()
        await network.until(lambda: len(memory.aside) == 3)
        assert memory.large.used < 1_000, "they have what was received of them"
        for client in silent:
            client.writer.write(frame[100:])
            await client.receive()
        assert memory.stalled_total == 0
        assert memory.used == 0


async def test_a_fast_client_passes_slow_ones_of_its_address() -> None:
    """Those make progress, and need more time than it has."""
    memory = budget(500_000)
    async with running_network(memory=memory) as network:
        frame = encode_request(1, "t", metadata_request(*(["n" * 30_000] * 4)), 0)
        slow = [await network.connect() for _ in range(4)]
        for client in slow:
            client.writer.write(frame[:20_000])
        await network.until(lambda: memory.large.waiting == 3)
        for _ in range(3):
            fast = await network.connect()
            fast.writer.write(frame)
            await fast.receive()
        # Of this one, most comes after it has begun to wait.
        late = await network.connect()
        late.writer.write(frame[:20_000])
        await network.until(lambda: memory.large.waiting == 4)
        late.writer.write(frame[20_000:])
        await late.receive()
        assert memory.large.waiting == 3
        assert len(memory.received) == 1


async def test_the_look_at_a_request_is_not_taken_for_one_at_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a long request would get the little memory of a short one before it."""
    monkeypatch.setattr(connection_module, "HASTEN_MS", 400)
    monkeypatch.setattr(Connection, "arrives_fast", lambda self, size: False)
    memory = budget(1_000_000)
    short = metadata_request(*(["n" * 30_000] * 3))
    long = encode_request(1, "t", metadata_request(*(["n" * 30_000] * 8)), 0)
    async with running_network(memory=memory) as network:
        client = await network.connect()
        lease = memory.large.lease("another", memory.large.limit)
        assert lease is not None
        client.send(short)
        await network.until(lambda: memory.large.waiting == 1)
        lease.release()
        await client.receive()
        assert memory.large.lease("another", memory.large.limit) is not None
        client.writer.write(long[:20_000])
        await network.until(lambda: memory.large.waiting == 1)
        monkeypatch.setattr(Connection, "arrives_fast", lambda self, size: True)
        await network.until(lambda: memory.quick.used > 0)
        assert memory.quick.used == len(long) - 4


@pytest.mark.usefixtures("_nobody_is_fast")
async def test_what_was_received_does_not_block_an_address_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_module, "SILENCE_SECONDS", 0.05)
    memory = budget(500_000)
    async with running_network(memory=memory, authentication_timeout_ms=40) as network:
        frame = encode_request(1, "t", metadata_request(*(["n" * 30_000] * 4)), 0)
        silent = [await network.connect() for _ in range(3)]
        for client in silent:
            client.writer.write(frame[:110_000])
        await network.until(lambda: memory.large.waiting > 0)
        for _ in range(3):
            busy = await network.connect()
            busy.writer.write(frame)
            await busy.receive()
        assert 1 <= memory.stalled_total <= 3
    lines = [line for line in caplog.messages if "makes no progress" in line]
    assert len(lines) == 1, "one line for an address and minute"


@pytest.mark.usefixtures("_nobody_is_fast")
async def test_who_waits_and_who_makes_progress_is_not_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "SILENCE_SECONDS", 0.2)
    memory = budget(500_000)
    async with running_network(memory=memory, authentication_timeout_ms=40) as network:
        slow, waiting = await network.connect(), await network.connect()
        frame = encode_request(1, "t", metadata_request(*(["n" * 30_000] * 4)), 0)
        slow.writer.write(frame[:100])
        await network.until(lambda: memory.large.used > 0)
        waiting.send(metadata_request(*(["n" * 30_000] * 4)))
        await network.until(lambda: memory.large.waiting == 1)
        for start in range(100, len(frame), 8_000):
            slow.writer.write(frame[start : start + 8_000])
            await asyncio.sleep(0.04)
        await slow.receive()
        await waiting.receive()
        assert memory.stalled_total == 0


async def test_a_frame_that_memory_does_not_allow_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = budget(1_000_000)
    memory.max_frame_bytes = 300_000
    async with running_network(memory=memory) as network:
        client = await network.connect()
        client.writer.write(SIZE.pack(300_001) + b"\0\3\0\0" + bytes(8))
        assert await client.is_closed()
        assert memory.used == 0
    assert "docs/limits.md" in caplog.text


@pytest.mark.usefixtures("_nobody_is_fast")
async def test_waiting_and_holding_connections_that_close_leave_nothing() -> None:
    memory = budget(500_000)
    async with running_network(memory=memory) as network:
        clients = [await network.connect() for _ in range(6)]
        for client in clients:
            client.writer.write(SIZE.pack(150_000) + b"\0\3\0\0" + bytes(50_000))
        await network.until(lambda: memory.large.waiting == 5)
        for client in reversed(clients):  # those that wait first, then the one that holds
            await client.close()
        await network.until(lambda: not network.server.connections)
        assert memory.used == 0
        assert waiting(memory) == 0
        assert not memory.received


class NeverDone:
    """A SASL session that waits for ever."""

    is_token = False

    def take_frame(self, frame: bytes) -> None:
        """Waits for more."""

    def close(self) -> None:
        """Nothing to do."""


async def test_who_does_not_authenticate_in_time_is_closed() -> None:
    options: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "new_session": lambda *_: NeverDone(),
    }
    async with running_network(authentication_timeout_ms=40, **options) as network:
        client = await network.connect()
        assert await client.is_closed()
        assert network.statistics.idle_closed == 1


async def test_unknown_connections_are_closed_first_when_places_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "GRACE_SECONDS", 0.0)
    async with running_network(limits=ConnectionLimits(max_connections=2)) as network:
        known, unknown = await network.connect(), await network.connect()
        assert await known.ask(metadata_request()) == MetadataResponse()
        await network.until(lambda: network.statistics.connections_accepted == 2)
        third = await network.connect()
        assert await third.ask(metadata_request()) == MetadataResponse()
        assert await unknown.is_closed()
        assert await known.ask(metadata_request()) == MetadataResponse()


async def test_the_last_descriptors_are_not_for_clients(caplog: pytest.LogCaptureFixture) -> None:
    async with running_network() as network:
        first = await network.connect()
        assert await first.ask(metadata_request()) == MetadataResponse()
        services = network.server._services
        assert services is not None
        # As if all lower numbers were taken.
        services.descriptors = DescriptorReserve(LEAST_RESERVED)
        second = await network.connect()
        assert await second.is_closed()
        assert await first.ask(metadata_request()) == MetadataResponse()
        assert network.server.limits.open == 1
    assert "ulimit -n" in caplog.text


async def test_descriptors_of_unknown_connections_are_not_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "GRACE_SECONDS", 0.0)
    async with running_network() as network:
        known, unknown = await network.connect(), await network.connect()
        assert await known.ask(metadata_request()) == MetadataResponse()
        await network.until(lambda: network.statistics.connections_accepted == 2)
        services = network.server._services
        assert services is not None
        services.descriptors = DescriptorReserve(LEAST_RESERVED)
        assert not network.server.descriptors().are_used_up
        assert await unknown.ask(metadata_request()) == MetadataResponse()
        assert network.server.descriptors().are_used_up


async def test_who_is_refused_costs_no_look_at_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "GRACE_SECONDS", 0.0)
    looks = 0

    def counted(connection: Connection) -> bool:
        nonlocal looks
        looks += 1
        return connection.authenticated and connection.identified

    async with running_network() as network:
        for _ in range(20):
            client = await network.connect()
            assert await client.ask(metadata_request()) == MetadataResponse()
        services = network.server._services
        assert services is not None
        services.descriptors = DescriptorReserve(LEAST_RESERVED)
        monkeypatch.setattr(Connection, "is_known", property(counted))
        for _ in range(10):
            assert await (await network.connect()).is_closed()
            assert network.server.descriptors().are_used_up
        assert network.server.limits.open == 20
        assert looks <= 20


async def test_idle_clients_go_when_others_take_the_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.0)
    async with running_network(authentication_timeout_ms=40) as network:
        known, unknown = await network.connect(), await network.connect()
        assert await known.ask(metadata_request()) == MetadataResponse()
        await network.until(lambda: network.statistics.connections_accepted == 2)
        services = network.server._services
        assert services is not None
        services.descriptors = DescriptorReserve(LEAST_RESERVED)
        assert await unknown.is_closed()
        assert await known.is_closed()
