"""A request channel with one handler, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ottla.broker.requests.request_channel import (
    ANONYMOUS,
    HandlerEntry,
    RequestChannel,
    RequestContext,
)
from ottla.protocol.headers import RequestHeader
from ottla.protocol.message import Message
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.doubles.network import METADATA

RESPONSE = MetadataResponse()
# From version 3 on the response has a throttle time.
VERSION = 3


class Peer:
    """A connection that notes what is sent on it."""

    listener_name = "PLAINTEXT"
    principal = ANONYMOUS
    authenticated = True
    client_host, client_port = "10.0.0.1", 50_000
    local_address = ("10.0.0.2", 9092)
    client_software_name = client_software_version = ""
    raises_epochs = False
    is_broker = False

    def __init__(self) -> None:
        self.closed = False
        self.sent: list[list[Any]] = []
        self.close_reasons: list[str] = []

    def send_response(self, _: RequestContext, parts: list[Any]) -> None:
        self.sent.append(parts)

    def close(self, reason: str) -> None:
        self.closed = True
        self.close_reasons.append(reason)


Handle = Callable[[RequestContext, Any], Any]


class Channel:
    """A channel with one handler, and peers that send to it."""

    def __init__(self, handler: Handle, error_response: Message | None = None, **options: Any):
        self.errors: list[Exception] = []
        self.error_response = error_response
        table = [HandlerEntry(METADATA, "Metadata", 0, 12, handler)]
        self.channel = RequestChannel(table, self._error, **options)
        self.peer = Peer()

    def _error(self, _: RequestContext, error: Exception) -> Message | None:
        self.errors.append(error)
        return self.error_response

    def context(self) -> RequestContext:
        header = RequestHeader(METADATA, VERSION, 7, "tester")
        route = self.channel.routes[METADATA]
        return RequestContext(header, MetadataRequest(), self.peer, route)

    async def handle(self) -> RequestContext:
        """Put one request in and let the handler tasks run until they are idle."""
        context = self.context()
        self.channel.put(context)
        await self.settle()
        return context

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def running(handler: Handle, error_response: Message | None = None, **more: Any) -> Channel:
    channel = Channel(handler, error_response, **more)
    channel.channel.start()
    await channel.settle()
    return channel
