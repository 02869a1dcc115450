"""Requests with very many elements are handled in slices, so that they delay no other client.

A request of two megabytes may have a million names. What it costs depends on its elements, not on
its bytes, and a client that may do nothing can send it. So the elements are counted while they are
decoded, before anything is made of them:

- up to `Limits.small`: the request is handled at once, as nearly all are;
- up to `Limits.inline`: the request channel handles small requests first, and then one such
  request in a turn, which is when the rest of it is decoded;
- more: decoding, handling (`ottla.broker.requests.request_parts`) and encoding go on in slices of
  about a millisecond, one for all clients in a turn of the loop. Small requests that are queued
  are handled before a slice, and a pause follows it that is at least as long;
- more than `Limits.most`: the connection is closed, as Kafka does with an invalid request.

A client (its principal and address) has one such request in progress, all clients together
`MAX_AT_ONCE`; so memory has a bound, too. Who may not use an API that needs a permission on the
cluster is refused before the request is decoded.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Generator, Mapping
from time import monotonic
from types import CoroutineType
from typing import Any, TypeVar, cast

from ottla.broker.requests.request_context import (
    DEFERRED,
    Deferred,
    ErrorResponse,
    HandlerResult,
    RequestContext,
    Route,
    amend_now,
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
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.headers import encode_response_in_steps
from ottla.protocol.message import Message
from ottla.protocol.registry import API

T = TypeVar("T")

# Checks that need nothing of the request; raise KafkaError.
EarlyCheck = Callable[[RequestContext, Any], object]
# Closes the connection of an invalid request and logs why.
Refuse = Callable[[RequestContext, str], None]

# A slice is short against the milliseconds in which a broker responds to others.
SLICE_SECONDS = 0.001
# The least pause after a slice. What cannot be divided takes longer, and so does the pause then.
PAUSE_SECONDS = 0.001
PAUSE_SHARE = 1.0
# Turns of the loop that a slice leaves to small requests which are queued. With small requests in
# each of them a slice still runs.
MAX_YIELDS = 8
# Steps of an encoder are small: the clock is read after so many.
STEPS_AT_ONCE = 32

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

    def __init__(self, whole: RequestContext, part: Message) -> None:
        super().__init__(whole.header, part, whole.connection, whole.route, 0, whole.received_at)
        self._whole = whole
        self._response: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

    def respond(self, response: Message | None, throttle_time_ms: int = 0) -> None:
        if self._responded:
            raise RuntimeError(f"{self.route.entry.name} request got two responses")
        if self.amend is not None:
            amend_now(self.amend, response)
        self._responded = True
        whole = self._whole
        whole.throttle_time_ms = max(
            whole.throttle_time_ms, self.throttle_time_ms, throttle_time_ms
        )
        self._response.set_result(response)

    async def respond_in_turns(self, response: Message | None) -> None:
        """The response to the whole request is encoded in slices."""
        if response is not None:
            await self.amend_in_turns(response)
        self.respond(response)

    def close(self, reason: str) -> None:
        if not self._responded:
            self._responded = True
            self._response.set_result(None)
        self._whole.connection.close(reason)

    async def response(self) -> Message | None:
        """What was responded. A handler bounds its waiting, as for any request."""
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
        self.total = 0  # requests that were handled in slices
        self.in_progress = 0  # at most `MAX_AT_ONCE`, those of controllers not counted
        self.waiting = 0  # for another one of the client, or for a place
        self.small_is_queued = small_is_queued
        self._error_response = error_response
        self._early_checks = early_checks or {}
        self._collections = FullCollections()
        self._routes: dict[int, Route] = {}
        self._turn = asyncio.Lock()
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._clients: dict[tuple[object, str], list[asyncio.Future[None]]] = {}

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
        """Handle a request that is decoded in part: at once, or in slices if it has many elements
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
        client = (context.principal, context.client_host)
        self.waiting += 1
        try:
            await self._enter(client)
        except asyncio.CancelledError:
            self.waiting -= 1
            raise
        try:
            return await self._in_a_place(context, decoding, refuse)
        finally:
            self._leave(client)

    async def _in_a_place(
        self, context: RequestContext, decoding: Decoding, refuse: Refuse
    ) -> Deferred | Message | None:
        takes_place = context.route.entry.limits.takes_place
        try:
            if takes_place:
                await self._places.acquire()
        finally:
            self.waiting -= 1
        self.in_progress += 1
        self._collections.hold()
        try:
            return await self._work(context, decoding, refuse)
        finally:
            self._collections.release()
            self.in_progress -= 1
            if takes_place:
                self._places.release()

    async def _enter(self, client: tuple[object, str]) -> None:
        """Wait until the client has no other bulk request in progress; first come, first served.
        The waiters are bounded: a connection has one request in flight."""
        waiting = self._clients.get(client)
        if waiting is None:
            self._clients[client] = []
            return
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(client)
            raise

    def _leave(self, client: tuple[object, str]) -> None:
        waiting = self._clients[client]
        while waiting:
            turn = waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        del self._clients[client]

    async def _work(
        self, context: RequestContext, decoding: Decoding, refuse: Refuse
    ) -> Deferred | Message | None:
        try:
            await self._decode(context, decoding)
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
            await self._respond(context, result)
            return DEFERRED
        return result

    async def _decode(self, context: RequestContext, decoding: Decoding) -> None:
        while not context.client_gone:
            async with Turn(self._turn, self.small_is_queued) as turn:
                while decoding.step():
                    if turn.is_over:
                        break
                else:
                    return

    async def _handle_whole(
        self, context: RequestContext, request: Message
    ) -> Message | Deferred | None:
        async with Turn(self._turn, self.small_is_queued):
            result = started(context.route.handler(context, request))
        if type(result) is CoroutineType:
            finished: Message | Deferred | None = await result
            return finished
        return cast("Message | Deferred | None", result)

    async def _handle_parts(
        self, context: RequestContext, request: Message, items: Items
    ) -> Message | Deferred | None:
        response: Message | None = None
        for part in parts_of(request, items):
            if context.client_gone:
                context.close("the client closed the connection")
                return DEFERRED
            if part is None:
                async with Turn(self._turn, self.small_is_queued):
                    continue
            part_context = PartContext(context, part.request)
            async with Turn(self._turn, self.small_is_queued):
                waits = self._start_part(part_context, part)
            if waits is not None:
                await waits
            found = await part_context.response()
            if found is None:
                context.close("a part of its request closed the connection")
                return DEFERRED
            if response is None:
                response = found
            else:
                merge(response, found, items, part.depth)
        return response

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

    async def _respond(self, context: RequestContext, response: Message) -> None:
        """Encode the response in slices and send it."""
        if not context.complete(response):
            return
        header = context.header
        steps = encode_response_in_steps(
            header.api_key, header.api_version, header.correlation_id, response
        )
        try:
            parts = await self._run(context, steps)
        except ProtocolError:
            context.connection.close("the response could not be encoded")
            parts = []
            context.connection.send_response(context, parts)
            raise
        context.connection.send_response(context, parts)

    async def _run(self, context: RequestContext, steps: Generator[None, None, T]) -> T:
        while True:
            async with Turn(self._turn, self.small_is_queued) as turn:
                try:
                    while not turn.is_over:
                        for _ in range(STEPS_AT_ONCE):
                            next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result


class Turn:
    """One slice of work: `async with` waits for the turn, and ends with a pause for others."""

    __slots__ = ("_lock", "_small_is_queued", "_started_at")

    def __init__(self, lock: asyncio.Lock, small_is_queued: Callable[[], bool]) -> None:
        self._lock = lock
        self._small_is_queued = small_is_queued
        self._started_at = 0.0

    @property
    def is_over(self) -> bool:
        """The slice took long enough."""
        return monotonic() - self._started_at > SLICE_SECONDS

    async def __aenter__(self) -> Turn:
        await self._lock.acquire()
        try:
            for _ in range(MAX_YIELDS):
                if not self._small_is_queued():
                    break
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._lock.release()
            raise
        self._started_at = monotonic()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            taken = monotonic() - self._started_at
            await asyncio.sleep(max(PAUSE_SECONDS, PAUSE_SHARE * taken))
        finally:
            self._lock.release()


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
