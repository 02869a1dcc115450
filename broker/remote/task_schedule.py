"""Runs a job for each of many partitions again and again, a bounded number at the same time.

As the scheduled thread pools of Kafka's RemoteLogManager: the next run of a partition begins an
interval after the end of the last one. Loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from ottla.broker.runtime.tasks import spawn, stop

Key = TypeVar("Key", bound=Hashable)


class TaskSchedule(Generic[Key]):
    """The keys are partitions. Memory: one entry for each, and those that were removed since."""

    def __init__(self, name: str, job: Callable[[Key], Awaitable[float]], concurrency: int) -> None:
        """`job` returns after how many seconds the key runs again. It does not raise."""
        self._name = name
        self._job = job
        self._concurrency = concurrency
        self._due: list[tuple[float, int, Key]] = []
        # The number of the entry of a key that counts; others of it in `_due` are outdated.
        self._entries: dict[Key, int] = {}
        self._numbers = itertools.count()
        self._running: dict[Key, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        self._tasks.append(spawn(self._run(), name=self._name))

    def add(self, key: Key, delay_seconds: float = 0.0) -> None:
        """Runs the job for `key`, first after `delay_seconds`; instead of the run that was due.

        If it runs now, it runs again after that.
        """
        number = self._entries[key] = next(self._numbers)
        due = asyncio.get_running_loop().time() + delay_seconds
        heapq.heappush(self._due, (due, number, key))
        self._changed.set()

    def remove(self, key: Key) -> None:
        """No more runs for `key`; one that runs now continues."""
        self._entries.pop(key, None)

    @property
    def idle_ratio(self) -> float:
        """The part of the runs that may be in progress at the same time and are not."""
        return 1 - len(self._running) / self._concurrency

    def is_running(self, key: Key) -> bool:
        return key in self._running

    async def wait_for(self, key: Key) -> None:
        """Returns when no run of `key` is in progress."""
        while (running := self._running.get(key)) is not None:
            await running.wait()

    async def stop(self, timeout_seconds: float) -> None:
        """Starts no more runs, waits for those in progress, and cancels them after the timeout."""
        self._stopping = True
        self._changed.set()
        running = [task for task in self._tasks if not task.done()]
        if running and timeout_seconds > 0:
            await asyncio.wait(running, timeout=timeout_seconds)
        await stop(*self._tasks)

    async def _run(self) -> None:
        """Takes what is due; begins at most `concurrency` runs at the same time."""
        loop = asyncio.get_running_loop()
        while not self._stopping:
            self._changed.clear()
            delay: float | None = None
            while self._due and len(self._running) < self._concurrency:
                due, number, key = self._due[0]
                if self._entries.get(key) != number or key in self._running:
                    # Removed, or added again. What runs now is added again at its end.
                    heapq.heappop(self._due)
                    continue
                delay = due - loop.time()
                if delay > 0:
                    break
                heapq.heappop(self._due)
                self._running[key] = asyncio.Event()
                self._tasks = [task for task in self._tasks if not task.done()]
                self._tasks.append(spawn(self._run_one(key, number), name=self._name))
                delay = None
            # Runs that end set the event, too.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._changed.wait()

    async def _run_one(self, key: Key, number: int) -> None:
        delay = 0.0
        try:
            delay = await self._job(key)
        finally:
            self._running.pop(key).set()
            self._changed.set()
        if self._stopping or key not in self._entries:
            return
        # Added again meanwhile: at once, as what was due then was left out.
        self.add(key, delay if self._entries[key] == number else 0.0)
