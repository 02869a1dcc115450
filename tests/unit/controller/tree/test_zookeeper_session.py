"""The deadlines of many calls at once, with a client that responds at a chosen pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.controller.tree.store import ConnectionLost
from ottla.controller.tree.zookeeper_session import ZooKeeperSession

TIMEOUT_MS = 160
#: Half of the timeout, and more than a session waits for responses that its thread has read.
RESPONSE_SECONDS = 0.08
CALLS = 6


class Result:
    """What kazoo's asynchronous calls return."""

    def __init__(self, client: Client, value: object) -> None:
        self.value = value
        self.exception: Exception | None = None
        self._client = client

    def rawlink(self, finished: Callable[[Result], None]) -> None:
        self._client.respond(lambda: finished(self))


class Client:
    """Responds to one call after the other, up to `responses` of them."""

    chroot = ""
    connected = True
    client_id = (7, b"password")
    client_state = "CONNECTED"
    session_timeout_ms = 0
    problem = ""

    def __init__(self, responses: int) -> None:
        self.responses = responses
        self._next_at = 0.0

    def add_listener(self, listener: Callable[[str], object]) -> None:
        self._listener = listener

    def start_async(self) -> None:
        self._listener("CONNECTED")

    def exists_async(self, path: str) -> Result:
        return Result(self, path)

    def respond(self, finish: Callable[[], None]) -> None:
        self.responses -= 1
        if self.responses >= 0:
            loop = asyncio.get_running_loop()
            self._next_at = max(self._next_at, loop.time()) + RESPONSE_SECONDS
            loop.call_at(self._next_at, finish)

    def stop(self) -> None:
        """There is no thread."""

    def close(self) -> None:
        """There is no socket."""


async def session_with(monkeypatch: pytest.MonkeyPatch, responses: int) -> ZooKeeperSession:
    session = ZooKeeperSession("zk:2181", call_timeout_ms=TIMEOUT_MS)
    client: Any = Client(responses + 1)  # `connect` makes a call as well
    monkeypatch.setattr(session, "_make_client", lambda: client)
    await session.connect()
    return session


def calls(session: ZooKeeperSession) -> list[Callable[[], Any]]:
    return [(lambda at=at: session.kazoo().exists_async(f"/{at}")) for at in range(CALLS)]


@pytest.mark.parametrize("in_flight", [2, CALLS])
async def test_the_deadline_moves_with_each_response(
    monkeypatch: pytest.MonkeyPatch, in_flight: int
) -> None:
    monkeypatch.setattr("ottla.controller.tree.zookeeper_session.MAX_IN_FLIGHT", in_flight)
    session = await session_with(monkeypatch, CALLS)
    results = await session.pipeline(calls(session), repeat=True)
    assert [result.value for result in results] == [f"/{at}" for at in range(CALLS)]
    await session.close()


@pytest.mark.parametrize("responses", [0, 3])
async def test_without_responses_the_connection_is_lost(
    monkeypatch: pytest.MonkeyPatch, responses: int
) -> None:
    session = await session_with(monkeypatch, responses)
    with pytest.raises(ConnectionLost):
        await session.pipeline(calls(session), repeat=True)
    await session.close()
