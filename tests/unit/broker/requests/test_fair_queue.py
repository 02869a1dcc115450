"""A client with many connections, or with expensive requests, does not make others wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.broker.requests import fair_queue as fair_queue_module
from ottla.broker.requests import request_channel as channel_module
from ottla.broker.requests.fair_queue import (
    EXPENSIVE_SECONDS,
    MANY_EXPENSIVE,
    MARK_SECONDS,
    SOON_SECONDS,
    ExpensiveRequests,
    FairQueue,
)
from ottla.broker.requests.request_channel import FEW_REQUESTS, MAX_PAUSE_SECONDS
from ottla.broker.requests.request_context import (
    LongRequestContext,
    Principal,
    RequestContext,
)
from ottla.broker.runtime.tasks import running_tasks, stop
from ottla.protocol.message import Message
from tests.doubles.channel import RESPONSE, Channel, Peer, running
from tests.doubles.eventually import eventually_async

MANY = 40


@pytest.fixture(autouse=True)
async def _handlers_end() -> AsyncIterator[None]:
    yield
    await stop(*running_tasks())


class Clock:
    """Of the channel; a request takes the time that its handler lets pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(channel_module, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def request_of(
    channel: Channel, name: str, *, received_at: float = 0.0, is_long: bool = False
) -> RequestContext:
    """Of a connection of its own; the user's name is also the address."""
    given = channel.context()
    peer = Peer()
    peer.principal = Principal("User", name)
    peer.client_host = name
    kind = LongRequestContext if is_long else RequestContext
    return kind(given.header, given.request, peer, given.route, 0, received_at)


def name_of(context: RequestContext) -> str:
    return context.principal.name


def test_one_of_each_client_in_turn() -> None:
    channel = Channel(lambda *_: RESPONSE)
    queue: FairQueue[RequestContext] = FairQueue()
    for name in ("anna", "anna", "anna", "bob", "carl", "bob"):
        context = request_of(channel, name)
        queue.append(context, context.connection)
    first = request_of(channel, "anna")
    queue.append_first(first, first.connection)
    assert queue.length == 7
    assert queue.pop() is first
    names = [name_of(queue.pop()) for _ in range(6)]
    assert names == ["bob", "carl", "anna", "bob", "anna", "anna"]
    assert queue.length == 0
    with pytest.raises(IndexError):
        queue.pop()


def test_a_client_is_a_principal_and_an_address() -> None:
    channel = Channel(lambda *_: RESPONSE)
    queue: FairQueue[RequestContext] = FairQueue()
    near, also_near, far = (request_of(channel, "anna") for _ in range(3))
    far.connection.client_host = "10.1.1.1"
    for each in (near, also_near, far):
        queue.append(each, each.connection)
    assert [queue.pop() for _ in range(3)] == [near, far, also_near]
    queue.append(near, near.connection)
    queue.clear()
    assert queue.length == 0


def test_many_expensive_requests_in_a_short_time_mark_a_client() -> None:
    channel = Channel(lambda *_: RESPONSE)
    expensive = ExpensiveRequests()
    # Once too few, once too slowly.
    for number in range(MANY_EXPENSIVE - 1):
        expensive.record(request_of(channel, "anna"), 1.0 + number / 1000)
    for number in range(MANY):
        expensive.record(request_of(channel, "anna"), 2.0 + number * SOON_SECONDS)
    assert not expensive.marks
    again = 9.0
    for _ in range(MANY_EXPENSIVE):
        expensive.record(request_of(channel, "anna"), again)
    assert expensive.includes(request_of(channel, "anna", received_at=again))
    assert not expensive.includes(request_of(channel, "bob", received_at=again))
    expensive.record(request_of(channel, "anna"), again + 0.5)
    end = again + 0.5 + MARK_SECONDS
    assert expensive.includes(request_of(channel, "anna", received_at=end - 0.01))
    assert not expensive.includes(request_of(channel, "anna", received_at=end))
    assert not expensive.marks


def test_marks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue_module, "MAX_MARKS", 3)
    channel = Channel(lambda *_: RESPONSE)
    expensive = ExpensiveRequests()
    for number in range(20):
        for _ in range(1 + number % MANY_EXPENSIVE):
            expensive.record(request_of(channel, f"user-{number}"), 1.0)
        assert len(expensive._counts) + len(expensive.marks) <= 3


async def test_a_client_with_many_connections_has_one_turn(clock: Clock) -> None:
    handled: list[str] = []

    def handle(context: RequestContext, _: Message) -> Message:
        handled.append(name_of(context))
        clock.now += 0.0004  # not enough to be expensive
        return RESPONSE

    channel = await running(handle)
    for _ in range(MANY):
        channel.channel.put(request_of(channel, "mallory"))
    channel.channel.put(request_of(channel, "anna"))
    assert channel.channel.queued == MANY + 1
    await eventually_async(lambda: not channel.channel.queued)
    assert handled.index("anna") == FEW_REQUESTS + 1


async def test_expensive_requests_wait_behind_others(clock: Clock) -> None:
    handled: list[str] = []

    def handle(context: RequestContext, _: Message) -> Message:
        handled.append(name_of(context))
        clock.now += 0.0015 if name_of(context) == "mallory" else 0.0001
        return RESPONSE

    channel = await running(handle)
    for _ in range(MANY_EXPENSIVE):
        channel.channel.put(request_of(channel, "mallory", received_at=clock.now))
    await eventually_async(lambda: len(handled) == MANY_EXPENSIVE)
    handled.clear()
    for _ in range(MANY):
        channel.channel.put(request_of(channel, "mallory", received_at=clock.now))
    for _ in range(3):
        channel.channel.put(request_of(channel, "anna", received_at=clock.now))
    await eventually_async(lambda: not channel.channel.queued)
    # One turn may have begun before they came.
    assert handled[:4].count("anna") == 3


async def test_requests_of_a_marked_client_that_are_quick_share_turns(clock: Clock) -> None:
    handled: list[str] = []
    seconds = 0.0015

    def handle(context: RequestContext, _: Message) -> Message:
        handled.append(name_of(context))
        clock.now += seconds
        return RESPONSE

    channel = await running(handle)
    for _ in range(MANY_EXPENSIVE):
        channel.channel.put(request_of(channel, "mallory", received_at=clock.now))
    await eventually_async(lambda: len(handled) == MANY_EXPENSIVE)
    handled.clear()
    seconds = EXPENSIVE_SECONDS / 10
    for _ in range(MANY):
        channel.channel.put(request_of(channel, "mallory", received_at=clock.now))
    turns = 0
    while channel.channel.queued:
        before = len(handled)
        await asyncio.sleep(0)
        turns += len(handled) > before
        # A small request that comes now waits for no longer than one expensive request takes.
        assert (len(handled) - before) * seconds < 1.5 * EXPENSIVE_SECONDS
    assert turns <= MANY / 10 + 1


async def test_a_long_request_of_another_client_waits_for_one(clock: Clock) -> None:
    handled: list[str] = []

    def handle(context: RequestContext, _: Message) -> Message:
        handled.append(name_of(context))
        return RESPONSE

    channel = await running(handle)
    for _ in range(MANY):
        channel.channel.put(request_of(channel, "mallory", is_long=True))
    channel.channel.put(request_of(channel, "anna", is_long=True))
    await eventually_async(lambda: not channel.channel.queued)
    assert handled.index("anna") == 1


async def test_a_pause_as_long_as_the_turn_follows_many_elements(clock: Clock) -> None:
    handled: list[str] = []
    turn_seconds = MAX_PAUSE_SECONDS / 2

    def handle(context: RequestContext, _: Message) -> Message:
        handled.append("long" if context.is_long else "small")
        clock.now += turn_seconds if context.is_long else 0.0
        return RESPONSE

    channel = await running(handle)
    channel.channel.put(request_of(channel, "anna"))
    for _ in range(2):
        channel.channel.put(request_of(channel, "mallory", is_long=True))
    await eventually_async(lambda: handled == ["small", "long"])
    clock.now += turn_seconds * 0.9
    channel.channel.put(request_of(channel, "anna"))
    await channel.settle()
    assert handled == ["small", "long", "small"]
    clock.now += turn_seconds * 0.2
    # A handler task continues when the timer of the pause expires.
    await eventually_async(lambda: handled == ["small", "long", "small", "long"])


async def test_no_pause_where_nothing_else_is_to_do(clock: Clock) -> None:
    handled: list[float] = []

    def handle(context: RequestContext, _: Message) -> Message:
        handled.append(clock.now)
        clock.now += 0.004
        return RESPONSE

    channel = await running(handle)
    for _ in range(3):
        channel.channel.put(request_of(channel, "anna", is_long=True))
    await eventually_async(lambda: len(handled) == 3)
    assert handled == pytest.approx([1000.0, 1000.004, 1000.008])


async def test_requests_that_came_in_together_are_in_a_row_for_a_while(clock: Clock) -> None:
    handled: list[str] = []

    def handle(context: RequestContext, _: Message) -> Message:
        name = name_of(context)
        handled.append(name)
        clock.now += 0.0004
        if name == "mallory" and len(handled) < 10:
            again = request_of(channel, "mallory", received_at=clock.now)
            channel.channel.put_first(again)
        return RESPONSE

    channel = await running(handle)
    channel.channel.put(request_of(channel, "mallory"))
    channel.channel.put(request_of(channel, "anna"))
    await eventually_async(lambda: not channel.channel.queued)
    assert handled.index("anna") == 3


async def test_long_and_expensive_requests_and_small_ones_take_turns(clock: Clock) -> None:
    handled: list[str] = []

    def handle(context: RequestContext, _: Message) -> Message:
        name = name_of(context)
        handled.append(name)
        clock.now += 0.002 if name == "mallory" else 0.0001
        if name == "anna" and handled.count("anna") < 20:
            channel.channel.put(request_of(channel, "anna", received_at=clock.now))
        return RESPONSE

    channel = await running(handle)
    for _ in range(MANY_EXPENSIVE):
        channel.channel.put(request_of(channel, "mallory", received_at=clock.now))
    await eventually_async(lambda: len(handled) == MANY_EXPENSIVE)
    handled.clear()
    clock.now += 0.5  # no pause: it is long since a small request was handled
    for _ in range(3):
        channel.channel.put(request_of(channel, "mallory", received_at=clock.now))
        channel.channel.put(request_of(channel, "long", is_long=True))
    await eventually_async(lambda: len(handled) == 6)
    assert handled in (["mallory", "long"] * 3, ["long", "mallory"] * 3)
