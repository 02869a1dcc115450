"""Worker threads that wait inside of their work, as requests to an object store do.

A copy is one function with many requests: while it waits for one of them, brokers die, leaders
change and topics are deleted. So the function runs in a thread of the machine, which runs only
while the simulated loop stands still, up to its next `wait`. The loop decides when it continues,
if its process is still alive then.
"""

from __future__ import annotations

import asyncio
import contextvars
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ottla.broker.runtime.tasks import WorkerPoolClosed
from tests.simulation.cluster.loop import WORKER_SECONDS, SimulatedLoop

# How often a thread looks whether another one has what it waits for.
LOOK_SECONDS = 0.005
# How often a stop looks whether all work has ended.
CLOSE_SECONDS = 0.05

_running: list[_Work] = []


def wait(seconds: float) -> None:
    """In a worker thread: everything else continues meanwhile."""
    _running[-1].park(seconds)


def is_in_thread() -> bool:
    """Whether the caller is in such a thread, and may `wait`."""
    return bool(_running)


class WaitingEvent:
    """`threading.Event` for threads that wait for each other's requests."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def wait(self) -> None:
        while not self._is_set:
            wait(LOOK_SECONDS)


class _Work:
    """One function in a thread. `proceed` is called by the loop, `park` by the function."""

    def __init__(
        self, loop: SimulatedLoop, function: Callable[[], Any], on_end: Callable[..., None]
    ) -> None:
        self._loop = loop
        self._function = function
        self._on_end = on_end
        self._context = contextvars.copy_context()
        self._turn, self._parked = allocate_lock(), allocate_lock()
        self._turn.acquire()
        self._parked.acquire()
        self._has_begun = self._is_over = False
        self._seconds = 0.0
        self._end: Callable[[], None] | None = None

    def proceed(self) -> None:
        """Lets the thread run up to its next `park`, or to its end."""
        loop = self._loop
        loop.in_worker, loop.work_seconds = True, 0.0
        _running.append(self)
        if self._has_begun:
            self._turn.release()
        else:
            self._has_begun = True
            start_new_thread(self._main, ())
        self._parked.acquire()
        _running.pop()
        loop.in_worker = False
        if not self._is_over:
            loop.call_later(loop.work_seconds + self._seconds, self.proceed)
        elif self._end is not None:
            loop.call_later(loop.work_seconds, self._end)

    def park(self, seconds: float) -> None:
        """Only in the thread."""
        self._seconds = seconds
        self._parked.release()
        self._turn.acquire()

    def _main(self) -> None:
        try:
            self._end = partial(self._on_end, self._context.run(self._function), None)
        except Exception as error:
            self._end = partial(self._on_end, None, error)
        except BaseException:  # the process died in it
            self._end = None
        self._is_over = True
        self._parked.release()


class WaitingWorkerPool:
    """A `WorkerPool` of such threads."""

    loop: SimulatedLoop

    def __init__(self, *, threads: int = 4, queue_limit: int = 64, name: str = "worker") -> None:
        self._free = threads
        self._queue: deque[tuple[Callable[[], Any], asyncio.Future[Any] | None]] = deque()
        self._closed = False
        self._began: dict[asyncio.Future[Any], float] = {}
        self.accepted = 0

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        outcome = self.loop.create_future()
        self._submit(partial(function, *arguments), outcome)
        self._began[outcome] = self.loop.time()
        return await outcome

    def post(self, function: Callable[[], Any]) -> None:
        self._submit(function, None)

    async def close(self, timeout_seconds: float | None = None) -> bool:
        self._closed = True
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.accepted:  # noqa: ASYNC110  # a dead process never ends
                    await asyncio.sleep(CLOSE_SECONDS)
        except TimeoutError:
            return False
        return True

    def oldest_seconds(self) -> float:
        began = next(iter(self._began.values()), None)
        return 0.0 if began is None else self.loop.time() - began

    def _submit(self, function: Callable[[], Any], outcome: asyncio.Future[Any] | None) -> None:
        if self._closed:
            raise WorkerPoolClosed("closed")
        self.accepted += 1
        self._queue.append((function, outcome))
        self._begin()

    def _begin(self) -> None:
        while self._queue and self._free:
            function, outcome = self._queue.popleft()
            if outcome is not None and outcome.cancelled():
                self.accepted -= 1
                self._began.pop(outcome, None)
                continue
            self._free -= 1
            work = _Work(self.loop, function, partial(self._ended, outcome))
            self.loop.call_later(self.loop.random.uniform(0, WORKER_SECONDS), work.proceed)

    def _ended(
        self, outcome: asyncio.Future[Any] | None, result: Any, error: Exception | None
    ) -> None:
        self.accepted -= 1
        self._free += 1
        if outcome is not None:
            self._began.pop(outcome, None)
        if outcome is not None and not outcome.done():
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)
        self._begin()
