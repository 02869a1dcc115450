"""A runtime for the controller with a clock that moves only when a test moves it."""

import asyncio
import heapq
from collections.abc import Callable, Coroutine


class ManualTimer:
    """Cancelled timers stay in the heap and are skipped."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualRuntime:
    """Time starts at one million; ``advance`` runs what has become due, in order."""

    def __init__(self) -> None:
        self.time_ms = 1_000_000
        self.tasks: set[asyncio.Task[None]] = set()
        self.failures: list[BaseException] = []
        self._timers: list[tuple[int, int, ManualTimer]] = []
        self._count = 0

    def now_ms(self) -> int:
        return self.time_ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(callback)
        self._count += 1
        heapq.heappush(self._timers, (self.time_ms + delay_ms, self._count, timer))
        return timer

    def spawn(
        self, coroutine: Coroutine[object, object, None], *, name: str
    ) -> "asyncio.Task[None]":
        task = asyncio.Task(coroutine, name=name, loop=asyncio.get_running_loop())
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            assert error is not None
            self.failures.append(error)

    def advance(self, delay_ms: int) -> None:
        until = self.time_ms + delay_ms
        while self._timers and self._timers[0][0] <= until:
            due, _, timer = heapq.heappop(self._timers)
            self.time_ms = max(self.time_ms, due)
            if not timer.cancelled:
                timer.callback()
        self.time_ms = until

    def next_due_in_ms(self) -> int | None:
        """Time until the next timer; None when there is none."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] - self.time_ms if self._timers else None

    async def settle(self, turns: int = 200) -> None:
        """Lets the loop run until everything that can go on without time has."""
        for _ in range(turns):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
