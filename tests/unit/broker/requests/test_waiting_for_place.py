"""Connections that wait for a place in the request queue: how many are notified of each place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest

from ottla.broker.requests.request_context import ANONYMOUS
from ottla.broker.runtime.tasks import running_tasks, stop
from tests.doubles.channel import RESPONSE, Channel, running
from tests.doubles.eventually import eventually_async

PLACES = 5
CONNECTIONS = 400


@pytest.fixture(autouse=True)
async def _handlers_end() -> AsyncIterator[None]:
    yield
    await stop(*running_tasks())


class Client:
    """As a connection: it reads at once when it gets a place, and then in each iteration of the
    loop, if the channel is not full."""

    principal = ANONYMOUS

    def __init__(self, channel: Channel, requests: int, client_host: str = "10.0.0.1") -> None:
        self.client_host = client_host
        self.left = requests
        self.calls = 0
        self.sent_before = 0  # responses of all, when this one took its last place
        self._channel = channel

    def room_available(self) -> None:
        self.calls += 1
        self.read()

    def read(self) -> None:
        if not self.left:
            return  # closed meanwhile, or it has sent a part of a request only
        channel = self._channel.channel
        if not channel.free_places:
            channel.wait_for_place(self)
            return
        self.left -= 1
        self.sent_before = len(self._channel.peer.sent)
        channel.put(self._channel.context())
        asyncio.get_running_loop().call_soon(self.read)


async def until_all_is_sent(channel: Channel, count: int) -> None:
    for _ in range(20 * CONNECTIONS):
        if len(channel.peer.sent) == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(channel.peer.sent)} of {count} responses")


async def test_a_place_is_offered_to_about_one_connection() -> None:
    channel = await running(lambda *_: RESPONSE, max_requests=PLACES)
    clients = [Client(channel, 3) for _ in range(CONNECTIONS)]
    for client in clients:
        client.read()
    await until_all_is_sent(channel, 3 * CONNECTIONS)
    # Offered to all that wait, each place would cost as much as there are connections.
    assert sum(client.calls for client in clients) < 3 * 3 * CONNECTIONS


async def test_connections_that_take_no_place_do_not_keep_the_others_waiting() -> None:
    channel = await running(lambda *_: RESPONSE, max_requests=PLACES)
    clients = [Client(channel, 1) for _ in range(CONNECTIONS)]
    for client in clients:
        client.read()
    for client in clients[PLACES:-1]:
        client.left = 0  # the last of all that wait is the only one that still has a request
    await until_all_is_sent(channel, PLACES + 1)
    assert clients[-1].left == 0


async def test_a_client_does_not_wait_for_all_the_connections_of_another() -> None:
    channel = await running(lambda *_: RESPONSE, max_requests=PLACES)
    clients = [Client(channel, 3) for _ in range(CONNECTIONS)]
    for client in clients:
        client.read()
    other = Client(channel, 1, "10.0.0.2")
    other.read()
    await eventually_async(lambda: not other.left)
    assert other.sent_before < 3 * PLACES


async def test_a_connection_that_fails_leaves_its_place_to_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel = await running(lambda *_: RESPONSE, max_requests=PLACES, handler_tasks=1)
    clients = [Client(channel, 1) for _ in range(PLACES + 3)]
    for client in clients:
        client.read()
    clients[PLACES].read = Mock(side_effect=RuntimeError("a defect"))  # type: ignore[method-assign]
    await until_all_is_sent(channel, PLACES + 2)
    assert "Failed to read a request of" in caplog.text
