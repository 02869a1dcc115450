import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any

import pytest

from ottla.broker.requests import held_responses as held_module
from ottla.broker.requests import request_channel as channel_module
from ottla.broker.requests.request_channel import (
    DEFERRED,
    Deferred,
    HandlerEntry,
    RequestChannel,
    RequestContext,
)
from ottla.broker.requests.request_context import Route
from ottla.broker.runtime.tasks import running_tasks
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.steps import Steps
from tests.doubles.channel import RESPONSE, Handle, running
from tests.doubles.network import (
    METADATA,
    Network,
    entry,
    metadata_request,
    running_network,
)
from tests.doubles.pace import endless_turns, steps_per_turn


@pytest.fixture(autouse=True)
async def no_task_is_left() -> Any:
    yield
    for task in running_tasks():
        task.cancel()
    await asyncio.gather(*running_tasks(), return_exceptions=True)


async def coroutine(_: RequestContext, __: Message) -> Message:
    await asyncio.sleep(0)
    return RESPONSE


def steps(*_: object) -> Steps[Message]:
    for _ in range(5):
        yield
    return RESPONSE


def deferring(context: RequestContext, _: Message) -> object:
    asyncio.get_running_loop().call_soon(context.respond, RESPONSE)
    return DEFERRED


def inside(context: RequestContext, _: Message) -> object:
    context.respond(RESPONSE)
    return DEFERRED


@pytest.mark.parametrize("turn", [lambda: steps_per_turn(2), endless_turns])
@pytest.mark.parametrize("handler", [lambda *_: RESPONSE, coroutine, steps, deferring, inside])
async def test_every_way_of_responding(
    handler: Handle, turn: Callable[[], AbstractContextManager[None]]
) -> None:
    channel = await running(handler)
    with turn():
        context = await channel.handle()
    assert len(channel.peer.sent) == 1
    assert channel.peer.sent[0][0][4:8] == b"\x00\x00\x00\x07"  # the correlation id
    assert context.dequeued_at <= context.local_done_at
    with pytest.raises(RuntimeError, match="got two responses"):
        context.respond(RESPONSE)
    assert not channel.peer.closed


async def test_none_sends_nothing_but_is_a_response() -> None:
    channel = await running(lambda *_: None)
    await channel.handle()
    assert channel.peer.sent == [[]]


async def failing(*_: object) -> Message:
    await asyncio.sleep(0)
    raise ValueError("as planned")


def failing_at_once(*_: object) -> Message:
    raise ValueError("as planned")


def failing_in_the_first_turn(*_: object) -> Steps[Message]:
    yield
    raise ValueError("as planned")


def failing_later(*_: object) -> Steps[Message]:
    for _ in range(20):
        yield
    raise ValueError("as planned")


@pytest.mark.parametrize(
    "handler", [failing, failing_at_once, failing_in_the_first_turn, failing_later]
)
async def test_a_failing_handler_returns_an_error_and_kills_nothing(
    handler: Handle,
) -> None:
    channel = await running(handler, RESPONSE, handler_tasks=1)
    for _ in range(3):
        await channel.handle()
    assert [str(error) for error in channel.errors] == ["as planned"] * 3
    assert len(channel.peer.sent) == 3
    assert channel.channel.routes[METADATA].statistics.errors == 3


async def test_without_an_error_response_nothing_is_sent() -> None:
    channel = await running(failing_at_once)
    await channel.handle()
    assert channel.peer.sent == [[]]


async def test_an_error_response_that_cannot_be_built_closes_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> Message:
        raise KeyError("no builder")

    channel = await running(failing_at_once)
    channel.channel._error_response = broken
    await channel.handle()
    assert channel.peer.close_reasons == ["the request failed and has no error response"]
    assert "correlation id 7" in caplog.text


async def test_failing_after_the_response_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    def handler(context: RequestContext, _: Message) -> Message:
        context.respond(RESPONSE)
        raise ValueError("too late")

    channel = await running(handler)
    await channel.handle()
    assert len(channel.peer.sent) == 1
    assert "failed after its response was sent" in caplog.text


async def test_a_response_that_cannot_be_encoded_closes_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "hmac-of-a-token"
    response = MetadataResponse(cluster_id=(secret,), throttle_time_ms=secret)
    channel = await running(lambda *_: response)
    await channel.handle()
    assert channel.peer.close_reasons == ["the response could not be encoded"]
    assert channel.peer.sent == [[]]
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    # Neither the response nor the text of the error, which may quote it.
    assert "cannot encode the response to Metadata version" in caplog.text
    assert secret not in caplog.text
    assert record.exc_info is None


async def test_closing_instead_of_responding() -> None:
    def handler(context: RequestContext, _: Message) -> object:
        context.close("acks=0 and an error")
        return DEFERRED

    channel = await running(handler)
    await channel.handle()
    assert channel.peer.close_reasons == ["acks=0 and an error"]


async def test_throttle_time_is_written_into_the_response() -> None:
    def handler(context: RequestContext, _: Message) -> Message:
        context.throttle_time_ms = 30
        return MetadataResponse()

    channel = await running(handler, throttle=lambda context: 50)
    context = await channel.handle()
    assert context.throttle_time_ms == 50
    assert channel.peer.sent[0][0][8:12] == (50).to_bytes(4, "big")


async def test_a_request_is_counted_once_before_its_response_or_with_it() -> None:
    counted = []

    def handler(context: RequestContext, _: Message) -> Deferred:
        context.respond(MetadataResponse(), context.count())
        return DEFERRED

    def throttle(context: RequestContext) -> int:
        counted.append(context.local_done_at)
        return 50

    channel = await running(handler, throttle=throttle)
    context = await channel.handle()
    assert context.throttle_time_ms == 50
    assert counted == [context.local_done_at] != [0.0]


async def test_requests_of_brokers_are_exempt_from_the_request_quota() -> None:
    table = [HandlerEntry(METADATA, "Metadata", 0, 12, lambda *_: RESPONSE, False, True)]
    channel = RequestChannel(table, lambda *_: None, throttle=lambda context: 50)
    assert channel.routes[METADATA].throttle is None


@pytest.mark.parametrize(
    ("code", "throttle_ms"),
    [(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 50), (ErrorCode.STALE_BROKER_EPOCH, 0)],
)
async def test_who_may_not_send_requests_of_brokers_is_not_exempt(
    code: ErrorCode, throttle_ms: int
) -> None:
    def refuse(*_: object) -> Message:
        raise KafkaError(code)

    channel = await running(refuse, throttle=lambda context: 50)
    channel.channel.routes[METADATA] = Route(
        HandlerEntry(METADATA, "Metadata", 0, 12, refuse, False, True), lambda context: 50
    )
    context = await channel.handle()
    assert context.throttle_time_ms == throttle_ms


async def test_coroutines_are_ended_when_the_broker_stops() -> None:
    async def forever(*_: object) -> Message:
        await asyncio.Event().wait()
        return RESPONSE

    channel = await running(forever)
    await channel.handle()
    (task,) = [task for task in running_tasks() if task.get_name() == "request-Metadata"]
    task.cancel()
    await channel.settle()
    assert channel.peer.close_reasons == ["the broker is stopping"]


async def test_a_turn_ends_so_that_others_get_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_TURN_REQUESTS", 3)
    monkeypatch.setattr(channel_module, "MAX_TURN_SECONDS", 60.0)
    channel = await running(lambda *_: RESPONSE)
    for _ in range(10):
        channel.channel.put(channel.context())
    seen = []
    while channel.channel.queued:
        await asyncio.sleep(0)
        seen.append(len(channel.peer.sent))
    assert [count for count in seen if count] == [3, 6, 9, 10]


async def test_a_turn_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_TURN_SECONDS", -1.0)
    channel = await running(lambda *_: RESPONSE)
    for _ in range(3):
        channel.channel.put(channel.context())
    await asyncio.sleep(0)
    assert len(channel.peer.sent) == 1
    await channel.settle()
    assert len(channel.peer.sent) == 3


async def test_what_was_held_back_leaves_at_the_end_of_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "MAX_TURN_SECONDS", 60.0)  # codecs are compiled in it
    monkeypatch.setattr(held_module, "MAX_HELD_SECONDS", 60.0)
    events: list[str] = []

    def handler(_: RequestContext, __: Message) -> Message:
        assert channel.channel.held.is_open
        events.append("handled")
        if len(events) == 1:
            channel.channel.held.add(lambda: events.append("flushed"), monotonic())
        return RESPONSE

    channel = await running(handler)
    for _ in range(3):
        channel.channel.put(channel.context())
    await channel.settle()
    assert events == ["handled"] * 3 + ["flushed"]
    assert not channel.channel.held.is_open


async def test_a_handler_that_holds_up_the_loop_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "EXPENSIVE_SECONDS", -1.0)
    monkeypatch.setattr(channel_module, "STALL_SECONDS", -1.0)
    channel = await running(lambda *_: RESPONSE)
    await channel.handle()
    assert channel.channel.stalls.by_name == {"Metadata": 1}


class TestBackpressure:
    """Clients that find the channel full wait, unread, and lose nothing."""

    async def test_so_many_requests_wait_in_the_queue_and_no_more_are_read(self) -> None:
        async with running_network(max_requests=3) as network:
            await network.channel.close()  # no handler takes requests out
            clients = [await network.connect() for _ in range(8)]
            for client in clients:
                client.send(metadata_request("t"))
            await network.until(lambda: network.channel.queued == 3)
            await asyncio.sleep(0.02)
            assert network.channel.queued == 3
            size = network.channel.in_progress_bytes // 3
            assert network.statistics.bytes_in == 3 * (size + 4)
            network.channel.start()
            for client in clients:
                assert (await client.receive())[0] == 1
            assert network.channel.in_progress_bytes == 0

    async def test_pipelined_requests_wait_for_room_too(self) -> None:
        async with running_network(max_requests=1) as network:
            clients = [await network.connect() for _ in range(5)]
            for client in clients:
                for _ in range(40):
                    client.send(metadata_request("t"))
            for client in clients:
                for number in range(40):
                    assert (await client.receive())[0] == number + 1

    async def test_a_client_that_leaves_while_it_waits_does_no_harm(self) -> None:
        async with running_network(max_requests=1) as network:
            await network.channel.close()
            clients = [await network.connect() for _ in range(4)]
            for client in clients:
                client.send(metadata_request())
            await network.until(lambda: network.channel._waiting_for_place.length == 3)
            for connection in network.server.connections:
                if connection._context is None:
                    connection.close("the test says so")
            network.channel.start()
            other = await network.connect()
            assert await other.ask(metadata_request()) == RESPONSE


async def test_requests_are_counted_with_where_their_time_went() -> None:
    async with running_network() as network:
        client = await network.connect()
        for version in (0, 1, 1):
            await client.ask(metadata_request("t"), version)
        await network.until(lambda: statistics_of(network).count == 3)
        statistics = statistics_of(network)
        assert statistics.by_version == {0: 1, 1: 2}
        assert statistics.request_bytes > 0
        parts = (
            statistics.queue_seconds
            + statistics.local_seconds
            + statistics.remote_seconds
            + statistics.response_seconds
            + statistics.send_seconds
        )
        assert parts == pytest.approx(statistics.total_seconds)
        assert sum(statistics.total_buckets) == 3


def statistics_of(network: Network) -> Any:
    return network.channel.routes[METADATA].statistics


async def test_an_error_that_closes_the_connection_has_no_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A produce request with acks=0 that fails: there is nothing to send."""

    def fail(_: RequestContext, __: object) -> None:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    async with running_network(entry(METADATA, "Metadata", fail)) as network:

        def close(context: RequestContext, _: Exception) -> None:
            context.close("by the error response")

        network.channel._error_response = close
        client = await network.connect()
        client.send(metadata_request())
        assert await client.is_closed()
        assert network.channel.in_progress_bytes == 0
    assert caplog.text == ""
