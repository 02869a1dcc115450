"""The event queue of the controller: one queue, one consumer, one order.

Mirrors Kafka's `ControllerEventManager`. Watches, timers, responses and requests only `put`
events; `run` processes one event after the other. So the controller context needs no locks,
although the processing of an event awaits the store many times.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from ottla.controller.events.events import (
    BrokerChange,
    Call,
    ControllerState,
    Event,
    Expire,
    LeaderAndIsrResponseReceived,
    ShutDown,
    state_of,
)
from ottla.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger("ottla.controller")

S = TypeVar("S")

MAX_QUEUED_CALLS = 10_000
"""The bound of queued calls. Each is from a connection that waits for its response, and there are
usually fewer connections; a call above the bound fails with REQUEST_TIMED_OUT."""

Process = Callable[[Event], Awaitable[None]]
EventProcessedCallback = Callable[[ControllerState, int, int], None]
"""Called after each event with its state, and its queue time and processing time in ms."""


def ignore_processed_event(state: ControllerState, queued_ms: int, busy_ms: int) -> None:
    """The default: records no times."""


class EventQueue:
    """`process` processes an event and raises nothing but cancellation."""

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
        # The signals in the queue, as each is queued only once; with their types, because those
        # without fields are equal as tuples.
        self._queued_signals: set[tuple[type, Event]] = set()
        self._calls = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """Queue an event; a signal equal to a queued one is dropped."""
        if self._closed:
            if isinstance(event, Call):
                _refuse(event)
            return
        if isinstance(event, Call):
            if self._calls >= MAX_QUEUED_CALLS:
                _respond_with_error(
                    event,
                    KafkaError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        "Too many requests are queued on the controller.",
                    ),
                )
                return
            self._calls += 1
        elif not isinstance(
            event, LeaderAndIsrResponseReceived
        ):  # those hold a message, not hashable
            key = (type(event), event)
            if key in self._queued_signals:
                return
            self._queued_signals.add(key)
        entry = (event, self._now_ms())
        if isinstance(event, BrokerChange) and (Expire, Expire()) not in self._queued_signals:
            # Partitions of a failed broker have no leader until it is handled. It reads the tree,
            # so its place among other events does not matter to what it finds. Only a controller
            # whose session has expired resigns first: it would find its own broker dead.
            self._events.appendleft(entry)
        else:
            self._events.append(entry)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear_and_put(self, event: Event) -> None:
        """Drop the queued events (calls fail with NOT_CONTROLLER), then queue `event`."""
        dropped, self._events = self._events, deque()
        self._queued_signals.clear()
        self._calls = 0
        for each, _ in dropped:
            if isinstance(each, Call):
                _refuse(each)
        self.put(event)

    def take(self, kind: type[S], most: int) -> list[S]:
        """Remove up to `most` signals of a kind from the queue, in order, to be handled as one."""
        taken: list[S] = []
        kept: deque[tuple[Event, int]] = deque()
        for event, queued_at in self._events:
            if isinstance(event, kind) and len(taken) < most:
                taken.append(event)
                self._queued_signals.discard((kind, cast("Event", event)))
            else:
                kept.append((event, queued_at))
        self._events = kept
        return taken

    async def call(
        self, name: str, state: ControllerState, work: Callable[[], Awaitable[object]]
    ) -> object:
        """Run `work` on the queue; return its result or raise its exception."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.put(Call(name, state, work, future))
        return await future

    async def run(self) -> None:
        """Process events until `ShutDown` was processed."""
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
                self._queued_signals.discard((type(event), event))
            self.state = state_of(event)
            try:
                await self._process(event)
            finally:
                self._on_event_processed(self.state, started - queued_at, self._now_ms() - started)
                self.state = ControllerState.IDLE
            if isinstance(event, ShutDown):
                self.close()

    def close(self) -> None:
        """Close the queue; queued and later calls fail with NOT_CONTROLLER."""
        self._closed = True
        for each, _ in self._events:
            if isinstance(each, Call):
                _refuse(each)
        self._events.clear()


def _refuse(call: Call) -> None:
    _respond_with_error(
        call, KafkaError(ErrorCode.NOT_CONTROLLER, "The controller has moved to another broker.")
    )


def _respond_with_error(call: Call, error: Exception) -> None:
    if not call.future.done():
        call.future.set_exception(error)
