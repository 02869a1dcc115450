"""Small requests are handled before those of many elements, which do not starve."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ottla.broker.requests import request_channel as channel_module
from ottla.broker.requests.request_context import LongRequestContext, RequestContext
from ottla.broker.runtime.tasks import running_tasks, stop
from ottla.protocol.message import Message
from tests.doubles.channel import RESPONSE, Channel, running
from tests.doubles.eventually import eventually_async


@pytest.fixture(autouse=True)
async def _handlers_end(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Turns end by their number of requests here, and not when the machine stands still."""
    monkeypatch.setattr(channel_module, "MAX_TURN_SECONDS", 60.0)
    yield
    await stop(*running_tasks())


def long_context(channel: Channel) -> RequestContext:
    small = channel.context()
    return LongRequestContext(small.header, small.request, small.connection, small.route)


async def test_a_small_request_waits_for_one_long_one_at_the_most() -> None:
    handled: list[str] = []

    def handle(context: RequestContext, _: Message) -> Message:
        handled.append("long" if context.is_long else "small")
        if context.is_long and len(handled) < 8:
            # Two clients send small ones meanwhile.
            channel.channel.put(channel.context())
            channel.channel.put(channel.context())
        return RESPONSE

    channel = await running(handle)
    for _ in range(50):
        channel.channel.put(long_context(channel))
    assert channel.channel.queued == 50
    await eventually_async(lambda: not channel.channel.queued)
    assert handled == ["long", "small", "small"] * 3 + ["long"] * 47


async def test_long_requests_do_not_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_TURN_REQUESTS", 2)
    # However long the machine takes for a long one: small ones come first in the pause after it.
    monkeypatch.setattr(channel_module, "MAX_PAUSE_SECONDS", 0.0)
    handled: list[str] = []

    def handle(context: RequestContext, _: Message) -> Message:
        handled.append("long" if context.is_long else "small")
        return RESPONSE

    channel = await running(handle)
    for _ in range(3):
        channel.channel.put(long_context(channel))
    for _ in range(6):
        channel.channel.put(channel.context())
    await eventually_async(lambda: not channel.channel.queued)
    assert handled == ["small", "small", "long"] * 3


async def test_long_requests_count_as_queued() -> None:
    channel = Channel(lambda *_: RESPONSE, max_requests=2)
    channel.channel.put(channel.context())
    assert channel.channel.free_places == 1
    channel.channel.put(long_context(channel))
    assert channel.channel.free_places == 0
    await channel.channel.close()
    assert not channel.channel.queued
    assert channel.channel.free_places == 2


async def test_long_requests_of_one_client_stay_together() -> None:
    numbers: list[int] = []

    def handle(context: RequestContext, _: Message) -> Message:
        numbers.append(context.frame_bytes)
        return RESPONSE

    channel = await running(handle)
    for number in (2, 3):
        context = long_context(channel)
        context.frame_bytes = number
        channel.channel.put(context)
    first = long_context(channel)
    first.frame_bytes = 1
    channel.channel.put_first(first)
    await eventually_async(lambda: not channel.channel.queued)
    assert numbers == [1, 2, 3]
