"""A request's context without a network: notes the responses."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from ottla.broker.requests.request_channel import ANONYMOUS, DEFERRED, RequestContext
from ottla.broker.requests.request_context import started
from ottla.protocol.codec import decoder, encoder
from ottla.protocol.headers import RequestHeader
from ottla.protocol.message import Message
from tests.doubles.api_routes import entry_of

M = TypeVar("M", bound=Message)


class FakeContext:
    """What handlers use of a `RequestContext`."""

    def __init__(self, api_key: int, version: int, client_id: str | None = "client") -> None:
        self.header = RequestHeader(api_key, version, 1, client_id)
        self.route = SimpleNamespace(entry=entry_of(api_key))
        self.client_host = "127.0.0.1"
        self.client_port = 50_000
        self.listener_name = "PLAINTEXT"
        self.client_gone = False
        self.connection = SimpleNamespace(
            client_software_name="",
            client_software_version="",
            client_host="127.0.0.1",
            principal=ANONYMOUS,
            raises_epochs=False,
            is_broker=False,
        )
        self.local_address = ("10.0.0.9", 9092)
        self.principal = ANONYMOUS
        self.frame_bytes = 100
        self.throttle_time_ms = 0
        self.request_throttle_ms = 0  # what the request quota says
        self.request: Message | None = None
        self.amend: Any = None
        self.closed_because: str | None = None
        self.responses: list[Message | None] = []

    def respond(self, response: Message | None, throttle_time_ms: int = 0) -> None:
        assert not self.responses, "two responses"
        self.responses.append(response)
        self.throttle_time_ms = max(self.throttle_time_ms, throttle_time_ms)

    async def respond_in_turns(self, response: Message) -> None:
        self.respond(response)

    async def amend_in_turns(self, response: Message) -> None:
        """Nothing changes responses here."""

    def count(self) -> int:
        return self.request_throttle_ms

    def close(self, reason: str) -> None:
        assert not self.responses, "a response and closed"
        self.closed_because = reason


class Asked:
    """A request that was handed to a handler: `response` is its response, once there is one.

    The response has gone through its version's bytes, so it holds what a client would see.
    """

    def __init__(
        self, handler: Any, request: Message, version: int, client_id: str | None = "client"
    ) -> None:
        cls = type(request)
        # Frames are writable: the log stamps its offsets into the records of a produce request.
        sent = decoder(cls, version)(bytearray(encoder(cls, version)(request)), 0)[0]
        self._version = version
        self.context = self._context = FakeContext(request.API_KEY, version, client_id)
        result = finished(handler(cast(RequestContext, self._context), sent))
        if result is not DEFERRED:
            self._context.respond(result)

    @property
    def is_pending(self) -> bool:
        return not self._context.responses

    def response(self, cls: type[M]) -> M:
        (response,) = self._context.responses
        assert isinstance(response, cls)
        return decoder(cls, self._version)(encoder(type(response), self._version)(response), 0)[0]


def finished(result: Any) -> Any:
    """Return what a handler returns in the end. It waits for nothing but its next turn."""
    result = started(result)
    if not isinstance(result, Coroutine):
        return result
    try:
        while True:
            if result.send(None) is not None:
                raise AssertionError("the handler waits for something")
    except StopIteration as end:
        return end.value
