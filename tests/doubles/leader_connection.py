"""A follower's connection to a leader in the same process, one request at a time on command."""

from __future__ import annotations

import asyncio
from typing import cast

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.replication.fetcher import FetcherSettings
from ottla.broker.requests.request_channel import DEFERRED, RequestContext
from ottla.protocol.client.aio_connection import AsyncConnection
from ottla.protocol.codec import decoder, encoder, parts_encoder
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.registry import API
from ottla.storage.files.open_files import FileSlice
from tests.doubles.controller_cluster import settle
from tests.doubles.request_context import FakeContext, finished
from tests.unit.broker.handlers.scene import DataPath


class LeaderConnection:
    """What a fetcher uses of `AsyncConnection`. Requests wait until `Leader.response`."""

    def __init__(self, leader: Leader) -> None:
        self.versions = {key: (0, version) for key, version in leader.versions.items()}
        self.is_usable = True
        self._leader = leader

    async def request(
        self, request: Message, timeout_ms: int, *, version: int, in_turns: bool = False
    ) -> Message:
        responded: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._leader.waiting.append((request, version, responded))
        return await responded

    def close(self) -> None:
        self.is_usable = False


class Leader:
    """The handlers of a leader behind connections that respond on command."""

    def __init__(self, path: DataPath) -> None:
        self.path = path
        self.versions = {1: 17, 2: 9, 23: 4}
        self.waiting: list[tuple[Message, int, asyncio.Future[Message]]] = []
        self.connections: list[LeaderConnection] = []
        self.refuses: Exception | None = None

    async def connect(self, host: str, port: int) -> LeaderConnection:
        if self.refuses is not None:
            raise self.refuses
        self.connections.append(LeaderConnection(self))
        return self.connections[-1]

    async def next_request(self) -> tuple[Message, int]:
        """What the follower requests now, without a response to it."""
        await settle()
        request, version, _ = self.waiting[0]
        return request, version

    async def response(self, count: int = 1) -> None:
        """Lets the leader handle so many requests, and the follower take the responses."""
        for _ in range(count):
            await settle()
            request, version, responded = self.waiting.pop(0)
            responded.set_result(self._handle(request, version))
            await settle()

    async def fail(self, error: Exception) -> None:
        """The connection breaks before the response has come."""
        await settle()
        self.waiting.pop(0)[2].set_exception(error)
        await settle()

    async def reply(self, response: Message) -> None:
        """Completes one request with `response`, whatever the leader would have said."""
        await settle()
        self.waiting.pop(0)[2].set_result(response)
        await settle()

    def _handle(self, request: Message, version: int) -> Message:
        cls = type(request)
        sent = decoder(cls, version)(bytearray(encoder(cls, version)(request)), 0)[0]
        context = FakeContext(cls.API_KEY, version)
        handlers = {1: self.path.fetch.handle, 2: self.path.list_offsets.handle}
        handler = handlers[cls.API_KEY]
        result = finished(handler(cast(RequestContext, context), sent))  # type: ignore[arg-type]
        if result is DEFERRED and not context.responses:
            assert isinstance(request, FetchRequest)
            for _ in range(8):  # where nothing happens the wait is longer
                if not context.responses:
                    self.path.timer.advance(request.max_wait_ms + 1)
        response = context.responses[0] if result is DEFERRED else result
        reply = API[cls.API_KEY].response
        assert isinstance(response, reply)
        parts = parts_encoder(reply, version)(response)
        sent = b"".join(
            bytes(part.read()) if isinstance(part, FileSlice) else bytes(part) for part in parts
        )
        return decoder(reply, version)(sent, 0)[0]


class LeaderSettings(FetcherSettings):
    """Settings of fetchers that connect to `leader`."""

    def __init__(self, leader: Leader, broker_id: int) -> None:
        super().__init__(BrokerConfig({"replica.fetch.backoff.ms": "10"}), broker_id, BrokerEpoch())
        self._leader = leader

    async def connect(self, host: str, port: int) -> AsyncConnection:
        return cast(AsyncConnection, await self._leader.connect(host, port))
