"""A request that is read while no other one waits is handled as it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.broker.requests import request_channel as channel_module
from ottla.broker.requests.fair_queue import MANY_EXPENSIVE
from ottla.broker.requests.request_channel import MAX_AT_ONCE, MAX_HANDLER_TASKS
from ottla.broker.requests.request_context import LongRequestContext, RequestContext
from ottla.broker.runtime.tasks import running_tasks, stop
from ottla.protocol.message import Message
from tests.doubles.channel import RESPONSE, Channel, Peer, running


@pytest.fixture(autouse=True)
async def _handlers_end(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Turns end by their number of requests here, and not when the machine stands still."""
    monkeypatch.setattr(channel_module, "MAX_TURN_SECONDS", 60.0)
    yield
    await stop(*running_tasks())


async def test_alone_it_is_handled_before_serve_returns() -> None:
    channel = await running(lambda *_: RESPONSE)
    for number in range(3):
        channel.channel.serve(channel.context())
        assert len(channel.peer.sent) == number + 1
        assert not channel.channel.queued
        assert not channel.channel.held.is_open
        await asyncio.sleep(0)
    assert channel.channel.busy_seconds > 0


async def test_of_several_in_an_iteration_only_the_first_is_handled_at_once() -> None:
    channel = await running(lambda *_: RESPONSE)
    for _ in range(3):
        channel.channel.serve(channel.context())
    assert len(channel.peer.sent) == 1
    await channel.settle()
    assert len(channel.peer.sent) == 3
    # After several in an iteration the next one is queued, and after a single one no more.
    channel.channel.serve(channel.context())
    assert len(channel.peer.sent) == 3
    await channel.settle()
    channel.channel.serve(channel.context())
    assert len(channel.peer.sent) == 5


async def test_an_error_at_the_end_of_a_turn_does_not_stop_the_handler_tasks() -> None:
    channel = await running(lambda *_: RESPONSE)

    def fail() -> None:
        raise OSError("no")

    channel.channel.held.add(fail, 0.0)
    with pytest.raises(OSError, match="no"):
        channel.channel.serve(channel.context())
    for _ in range(2):
        channel.channel.put(channel.context())
    await channel.settle()
    assert len(channel.peer.sent) == 3


async def test_no_handler_runs_within_another_one() -> None:
    running_handlers = 0
    handled = 0

    def handle(_: RequestContext, __: Message) -> Message:
        nonlocal running_handlers, handled
        assert not running_handlers
        running_handlers += 1
        handled += 1
        if handled < 4:
            channel.channel.serve(channel.context())
        running_handlers -= 1
        return RESPONSE

    channel = await running(handle)
    channel.channel.serve(channel.context())
    await channel.settle()
    assert handled == 4
    assert not channel.errors


async def test_the_rest_of_a_long_row_is_handled_after_others_are_read() -> None:
    handled = 0

    def handle(_: RequestContext, __: Message) -> Message:
        nonlocal handled
        handled += 1
        if handled < 3 * MAX_AT_ONCE:
            again = channel.context()
            again.received_at = channel.channel._turn_started_at
            channel.channel.put_first(again)
        return RESPONSE

    channel = await running(handle)
    channel.channel.serve(channel.context())
    assert handled == MAX_AT_ONCE
    await channel.settle()
    assert handled == 3 * MAX_AT_ONCE


async def test_long_and_expensive_requests_wait_for_their_turns() -> None:
    channel = await running(lambda *_: RESPONSE)
    given = channel.context()
    long = LongRequestContext(given.header, given.request, channel.peer, given.route)
    channel.channel.serve(long)
    assert not channel.peer.sent
    await channel.settle()
    assert len(channel.peer.sent) == 1
    for _ in range(MANY_EXPENSIVE):
        channel.channel._expensive.record(given, 1.0)
    channel.channel.serve(given)
    assert len(channel.peer.sent) == 1
    await channel.settle()
    assert len(channel.peer.sent) == 2


async def test_expensive_requests_of_another_client_are_no_reason_to_queue() -> None:
    channel = await running(lambda *_: RESPONSE)
    given = channel.context()
    for _ in range(MANY_EXPENSIVE):
        channel.channel._expensive.record(given, 1.0)
    other = Peer()
    other.client_host = "10.0.0.9"
    channel.channel.serve(RequestContext(given.header, given.request, other, given.route))
    assert len(other.sent) == 1


async def test_num_io_threads_has_no_bound_and_the_tasks_have_one() -> None:
    channel = Channel(lambda *_: RESPONSE, handler_tasks=2**31 - 1)
    channel.channel.start()
    assert len(channel.channel._tasks) == MAX_HANDLER_TASKS
    await channel.settle()
    channel.channel.serve(channel.context())
    assert len(channel.peer.sent) == 1
    await channel.channel.close()


async def test_a_channel_without_handler_tasks_queues() -> None:
    channel = Channel(lambda *_: RESPONSE)
    channel.channel.serve(channel.context())
    assert channel.channel.queued == 1
    channel.channel.start()
    await channel.settle()
    channel.channel.serve(channel.context())
    assert len(channel.peer.sent) == 2
    await channel.channel.close()
    channel.channel.serve(channel.context())
    assert channel.channel.queued == 1
