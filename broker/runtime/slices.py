"""Long work in slices, so that it holds the event loop for some milliseconds only.

The work is a generator that yields between steps of about 0.1 ms. Slices are counted in steps, not
in time, so that a run under a seed repeats them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from ottla.protocol.steps import run_at_once

T = TypeVar("T")
Item = TypeVar("Item")

#: 2 ms: short against the 50 ms that count as a stall, long against a turn of the loop.
STEPS_PER_SLICE = 20


async def run_in_slices(steps: Generator[None, None, T]) -> T:
    """The result of `steps`; other tasks run after every STEPS_PER_SLICE of them."""
    try:
        while True:
            for _ in range(STEPS_PER_SLICE):
                next(steps)
            await asyncio.sleep(0)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


def in_parts(
    items: Sequence[Item], size: int, act: Callable[[Sequence[Item]], object]
) -> Generator[None, None, None]:
    """`act` on the items, on `size` of them in a step."""
    for start in range(0, len(items), size):
        act(items[start : start + size])
        yield


def in_larger_steps(steps: Generator[None, None, T], size: int) -> Generator[None, None, T]:
    """`steps` of which `size` are one."""
    try:
        while True:
            for _ in range(size):
                next(steps)
            yield
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


class SlicedJobs:
    """Jobs in slices, one after the other, for components that know the loop as `call_soon` only.

    The first slice of a job runs at once when no other job is in progress, so that a small one is
    done when `start` returns.
    """

    def __init__(
        self, defer: Callable[[Callable[[], None]], None], *, takes_turns: bool = False
    ) -> None:
        """`defer` runs a callback in a later turn of the loop. With `takes_turns` the jobs have a
        slice each in turn, so that a short one does not wait for the end of a long one."""
        self._defer = defer
        self._takes_turns = takes_turns
        self._jobs: deque[Generator[None, None, None]] = deque()

    def start(self, steps: Generator[None, None, None]) -> None:
        """Runs a job. An error ends it; one of the first slice is raised here."""
        self._jobs.append(steps)
        if len(self._jobs) == 1:
            self._run_slice()

    def finish(self) -> None:
        """Runs what is left of all jobs, without a pause."""
        while self._jobs:
            run_at_once(self._jobs.popleft())

    def stop(self) -> None:
        """Forgets all jobs."""
        for job in self._jobs:
            job.close()
        self._jobs.clear()

    def _run_slice(self) -> None:
        jobs = self._jobs
        try:
            for _ in range(STEPS_PER_SLICE):
                if not jobs:
                    return
                job = jobs[0]
                try:
                    next(job)
                except StopIteration:
                    jobs.popleft()
                except BaseException:
                    jobs.popleft()
                    raise
        finally:
            if jobs:
                if self._takes_turns:
                    jobs.rotate(-1)
                self._defer(self._run_slice)
