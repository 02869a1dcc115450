from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from struct import pack
from typing import Any

import pytest

from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.broker.observability.metrics_sources import add_requests
from ottla.broker.requests import bulk_requests
from ottla.broker.requests.bulk_requests import (
    GAP_SECONDS,
    HOLD_SECONDS,
    MAX_AT_ONCE,
    MAX_YIELDS,
    PAUSE_SECONDS,
    BulkRequests,
    FullCollections,
)
from ottla.broker.requests.request_channel import DEFERRED, HandlerResult, RequestContext
from ottla.broker.requests.request_parts import (
    LARGE,
    MAX_UNDIVIDED_ELEMENTS,
    ORDINARY,
    PART_ELEMENTS,
)
from ottla.broker.runtime.tasks import spawn, stop
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicV1,
)
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.registry import ApiKey
from tests.doubles.api_routes import entry_of
from tests.doubles.network import METADATA, Network, entry, metadata_request, running_network

LEAVE_GROUP = 13
STOP_REPLICA = 5
MANY = 3000


def names(count: int = MANY) -> list[str]:
    return [f"topic-{number}" for number in range(count)]


def rows(response: Any) -> list[str]:
    return [topic.name for topic in response.topics]


def echo(request: MetadataRequest) -> MetadataResponse:
    return MetadataResponse(
        topics=[MetadataResponseTopic(name=topic.name) for topic in request.topics or ()]
    )


async def test_few_elements_are_handled_at_once() -> None:
    async with running_network() as network:
        client = await network.connect()
        for count in (1, ORDINARY.inline):
            assert rows(await client.ask(metadata_request(*names(count)))) == names(count)
        assert network.channel.bulk.total == 0


@pytest.mark.parametrize("kind", ["message", "coroutine", "deferred"])
async def test_many_are_handled_in_parts_with_one_response(kind: str) -> None:
    parts: list[int] = []

    async def later(response: MetadataResponse) -> MetadataResponse:
        await asyncio.sleep(0)
        return response

    def handle(context: RequestContext, request: MetadataRequest) -> HandlerResult:
        parts.append(len(request.topics or ()))
        if kind == "coroutine":
            return later(echo(request))
        if kind == "deferred":
            asyncio.get_running_loop().call_soon(context.respond, echo(request))
            return DEFERRED
        return echo(request)

    async with running_network(entry(METADATA, "Metadata", handle)) as network:
        client = await network.connect()
        for version in (0, 4):
            parts.clear()
            response = await client.ask(metadata_request(*names()), version)
            assert rows(response) == names()
            assert max(parts) <= PART_ELEMENTS
            assert sum(parts) == MANY
        assert network.channel.bulk.total == 2
        assert network.channel.in_progress_bytes == 0


async def test_other_clients_are_served_between_the_parts() -> None:
    handled: list[int] = []

    def handle(_: RequestContext, request: MetadataRequest) -> MetadataResponse:
        handled.append(len(request.topics or ()))
        return echo(request)

    async with running_network(entry(METADATA, "Metadata", handle)) as network:
        slow, quick = await network.connect(), await network.connect()
        slow.send(metadata_request(*names()))
        await network.until(lambda: bool(handled))
        assert rows(await quick.ask(metadata_request("one"))) == ["one"]
        assert handled.index(1) < len(handled)
        assert rows((await slow.receive())[1]) == names()
        assert handled[-1] != 1


async def test_a_client_has_one_bulk_request_in_progress() -> None:
    order: list[str] = []

    def handle(_: RequestContext, request: MetadataRequest) -> MetadataResponse:
        assert request.topics is not None
        order.append((request.topics[0].name or "")[0])
        return echo(request)

    async with running_network(entry(METADATA, "Metadata", handle)) as network:
        clients = [await network.connect() for _ in range(3)]
        for letter, client in zip("abc", clients, strict=True):
            client.send(metadata_request(*[letter + name for name in names(1000)]))
        for client in clients:
            await client.receive()
        assert "".join(order) == "".join(sorted(order))


async def test_so_many_clients_have_a_bulk_request_in_progress_and_others_wait() -> None:
    may_go_on = asyncio.Event()
    started: set[str] = set()
    most = 0

    async def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        nonlocal most
        started.add(context.client_host)
        most = max(most, network.channel.bulk.in_progress)
        await may_go_on.wait()
        return echo(request)

    async with running_network(entry(METADATA, "Metadata", handle)) as network:
        bulk = network.channel.bulk
        hosts = [f"127.0.0.{number}" for number in range(1, MAX_AT_ONCE + 4)]
        clients = [await network.connect(from_host=host) for host in hosts]
        clients.append(await network.connect(from_host=hosts[0]))
        for client in clients:
            client.send(metadata_request(*names(1000)))
        await network.until(lambda: bulk.waiting == len(clients) - MAX_AT_ONCE)
        await network.until(lambda: len(started) == MAX_AT_ONCE)
        assert bulk.in_progress == MAX_AT_ONCE
        assert metrics(network) == {
            "ottla_bulk_requests": len(clients),
            "ottla_bulk_requests_in_progress": MAX_AT_ONCE,
            "ottla_bulk_requests_waiting": len(clients) - MAX_AT_ONCE,
        }
        may_go_on.set()
        for client in clients:
            assert rows((await client.receive())[1]) == names(1000)
        assert most == MAX_AT_ONCE
        assert started == set(hosts)
        await network.until(lambda: bulk.in_progress == bulk.waiting == 0)


async def test_a_controller_does_not_wait_for_the_bulk_requests_of_clients() -> None:
    may_go_on = asyncio.Event()

    async def handle(_: RequestContext, request: MetadataRequest) -> MetadataResponse:
        await may_go_on.wait()
        return echo(request)

    def take(_: RequestContext, request: StopReplicaRequest) -> StopReplicaResponse:
        return StopReplicaResponse(error_code=len(request.topics))

    entries = (entry(METADATA, "Metadata", handle), entry(STOP_REPLICA, "StopReplica", take))
    async with running_network(*entries) as network:
        hosts = [f"127.0.1.{number}" for number in range(1, MAX_AT_ONCE + 2)]
        clients = [await network.connect(from_host=host) for host in hosts]
        for client in clients:
            client.send(metadata_request(*names(1000)))
        await network.until(lambda: network.channel.bulk.waiting == 1)
        controller = await network.connect()
        topics = [StopReplicaTopicV1(name, [0]) for name in names(1000)]
        response = await controller.ask(StopReplicaRequest(topics=topics), 1)
        assert isinstance(response, StopReplicaResponse)
        assert response.error_code == 1000
        await network.until(lambda: network.channel.bulk.in_progress == MAX_AT_ONCE)
        may_go_on.set()
        for client in clients:
            await client.receive()
        await network.until(lambda: network.channel.bulk.in_progress == 0)


def metrics(network: Network) -> dict[str, Any]:
    registry = MetricsRegistry()
    add_requests(registry, network.channel)
    found = {metric.name: metric.read() for metric in registry.metrics}
    return {name: reading for name, reading in found.items() if "_bulk_" in name}


def bulk_requests_beside(small_is_queued: Callable[[], bool]) -> BulkRequests:
    return BulkRequests(lambda *_: None, small_is_queued=small_is_queued)


async def test_a_turn_leaves_the_loop_to_small_requests_that_are_queued() -> None:
    queued = [3]
    order: list[str] = []

    async def handle_small() -> None:
        while queued[0]:
            queued[0] -= 1
            order.append("small")
            await asyncio.sleep(0)

    handler = spawn(handle_small(), name="handler")
    async with bulk_requests_beside(lambda: queued[0] > 0)._turn():
        order.append("turn")
    await handler
    assert order == ["small"] * 3 + ["turn"]


async def test_small_requests_do_not_starve_a_turn() -> None:
    loops = 0

    async def count() -> None:
        nonlocal loops
        while True:
            loops += 1
            await asyncio.sleep(0)

    counting = spawn(count(), name="counting")
    async with bulk_requests_beside(lambda: True)._turn():
        assert loops <= MAX_YIELDS + 1
    await stop(counting)


async def test_a_pause_is_as_long_as_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    now = 100.0

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(bulk_requests, "monotonic", lambda: now)
    monkeypatch.setattr(bulk_requests.asyncio, "sleep", sleep)
    bulk = bulk_requests_beside(lambda: False)
    for seconds in (0.0, 0.03):
        async with bulk._turn():
            now += seconds
    assert pauses == pytest.approx([PAUSE_SECONDS, 0.03])


async def test_a_request_of_some_elements_is_decoded_when_it_is_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    contexts: list[RequestContext] = []

    def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        contexts.append(context)
        return echo(request)

    async with running_network(entry(METADATA, "Metadata", handle)) as network:
        client = await network.connect()
        for count in (ORDINARY.small, ORDINARY.small + 1, ORDINARY.inline):
            assert rows(await client.ask(metadata_request(*names(count)))) == names(count)
        assert [context.is_long for context in contexts] == [False, True, True]
        assert network.channel.bulk.total == 0
        body = pack(">i", ORDINARY.inline) + b"\0\1a" * (ORDINARY.inline - 1) + b"\0\2\xff\xff"
        content = pack(">hhih", METADATA, 0, 1, -1) + body
        client.writer.write(pack(">i", len(content)) + content)
        assert await client.is_closed()
        await settled(network)
    assert "not UTF-8" in caplog.text


async def test_too_many_elements_close_the_connection_before_they_are_decoded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_network() as network:
        client = await network.connect()
        client.send(metadata_request(*([""] * (LARGE.most + 1))))
        assert await client.is_closed()
        assert network.channel.bulk.total == 0  # the count alone says it
        assert network.channel.in_progress_bytes == 0
    (record,) = [each for each in caplog.records if each.name == "ottla.net"]
    assert f"more than {LARGE.most} elements" in record.getMessage()
    assert record.levelno == logging.WARNING


async def test_nested_elements_are_counted_while_they_are_decoded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from ottla.protocol.messages.add_partitions_to_txn import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnTopic,
    )

    def handle(_: RequestContext, __: object) -> None:
        raise AssertionError("the request is too long")

    topics = [AddPartitionsToTxnTopic("t", list(range(100))) for _ in range(160)]
    request = AddPartitionsToTxnRequest(v3_and_below_topics=topics)
    async with running_network(entry(24, "AddPartitionsToTxn", handle)) as network:
        client = await network.connect()
        client.send(request)
        assert await client.is_closed()
        await network.until(lambda: network.channel.in_progress_bytes == 0)
    assert f"more than {entry_of(24).limits.most} elements" in caplog.text


async def test_what_cannot_be_divided_is_handled_whole() -> None:
    calls: list[int] = []

    def handle(_: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
        calls.append(len(request.members))
        return LeaveGroupResponse()

    members = [MemberIdentity(f"{number}") for number in range(MANY)]
    async with running_network(entry(LEAVE_GROUP, "LeaveGroup", handle)) as network:
        client = await network.connect()
        assert await client.ask(LeaveGroupRequest("g", "", members), 4) == LeaveGroupResponse()
    assert calls == [MANY]
    assert entry_of(LEAVE_GROUP).limits.most == MAX_UNDIVIDED_ELEMENTS


async def test_a_member_of_a_group_names_all_its_partitions() -> None:
    """A lone member of a group with a large topic, and the leader of a large classic group."""
    owned: list[int] = []

    def heartbeat(
        _: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        assert request.topic_partitions is not None
        owned.extend(request.topic_partitions[0].partitions)
        return ConsumerGroupHeartbeatResponse()

    def sync(_: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
        return SyncGroupResponse(assignment=str(len(request.assignments)).encode())

    indexes = list(range(2 * MAX_UNDIVIDED_ELEMENTS))
    rows = [ConsumerGroupHeartbeatRequestTopicPartitions(bytes(16), indexes)]
    assigned = [SyncGroupRequestAssignment(f"member-{index}", b"") for index in indexes]
    entries = (
        entry(ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", heartbeat),
        entry(ApiKey.SYNC_GROUP, "SyncGroup", sync),
    )
    async with running_network(*entries) as network:
        client = await network.connect()
        beat = ConsumerGroupHeartbeatRequest("g", "m", 1, topic_partitions=rows)
        assert await client.ask(beat, 0) == ConsumerGroupHeartbeatResponse()
        synced = await client.ask(SyncGroupRequest("g", 1, "m", assignments=assigned), 4)
    assert owned == indexes
    assert isinstance(synced, SyncGroupResponse)
    assert synced.assignment == str(len(indexes)).encode()


async def test_a_part_that_fails_gets_the_error_response() -> None:
    def handle(_: RequestContext, request: MetadataRequest) -> MetadataResponse:
        assert request.topics is not None
        if any(topic.name == "topic-100" for topic in request.topics):
            raise KafkaError(3, "words")
        return echo(request)

    async with running_network(entry(METADATA, "Metadata", handle)) as network:
        network.error_response = MetadataResponse(topics=[MetadataResponseTopic(3, name="failed")])
        client = await network.connect()
        found = rows(await client.ask(metadata_request(*names())))
        assert found.count("failed") == 1
        assert len(found) == MANY - PART_ELEMENTS + 1


async def test_who_has_no_right_is_refused_before_the_request_is_decoded() -> None:
    def check(context: RequestContext, request: MetadataRequest) -> None:
        assert not request.topics
        raise KafkaError(31)

    async with running_network(early_checks={METADATA: check}) as network:
        network.error_response = MetadataResponse(controller_id=77)
        client = await network.connect()
        assert await client.ask(metadata_request(*names()), 1) == network.error_response
        assert [type(error) for error in network.errors] == [KafkaError]


async def test_a_client_that_goes_ends_its_request() -> None:
    handled = 0

    def handle(_: RequestContext, request: MetadataRequest) -> MetadataResponse:
        nonlocal handled
        handled += 1
        return echo(request)

    async with running_network(entry(METADATA, "Metadata", handle)) as network:
        client = await network.connect()
        client.send(metadata_request(*names(40_000)))
        await network.until(lambda: handled > 0)
        (connection,) = network.server.connections
        connection.close("by the test")
        await network.until(lambda: network.channel.in_progress_bytes == 0)
        assert handled < 40_000 // PART_ELEMENTS
        other = await network.connect()
        assert rows(await other.ask(metadata_request(*names()))) == names()


async def test_bytes_that_are_no_request_are_refused_in_the_middle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_network() as network:
        client = await network.connect()
        body = pack(">i", MANY) + b"\0\1a" * (MANY - 1) + b"\0\2\xff\xff"
        content = pack(">hhih", METADATA, 0, 1, -1) + body
        client.writer.write(pack(">i", len(content)) + content)
        assert await client.is_closed()
        await settled(network)
    assert "not UTF-8" in caplog.text


async def settled(network: Network) -> None:
    await network.until(lambda: network.channel.in_progress_bytes == 0)


@pytest.fixture
def usual() -> tuple[int, int, int]:
    return gc.get_threshold()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_only_full_runs_are_held_back_until_the_last_is_done(usual: tuple[int, int, int]) -> None:
    collections = FullCollections(Clock())
    collections.hold()
    assert gc.get_threshold()[:2] == usual[:2]
    assert gc.get_threshold()[2] > 1000 * usual[2]
    collections.hold()
    collections.release()
    assert gc.get_threshold() != usual
    collections.release()
    assert gc.get_threshold() == usual
    collections.hold()
    assert gc.get_threshold() != usual
    collections.release()


def test_not_for_ever(usual: tuple[int, int, int]) -> None:
    clock = Clock()
    collections = FullCollections(clock)
    collections.hold()
    clock.now += HOLD_SECONDS + 1
    collections.hold()  # work without a pause: it has been long enough
    assert gc.get_threshold() == usual
    collections.hold()
    assert gc.get_threshold() == usual
    clock.now += GAP_SECONDS
    collections.hold()
    assert gc.get_threshold() != usual
    for _ in range(4):
        collections.release()
    assert gc.get_threshold() == usual
