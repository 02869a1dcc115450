"""Between the network and the handlers: a bounded queue of decoded requests.

Connections put requests in, handler tasks take them out. Everything is bounded: a connection has
one request in flight, at most `max_requests` wait, and `ottla.broker.requests.memory_budget` bounds
the memory of requests and responses. A connection that finds no room stops reading its socket, so
the back pressure reaches its client. A request whose response may be long is parked until there is
memory for it.

Handler tasks handle one request after the other for a bounded turn. A handler that responds at once
runs inline; a coroutine gets a task of its own. A request waits in one of four queues:

- `_queue`: up to `FEW_REQUESTS` small ones, in arrival order;
- `_crowd`: more small ones, one of each client in turn;
- `_expensive_queue`: those of clients whose requests of that API have just taken long. A turn ends
  with the first one that takes long again;
- `_long_queue`: those of many elements, one in a turn. While there are small requests, a pause as
  long as the turn follows, in which the others go on.

Turns of small requests alternate with turns of the last two queues: a small one waits for one
costly request at most, however many clients send those. Connections that wait for a place get it
one of each client in turn, so that a client gains nothing by many connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from time import monotonic
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from ottla.broker.metrics.statistics import STALL_SECONDS, StallStatistics
from ottla.broker.requests.bulk_requests import BulkRequests, EarlyCheck
from ottla.broker.requests.fair_queue import (
    EXPENSIVE_SECONDS,
    ExpensiveRequests,
    FairQueue,
)
from ottla.broker.requests.held_responses import HeldResponses
from ottla.broker.requests.memory_budget import LONG_RESPONSES, MemoryBudget, client_of
from ottla.broker.requests.memory_pool import Lease
from ottla.broker.requests.request_context import (
    ANONYMOUS,
    DEFERRED,
    Deferred,
    ErrorResponse,
    Handler,
    HandlerEntry,
    HandlerResult,
    Principal,
    RequestConnection,
    RequestContext,
    Route,
)
from ottla.broker.runtime.tasks import spawn, stop
from ottla.protocol.message import Message
from ottla.protocol.steps import run

if TYPE_CHECKING:
    from ottla.broker.net.connection import Connection

# One import for those who make, queue and handle requests.
__all__ = [
    "ANONYMOUS",
    "DEFERRED",
    "MAX_IN_A_ROW",
    "Deferred",
    "ErrorResponse",
    "Handler",
    "HandlerEntry",
    "HandlerResult",
    "Principal",
    "RequestChannel",
    "RequestConnection",
    "RequestContext",
    "Route",
]

logger = logging.getLogger("ottla.requests")

# A handler task's turn ends after this time or this many requests, whichever is first, so that
# sockets and timers get theirs: short against the 50 ms that count as a stall, long against the
# cost of a turn of the loop (some microseconds).
MAX_TURN_SECONDS = 0.002
MAX_TURN_REQUESTS = 256

# Up to this many small requests stay in arrival order, which is cheapest; at half a millisecond for
# each, the last one waits as long as a turn takes. Beyond that, clients take turns.
FEW_REQUESTS = 4

# How many requests of one connection are handled in a row when they came in together. In a row,
# their responses are sent in one packet; the other clients wait for a millisecond at most.
MAX_IN_A_ROW = 16
# A row that begins as it is read pauses after this many, so that other clients are read.
MAX_AT_ONCE = 8
# A row ends after this much of a turn, if few others wait.
IN_A_ROW_SECONDS = 0.001

# When a request finishes, its place is offered to this many waiting connections; some have nothing
# to send any more. When all places are free, it is this many in one iteration of the loop: each
# connection reads a request.
PLACES_PER_REQUEST = 2
PLACES_AT_ONCE = 64

# Long requests pause only if a small request was handled within this time.
SMALL_SECONDS = 0.05
# The longest pause. Requests that take longer are divided, or have at most 5000 elements.
MAX_PAUSE_SECONDS = 0.01

_NONE: deque[RequestContext] = deque()


# All handlers share one event loop, so that more of them handle no more requests; a task takes 10
# KB of memory, and num.io.threads has no bound.
MAX_HANDLER_TASKS = 64


class RequestChannel:
    """The bounded queue, and the handler tasks that empty it. Loop thread only."""

    def __init__(
        self,
        handler_table: Iterable[HandlerEntry],
        error_response: ErrorResponse,
        *,
        max_requests: int = 500,
        memory: MemoryBudget | None = None,
        handler_tasks: int = 8,
        throttle: Callable[[RequestContext], int] | None = None,
        early_checks: Mapping[int, EarlyCheck] | None = None,
        held: HeldResponses | None = None,
    ) -> None:
        """`max_requests`: Kafka's queued.max.requests. `memory`: without limits if None.
        `handler_tasks`: num.io.threads. `throttle` counts each response against
        the request quota, but for exempt APIs, and returns the throttle time in ms. `early_checks`:
        see `BulkRequests`. `held` is shared with those who send many responses outside of a turn.
        """
        self.memory = MemoryBudget() if memory is None else memory
        self.routes = {entry.api_key: Route(entry, throttle) for entry in handler_table}
        for api_key in LONG_RESPONSES & self.routes.keys():
            route = self.routes[api_key]
            route.handler = partial(self._handle_with_memory, route.handler)
        self._queue: deque[RequestContext] = deque()
        self._crowd: FairQueue[RequestContext] = FairQueue()
        self._expensive_queue: FairQueue[RequestContext] = FairQueue()
        self._long_queue: FairQueue[RequestContext] = FairQueue()
        #: Requests that wait for a handler (Kafka's RequestQueueSize).
        self.queued = 0
        #: Places for more requests. Expensive ones take none: the number of connections bounds
        #: them, and clients that send them would leave others no place.
        self.free_places = max_requests
        self._small_is_next = True
        self._long_is_next = False
        self._long_not_before = 0.0  # the end of a pause
        self._small_at = 0.0  # the last turn of small requests
        self._turn_started_at = 0.0
        self._expensive = ExpensiveRequests()
        self.bulk = BulkRequests(
            error_response, early_checks, lambda: bool(self._queue or self._crowd.length)
        )
        self.stalls = StallStatistics()
        self.busy_seconds = 0.0  # spent in handlers and in sending their immediate responses
        #: Responses of this turn that are sent at its end.
        self.held = HeldResponses() if held is None else held
        self._at_once = True  # the next request that is read may be handled as it is read
        self._handled_at_once = 0  # in this iteration of the loop
        self._loop: asyncio.AbstractEventLoop | None = None  # set by `start`
        self._error_response = error_response
        self._max_requests = max_requests
        self._handler_tasks = min(handler_tasks, MAX_HANDLER_TASKS)
        self._waiting_for_place: FairQueue[Connection] = FairQueue()
        self._idle: list[asyncio.Future[None]] = []
        self._busy_tasks = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the handler tasks."""
        self._loop = asyncio.get_running_loop()
        self.memory.defer(self._loop.call_soon)
        for number in range(self._handler_tasks):
            self._tasks.append(spawn(self._handle_requests(), name=f"request-handler-{number}"))

    async def close(self) -> None:
        """Stop the handler tasks. Requests that are still queued get no response."""
        tasks, self._tasks = self._tasks, []
        await stop(*tasks)
        self._idle.clear()
        self._loop = None
        self._queue.clear()
        self._crowd.clear()
        self._expensive_queue.clear()
        self._long_queue.clear()
        self.queued, self.free_places = 0, self._max_requests
        self._waiting_for_place.clear()
        self.memory.clear()
        self.memory.defer(None)

    @property
    def in_progress_bytes(self) -> int:
        """Frames received or being received, until the response is sent."""
        return self.memory.request_bytes

    def _handle_with_memory(
        self, handler: Handler, context: RequestContext, request: Any
    ) -> HandlerResult:
        """Handle a request whose response may be long, or park it until there is memory for the
        response."""
        if context.response_lease is None and context.is_encoded:
            lease = self.memory.begin_response(context, partial(self._memory_available, context))
            if lease is None:
                return DEFERRED
            context.response_lease = lease
        return handler(context, request)

    def _memory_available(self, context: RequestContext, lease: Lease) -> None:
        """A parked request can be handled."""
        context.response_lease = lease
        context.local_done_at = 0.0
        self.put(context)

    def forget(self, context: RequestContext) -> bool:
        """The connection of a request is closed. Returns whether it was parked: it is not handled
        any more."""
        pool = self.memory.response_pool(context)
        return pool.waiting > 0 and pool.forget(context, client_of(context.connection))

    def serve(self, context: RequestContext) -> None:
        """Handle a request that was just read, if no other one waits or was read in this iteration
        of the loop; else queue it as `put`. It is for callbacks of the loop: a handler must not
        run within another one.

        Alone, a request costs more by the queue than by itself. Several that were read in one
        iteration cost less one after the other; so no request is handled as it is read after an
        iteration with several.
        """
        if (
            not self._at_once
            or self._busy_tasks
            or self._loop is None
            or self._long_queue.length
            or self._crowd.length
            or context.is_long
            or (self._expensive.marks and self._expensive.includes(context))
        ):
            self.put(context)
            return
        self._at_once = False
        self._handled_at_once = 1
        self._loop.call_soon(self._end_iteration)
        self._busy_tasks += 1
        self._queue.append(context)
        self.queued += 1
        self.free_places -= 1
        try:
            self._take_turn(self._queue, self._crowd, MAX_AT_ONCE, MAX_TURN_SECONDS)
        finally:  # else no handler task would be started again
            self._busy_tasks -= 1
        if self.queued:
            self._wake()

    def _end_iteration(self) -> None:
        if not self._busy_tasks:  # else the turn that follows counts what was read
            self._at_once = True
            self._handled_at_once = 0

    def _queue_of(self, context: RequestContext) -> FairQueue[RequestContext] | None:
        """Return the queue where a request waits for the turn of its client; None for a small one
        if so few wait that they are handled in their order."""
        if context.is_long:
            return self._long_queue
        if self._expensive.marks and self._expensive.includes(context):
            return self._expensive_queue
        return self._crowd if self._crowd.length else None

    def put(self, context: RequestContext) -> None:
        """Queue a request. The caller has seen that there is a free place."""
        queue = self._queue_of(context)
        if queue is None and len(self._queue) < FEW_REQUESTS:
            self._queue.append(context)
        else:
            if queue is None:
                queue = self._crowd
            queue.append(context, context.connection)
        self.queued += 1
        if queue is not self._expensive_queue:
            self.free_places -= 1
        if not self._busy_tasks and self._idle:
            self._wake()

    def put_first(self, context: RequestContext) -> None:
        """Queue a request before all others of its kind: it came in with the one of the same client
        that was just handled, and their responses are to be sent together. The caller bounds how
        many in a row do so. When many wait, it is put before the others of its client."""
        queue = self._queue_of(context)
        if queue is not None:
            queue.append_first(context, context.connection)
        elif context.received_at - self._turn_started_at > IN_A_ROW_SECONDS:
            self.put(context)
            return
        else:
            self._queue.appendleft(context)
        self.queued += 1
        if queue is not self._expensive_queue:
            self.free_places -= 1
        self._wake()

    def _wake(self) -> None:
        """Let an idle handler task take what is queued, unless one is at work."""
        if not self._busy_tasks and self._idle:
            self._busy_tasks += 1
            self._idle.pop().set_result(None)

    def wait_for_place(self, waiter: Connection) -> None:
        """Call `waiter.room_available()` once, when the queue has a place: one connection of each
        client in turn, those of one client in order."""
        self._waiting_for_place.append(waiter, waiter)

    async def _handle_requests(self) -> None:
        loop = asyncio.get_running_loop()
        self._busy_tasks += 1
        while True:
            while self.queued:
                wait = self._take_next_turn()
                if wait > 0:
                    loop.call_later(wait, self._wake)
                    break
                if self.queued:
                    await asyncio.sleep(0)
            self._busy_tasks -= 1
            idle = loop.create_future()
            self._idle.append(idle)
            await idle  # `_wake` counts the task as busy when it completes this

    def _take_next_turn(self) -> float:
        """Handle requests of one of the queues in turn. Returns the seconds to wait, if there are
        only requests of many elements and their pause is not over."""
        queue, crowd = self._queue, self._crowd
        expensive, long_queue = self._expensive_queue, self._long_queue
        small = len(queue) + crowd.length
        is_alone = small == self.queued
        if is_alone or (small and self._small_is_next):
            if is_alone:
                self._at_once = small + self._handled_at_once == 1
                self._handled_at_once = 0
            self._take_turn(queue, crowd, MAX_TURN_REQUESTS, MAX_TURN_SECONDS)
            self._small_is_next = False
            return 0.0
        wait = self._long_not_before - monotonic() if long_queue.length else 0.0
        if long_queue.length and wait <= 0 and (self._long_is_next or not expensive.length):
            self._take_long_turn()
            self._long_is_next = False
        elif expensive.length:
            # One that is as expensive as the last ones ends the turn.
            self._take_turn(_NONE, expensive, MAX_TURN_REQUESTS, EXPENSIVE_SECONDS)
            self._long_is_next = True
        elif small:
            self._take_turn(queue, crowd, MAX_TURN_REQUESTS, MAX_TURN_SECONDS)
            return 0.0
        else:
            return wait
        self._small_is_next = True
        return 0.0

    def _take_long_turn(self) -> None:
        """Handle a request of many elements; if small ones were handled lately, begin a pause."""
        started_at = monotonic()
        self._take_turn(_NONE, self._long_queue, 1, MAX_TURN_SECONDS)
        now = monotonic()
        if now - self._small_at < SMALL_SECONDS:
            self._long_not_before = now + min(now - started_at, MAX_PAUSE_SECONDS)

    def _take_turn(
        self,
        queue: deque[RequestContext],
        others: FairQueue[RequestContext],
        max_requests: int,
        max_seconds: float,
    ) -> None:
        """Handle queued requests until there are none or the turn is over."""
        self._turn_started_at = started_at = now = monotonic()
        places = others is not self._expensive_queue
        held = self.held
        held.is_open = True
        for _ in range(max_requests):
            context = queue.popleft() if queue else others.pop()
            self.queued -= 1
            self.free_places += places
            context.dequeued_at = now
            held.expects_more = bool(queue or others.length)
            self.handle(context)
            if self._waiting_for_place.length:
                self._offer_places(PLACES_PER_REQUEST)
            now = monotonic()
            taken = now - context.dequeued_at
            if taken > EXPENSIVE_SECONDS:
                self._expensive.record(context, now)
                if taken > STALL_SECONDS:
                    self.stalls.record(context.route.entry.name, taken)
            if not (queue or others.length) or now - started_at > max_seconds:
                break
            if held.is_due(now):
                held.flush()
        self.busy_seconds += now - started_at
        if self._waiting_for_place.length and not self.queued:
            self._offer_places(PLACES_AT_ONCE)
        if others is self._crowd:
            self._small_at = now
        held.is_open = held.expects_more = False
        if held.flushes:
            held.flush()

    def _offer_places(self, most: int) -> None:
        """Let connections that wait read. Those that have no request any more leave their places to
        the next ones. While many of them come one after the other, the rest are read in the next
        iteration of the loop."""
        waiting = self._waiting_for_place
        for _ in range(most):
            if not waiting.length or self.free_places <= 0:
                return
            waiter = waiting.pop()
            try:
                waiter.room_available()
            except Exception:  # else it would end the handler task that offers the place
                logger.exception("Failed to read a request of %r", waiter)
        if waiting.length and not self.queued and self._loop is not None:
            self._loop.call_soon(self._offer_places, most)

    def handle(self, context: RequestContext) -> None:
        """Serve one request now, as the handler tasks do with what they take from the queue."""
        route = context.route
        try:
            result = route.handler(context, context.request)
            if type(result) is GeneratorType:
                result = run(result)
            if result is DEFERRED:
                if not context.local_done_at:
                    context.local_done_at = monotonic()
            elif type(result) is CoroutineType:
                context.local_done_at = monotonic()  # what it waits for is remote time
                spawn(self._await_result(context, result), name=route.task_name)
            else:
                # What is left of the union is Message | None, which is more than mypy can see.
                context.respond(result)  # type: ignore[arg-type]
        except Exception as error:
            self._failed(context, error)

    async def _await_result(
        self, context: RequestContext, coroutine: Coroutine[Any, Any, Message | Deferred | None]
    ) -> None:
        try:
            result = await coroutine
            if not isinstance(result, Deferred):
                await context.respond_in_turns(result)
        except Exception as error:
            self._failed(context, error)
        except asyncio.CancelledError:
            context.close("the broker is stopping")
            raise

    def _failed(self, context: RequestContext, error: Exception) -> None:
        """A handler raised: send the error response of the API, or close the connection."""
        context.route.statistics.record_failure(context, error)
        if context._responded:
            logger.error(
                "%s of %s:%d failed after its response was sent",
                context.route.task_name,
                context.client_host,
                context.client_port,
                exc_info=error,
            )
            return
        context.count_refusal(error)
        try:
            response = self._error_response(context, error)
            if not context._responded:  # it may have closed the connection: acks=0
                context.respond(response)
        except Exception as second_error:
            logger.error(
                "%s of %s:%d with correlation id %d: cannot build the error response, closing the "
                "connection",
                context.route.task_name,
                context.client_host,
                context.client_port,
                context.header.correlation_id,
                exc_info=second_error,
            )
            context.close("the request failed and has no error response")
