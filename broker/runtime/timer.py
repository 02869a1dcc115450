"""Timers on the event loop, driven by the timing wheel.

Everything in the broker that waits for a time to pass uses one `Timer`: a million pending delays
are one entry in the loop, armed for the first of them.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from ottla.broker.runtime.wheel import TimerTask, TimingWheel
from ottla.protocol.steps import Turn

logger = logging.getLogger("ottla.timer")


class DelayQueue(Protocol):
    """Calls back after a delay: a `Timer`, or one that a test moves by hand."""

    def schedule(self, delay_ms: int, callback: Callable[[], object]) -> TimerTask:
        """Call `callback` once, not before `delay_ms` have passed. `cancel()` it in O(1)."""
        ...

    def postpone(self, task: TimerTask, delay_ms: int) -> bool:
        """Have a task of this queue wait for `delay_ms` from now. False, and nothing is changed,
        for one that is not pending or would run earlier than before."""
        ...


class Timer:
    """Runs callbacks on the loop after a delay. Loop thread only.

    A callback never runs before its time and never inside `schedule`, not even for a delay of
    zero. A callback that raises is logged and does not disturb the others.
    """

    def __init__(self, *, tick_ms: int = 1, wheel_size: int = 64) -> None:
        # Times are milliseconds since the timer was made: small integers are quick.
        self._started_at = time.monotonic()
        self._wheel = TimingWheel(tick_ms=tick_ms, wheel_size=wheel_size)
        self._catch_up_ms = tick_ms * wheel_size
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.Handle | None = None
        self._armed_for_ms = -1  # the time waited for; -1: none
        self._due: list[TimerTask] = []  # handed out by the wheel, last one first, not yet run
        self._running = False
        self._closed = False

    def schedule(self, delay_ms: int, callback: Callable[[], object]) -> TimerTask:
        """Call `callback` once, not before `delay_ms` from now (a negative delay counts as 0)."""
        now_ms = int((time.monotonic() - self._started_at) * 1000.0)
        # One more for the part of the current millisecond that is gone: never early.
        expiration_ms = now_ms + 1 + (delay_ms if delay_ms > 0 else 0)
        task = TimerTask(expiration_ms, callback)
        wheel = self._wheel
        if now_ms - wheel.now_ms > self._catch_up_ms:
            wheel.catch_up(now_ms)
        if not wheel.insert(task):
            # Only with ticks longer than 1 ms; the tick after the present one is soon enough.
            task.expiration_ms = expiration_ms = wheel.now_ms + wheel.tick_ms
            wheel.insert(task)
        if (self._armed_for_ms < 0 or expiration_ms < self._armed_for_ms) and not self._running:
            self._arm(expiration_ms)
        return task

    def postpone(self, task: TimerTask, delay_ms: int) -> bool:
        """See `DelayQueue.postpone`. A quarter of what `cancel` and `schedule` cost."""
        now_ms = int((time.monotonic() - self._started_at) * 1000.0)
        return task.postpone(now_ms + 1 + (delay_ms if delay_ms > 0 else 0))

    def close(self) -> None:
        """Nothing that is pending runs any more."""
        self._closed = True
        self._due.clear()
        self._disarm()

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_for_ms = -1

    def _arm(self, next_ms: int | None) -> None:
        """Wake up at this time, which is not the one waited for."""
        if self._closed:
            return
        self._disarm()
        if next_ms is None:
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        delay_ms = next_ms - (time.monotonic() - self._started_at) * 1000.0
        self._armed_for_ms = next_ms
        # Whole milliseconds, rounded up: the loop's clock has no finer ones, and a wake-up that
        # comes too early would only be repeated.
        seconds = (int(delay_ms) + 1) / 1000.0 if delay_ms > 0 else 0.0
        self._handle = self._loop.call_later(seconds, self._wake_up)

    def _wake_up(self) -> None:
        self._handle = None
        self._armed_for_ms = -1
        newly_due = self._wheel.advance(int((time.monotonic() - self._started_at) * 1000.0))
        if newly_due:
            newly_due.reverse()
            self._due[:0] = newly_due
        self._run_due()

    def _run_due(self) -> None:
        due = self._due
        self._running = True
        turn = Turn()
        while due:
            task = due.pop()
            callback, task.callback = task.callback, None
            if callback is None:
                continue  # cancelled after it was handed out
            try:
                callback()
            except Exception:
                logger.exception("a timer's callback failed: %r", callback)
            if turn.is_over:
                break
        self._running = False
        if not due:
            self._arm(self._wheel.next_expiration_ms())
        elif not self._closed:
            # Other tasks of the loop run, then the rest; nothing can be due earlier than that.
            self._armed_for_ms = 0
            self._handle = asyncio.get_running_loop().call_soon(self._wake_up)
