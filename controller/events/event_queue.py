"""One queue, one consumer: everything the controller does happens in one order.

Watches, timers, answers and requests only ``put``; ``run`` takes one event after the other and
awaits its processing before it takes the next. So the controller's state needs no locks, although
processing awaits the store again and again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from ottla.controller.events.events import (
    Call,
    ControllerState,
    Event,
    LeaderAndIsrResponseReceived,
    ShutDown,
    state_of,
)
from ottla.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger("ottla.controller")

MAX_WAITING_CALLS = 10_000
"""Each waiting call is a connection that waits for its answer, and there are fewer connections
than this; beyond it something is wrong, and the caller is told to try again."""

Process = Callable[[Event], Awaitable[None]]
EventProcessedCallback = Callable[[ControllerState, int, int], None]
"""Told after each event: its state, milliseconds in the queue, milliseconds in the works."""


def ignore_processed_event(state: ControllerState, queued_ms: int, busy_ms: int) -> None:
    pass


class EventQueue:
    """``process`` handles one event and lets no exception out but cancellation."""

    def __init__(
        self,
        process: Process,
        now_ms: Callable[[], int],
        on_event_processed: EventProcessedCallback = ignore_processed_event,
    ) -> None:
        self.state = ControllerState.IDLE
        self._process = process
        self._now_ms = now_ms
        self._on_event_processed = on_event_processed
        self._events: deque[tuple[Event, int]] = deque()
        # Signals in the queue, to keep each only once; with their types, for those without fields
        # are equal as tuples.
        self._waiting: set[tuple[type, Event]] = set()
        self._calls = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """Queues an event; a signal equal to one that waits already is left out."""
        if self._closed:
            if isinstance(event, Call):
                _refuse(event)
            return
        if isinstance(event, Call):
            if self._calls >= MAX_WAITING_CALLS:
                _respond_with_error(
                    event,
                    KafkaError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        "the controller has too many requests waiting; try again",
                    ),
                )
                return
            self._calls += 1
        elif not isinstance(
            event, LeaderAndIsrResponseReceived
        ):  # those hold a message, not hashable
            key = (type(event), event)
            if key in self._waiting:
                return
            self._waiting.add(key)
        self._events.append((event, self._now_ms()))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear_and_put(self, event: Event) -> None:
        """Drops what waits (callers are answered NOT_CONTROLLER), then queues the event."""
        dropped, self._events = self._events, deque()
        self._waiting.clear()
        self._calls = 0
        for each, _ in dropped:
            if isinstance(each, Call):
                _refuse(each)
        self.put(event)

    async def call(
        self, name: str, state: ControllerState, work: Callable[[], Awaitable[object]]
    ) -> object:
        """Runs ``work`` on the queue and returns its result; raises what it raised."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.put(Call(name, state, work, future))
        return await future

    async def run(self) -> None:
        """Consumes until ``ShutDown`` was processed."""
        while not self._closed:
            if not self._events:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
                continue
            event, queued_at = self._events.popleft()
            started = self._now_ms()
            if isinstance(event, Call):
                self._calls -= 1
            elif not isinstance(event, LeaderAndIsrResponseReceived):
                self._waiting.discard((type(event), event))
            self.state = state_of(event)
            try:
                await self._process(event)
            finally:
                self._on_event_processed(self.state, started - queued_at, self._now_ms() - started)
                self.state = ControllerState.IDLE
            if isinstance(event, ShutDown):
                self.close()

    def close(self) -> None:
        """Takes nothing more; whoever waits is answered."""
        self._closed = True
        for each, _ in self._events:
            if isinstance(each, Call):
                _refuse(each)
        self._events.clear()


def _refuse(call: Call) -> None:
    _respond_with_error(
        call, KafkaError(ErrorCode.NOT_CONTROLLER, "the controller has moved to another broker")
    )


def _respond_with_error(call: Call, error: Exception) -> None:
    if not call.future.done():
        call.future.set_exception(error)
