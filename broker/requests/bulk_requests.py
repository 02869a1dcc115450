"""Requests with very many elements are handled in turns, so that they delay no other client.

A request of two megabytes may have a million names. What it costs depends on its elements, not on
its bytes, and a client that may do nothing can send it. So the elements are counted while they are
decoded, before anything is made of them:

- up to `Limits.small`: the request is handled at once, as nearly all are;
- up to `Limits.inline`: the request channel handles small requests first, and then one such
  request in a turn, which is when the rest of it is decoded;
- more: decoding, handling (`ottla.broker.requests.request_parts`) and encoding go on in turns
  (`ottla.protocol.steps`), one at a time for all clients. Small requests that are queued are
  handled before a turn, and a pause follows it that is at least as long;
- more than `Limits.most`: the connection is closed, as Kafka does with an invalid request.

A client (its principal and address) has one such request in progress, all clients together
`MAX_AT_ONCE`; so memory has a bound, too. Who may not use an API that needs a permission on the
cluster is refused before the request is decoded.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from types import CoroutineType, GeneratorType
from typing import Any, TypeVar, cast

from ottla.broker.requests.request_context import (
    DEFERRED,
    Deferred,
    ErrorResponse,
    HandlerResult,
    RequestContext,
    Route,
    apply,
    started,
)
from ottla.broker.requests.request_parts import (
    MAX_UNDIVIDED_ELEMENTS,
    ORDINARY,
    Items,
    Limits,
    Part,
    items_of,
    merge,
    parts_of,
)
from ottla.broker.runtime.keyed_locks import KeyedLocks
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.registry import API
from ottla.protocol.steps import Steps, Turn, run_at_once

T = TypeVar("T")

# Checks that need nothing of the request; raise KafkaError.
EarlyCheck = Callable[[RequestContext, Any], object]
# Closes the connection of an invalid request and logs why.
Refuse = Callable[[RequestContext, str], None]

# The least pause after a turn: timers of uvloop count in milliseconds.
PAUSE_SECONDS = 0.001
# Iterations of the loop that a turn leaves to small requests which are queued; then it runs even if
# there are small requests in each of them.
MAX_YIELDS = 8

# Bulk requests of different clients at the same time; others wait, but for those of controllers.
# Each takes up to 20 MB.
MAX_AT_ONCE = 4


class TooManyElements(ProtocolError):
    """A request has more elements than its API may have."""


class Decoding:
    """A request that is decoded in steps."""

    __slots__ = ("_api_key", "_limits", "_steps", "elements", "message")

    def __init__(
        self, api_key: int, steps: Generator[int, None, Message], limits: Limits = ORDINARY
    ) -> None:
        self.elements = 0  # counted so far
        self.message: Message | None = None  # when it is decoded
        self._api_key = api_key
        self._steps = steps
        self._limits = limits

    def decode_small(self) -> bool:
        """Decode a request of few elements; False when it has more and is not decoded yet.

        Raises ProtocolError, TooManyElements."""
        return self._decode(self._limits.small)

    def decode_inline(self) -> bool:
        """Decode a request that is handled in one turn; False when it has more elements and is
        not decoded yet. Raises as `decode_small`."""
        return self._decode(self._limits.inline)

    def _decode(self, max_elements: int) -> bool:
        while self.elements <= max_elements:
            if not self.step():
                return True
        return False

    def step(self) -> bool:
        """Decode some elements; False when that was the last step. Raises as `decode_small`."""
        try:
            self.elements += next(self._steps)
        except StopIteration as end:
            self.message = end.value
            return False
        if self.elements > self._limits.most:
            self._steps.close()
            raise TooManyElements(
                f"it has more than {self._limits.most} elements", api=API[self._api_key].name
            )
        return True


class PartContext(RequestContext):
    """The context of one part of a request: keeps the response instead of sending it."""

    __slots__ = ("_response", "_whole")

    is_encoded = False  # but the response to the whole request

    def __init__(self, whole: RequestContext, part: Message) -> None:
        super().__init__(whole.header, part, whole.connection, whole.route, 0, whole.received_at)
        self._whole = whole
        self._response: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

    def respond(self, response: Message | None, throttle_time_ms: int = 0) -> None:
        if self._responded:
            raise RuntimeError(f"{self.route.entry.name} request got two responses")
        if self.amend is not None:
            run_at_once(apply(self.amend, response))
        self._responded = True
        whole = self._whole
        whole.throttle_time_ms = max(
            whole.throttle_time_ms, self.throttle_time_ms, throttle_time_ms
        )
        self._response.set_result(response)

    def close(self, reason: str) -> None:
        if not self._responded:
            self._responded = True
            self._response.set_result(None)
        self._whole.connection.close(reason)

    async def response(self) -> Message | None:
        """Wait for the response. A handler bounds its waiting, as for any request."""
        return await self._response


class BulkRequests:
    """Handles the bulk requests of all connections. Loop thread only."""

    def __init__(
        self,
        error_response: ErrorResponse,
        early_checks: Mapping[int, EarlyCheck] | None = None,
        small_is_queued: Callable[[], bool] = lambda: False,
    ) -> None:
        """`early_checks` by API key are asked before a request is decoded. `small_is_queued`:
        whether the request channel has small requests that wait for a handler."""
        self.total = 0  # requests that were handled in turns
        self.in_progress = 0  # at most `MAX_AT_ONCE`, those of controllers not counted
        self.waiting = 0  # for another one of the client, or for a place
        self.small_is_queued = small_is_queued
        self._error_response = error_response
        self._early_checks = early_checks or {}
        self._collections = FullCollections()
        self._routes: dict[int, Route] = {}
        self._lock = asyncio.Lock()  # held by the request whose turn it is
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._clients: KeyedLocks[tuple[object, str]] = KeyedLocks()

    def route(self, route: Route, refuse: Refuse) -> Route:
        """The route of the long requests of an API: its handler gets a `Decoding`."""
        found = self._routes.get(route.entry.api_key)
        if found is None:
            found = Route(
                route.entry._replace(
                    handler=lambda context, decoding: self._start(context, decoding, route, refuse)
                ),
                route.throttle,
            )
            found.statistics = route.statistics
            self._routes[route.entry.api_key] = found
        return found

    def _start(
        self, context: RequestContext, decoding: Decoding, route: Route, refuse: Refuse
    ) -> HandlerResult:
        """Handle a request that is decoded in part: at once, or in turns if it has many elements
        more."""
        context.route = route
        try:
            if not decoding.decode_inline():
                return self._handle(context, decoding, route, refuse)
        except ProtocolError as error:
            refuse(context, f"sent a request that cannot be read: {error}")
            return DEFERRED
        assert decoding.message is not None
        context.request = decoding.message
        return route.handler(context, decoding.message)

    async def _handle(
        self, context: RequestContext, decoding: Decoding, route: Route, refuse: Refuse
    ) -> Deferred | Message | None:
        self.total += 1
        context.request = API[route.entry.api_key].request()  # for an error before it is decoded
        check = self._early_checks.get(route.entry.api_key)
        if check is not None:
            check(context, context.request)
        takes_place = route.entry.limits.takes_place
        async with AsyncExitStack() as turns:
            self.waiting += 1
            try:
                client = (context.principal, context.client_host)
                # The waiters are bounded: a connection has one request in flight.
                await turns.enter_async_context(self._clients.locked(client))
                if takes_place:
                    await turns.enter_async_context(self._places)
                    # Not for controllers: what they send stays, and the next run would be long.
                    self._collections.hold()
                    turns.callback(self._collections.release)
            finally:
                self.waiting -= 1
            self.in_progress += 1
            try:
                return await self._work(context, decoding, refuse)
            finally:
                self.in_progress -= 1

    async def _work(
        self, context: RequestContext, decoding: Decoding, refuse: Refuse
    ) -> Deferred | Message | None:
        try:
            await self._run(_rest_of(context, decoding))
        except ProtocolError as error:
            refuse(context, f"sent a request that cannot be read: {error}")
            return DEFERRED
        request = decoding.message
        if request is None:
            context.close("the client closed the connection")
            return DEFERRED
        context.request = request
        items = items_of(context.route.entry.items, request)
        result: Message | Deferred | None
        if items is None:
            result = await self._handle_whole(context, request)
        else:
            result = await self._handle_parts(context, request, items)
        if isinstance(result, Message):
            await context.respond_in_turns(result, self._run)
            return DEFERRED
        return result

    async def _handle_whole(
        self, context: RequestContext, request: Message
    ) -> Message | Deferred | None:
        async with self._turn():
            result = context.route.handler(context, request)
        if isinstance(result, GeneratorType):
            result = await self._run(result)
        elif isinstance(result, Coroutine):
            result = await result
        return cast("Message | Deferred | None", result)

    async def _handle_parts(
        self, context: RequestContext, request: Message, items: Items
    ) -> Message | Deferred | None:
        response: Message | None = None
        parts = parts_of(request, items)
        while not context.client_gone:
            begun = await self._run(self._begin_next(context, parts))
            if begun is None:
                return response
            part_context, part, rest = begun
            if rest is not None:
                await rest
            found = await part_context.response()
            if found is None:
                context.close("a part of its request closed the connection")
                return DEFERRED
            if response is None:
                response = found
            else:
                merge(response, found, items, part.depth)
        context.close("the client closed the connection")
        return DEFERRED

    def _begin_next(
        self, context: RequestContext, parts: Iterator[Part | None]
    ) -> Steps[tuple[PartContext, Part, Coroutine[Any, Any, None] | None] | None]:
        """Handle the next part. Return its context, and a coroutine if its handler waits; None
        when there is no part left. May pause while the part is put together."""
        for part in parts:
            if part is not None:
                part_context = PartContext(context, part.request)
                return part_context, part, self._start_part(part_context, part)
            yield
        return None

    def _start_part(self, context: PartContext, part: Part) -> Coroutine[Any, Any, None] | None:
        """Handle a part; returns what to wait for, if its handler waits."""
        if part.is_too_long:
            what = f"An item has more than {MAX_UNDIVIDED_ELEMENTS} elements."
            self._part_failed(context, KafkaError(ErrorCode.INVALID_REQUEST, what))
            return None
        try:
            result = started(context.route.handler(context, part.request))
        except Exception as error:
            self._part_failed(context, error)
            return None
        if type(result) is CoroutineType:
            return self._finish_part(context, result)
        if result is not DEFERRED:
            context.respond(result)  # type: ignore[arg-type]  # no coroutine is left of the union
        return None

    async def _finish_part(
        self, context: PartContext, coroutine: Coroutine[Any, Any, Message | Deferred | None]
    ) -> None:
        try:
            result = await coroutine
            if not isinstance(result, Deferred):
                context.respond(result)
        except Exception as error:
            self._part_failed(context, error)

    def _part_failed(self, context: PartContext, error: Exception) -> None:
        context.route.statistics.record_failure(context, error)
        response = self._error_response(context, error)
        if not context._responded:
            context.respond(response)

    async def _run(self, steps: Steps[T]) -> T:
        """Return the result of `steps`, which have a turn among those of all bulk requests."""
        try:
            while True:
                async with self._turn() as turn:
                    try:
                        while True:
                            next(steps)
                            if turn.is_over:
                                break
                    except StopIteration as end:
                        result: T = end.value
                        return result
        finally:
            steps.close()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[Turn]:
        """One turn of one bulk request; then comes a pause."""
        async with self._lock:
            for _ in range(MAX_YIELDS):
                if not self.small_is_queued():
                    break
                await asyncio.sleep(0)
            started_at = monotonic()
            try:
                yield Turn()
            finally:
                await asyncio.sleep(max(PAUSE_SECONDS, monotonic() - started_at))


def _rest_of(context: RequestContext, decoding: Decoding) -> Steps[None]:
    """Decode the rest of a request, unless its client goes away."""
    while not context.client_gone and decoding.step():
        yield


# Full runs are held back for this time at the most, so that garbage of others is found.
HOLD_SECONDS = 10.0
# After that they are not, for this time.
GAP_SECONDS = 1.0
# A number of young collections that is not reached.
_NEVER = 1_000_000


class FullCollections:
    """Holds back full runs of the garbage collector while work with very many objects goes on.

    A full run reads every object and holds the interpreter: 25 to 45 ms with those of one request
    of 50,000 elements. Runs over young objects go on. Loop thread only; one in a process.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._thresholds: tuple[int, int, int] | None = None  # while they are held back
        self._holders = 0
        self._changed_at = -GAP_SECONDS

    def hold(self) -> None:
        """Work begins; each call is followed by one of `release`."""
        self._holders += 1
        now = self._clock()
        if self._thresholds is None:
            if now - self._changed_at >= GAP_SECONDS:
                self._thresholds = gc.get_threshold()
                gc.set_threshold(self._thresholds[0], self._thresholds[1], _NEVER)
                self._changed_at = now
        elif now - self._changed_at > HOLD_SECONDS:
            self._allow()

    def release(self) -> None:
        """Work is done; after the last one full runs are possible at once."""
        self._holders -= 1
        if not self._holders:
            self._allow()
            self._changed_at = self._clock() - GAP_SECONDS

    def _allow(self) -> None:
        if self._thresholds is not None:
            gc.set_threshold(*self._thresholds)
            self._thresholds = None
            self._changed_at = self._clock()
