"""Long computations that share the event loop: the one way to do so in Ottla.

A long computation is a generator, `Steps`, that yields wherever it may pause: between two items
that are complete, so that whatever runs meanwhile sees nothing half done. It neither counts nor
reads a clock. A step takes a few microseconds, at most a quarter of a millisecond.

The caller chooses how to run it:

- `run(steps)`: the first turn now, so that short work is done when the call returns; the rest, if
  there is any, is a coroutine.
- `await run_in_turns(steps)`: the same, for a caller that is a coroutine anyway.
- `TurnQueue.start(steps)`: for components that know the loop only as `call_soon`.
- `run_at_once(steps)`: without a pause, where no loop has to be shared (tools, start-up).
- `async for item in over(items)` and `await turn.share()`: for coroutines that await between items.

A turn ends by the clock, after `PACE.turn_seconds`. Nothing here depends on asyncio: a pause is a
bare `yield` to the loop, as in `asyncio.sleep(0)`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")

Steps = Generator[None, None, T]


class Pace:
    """How long a turn lasts, in seconds of `clock`, which is read after every `steps_per_reading`.

    The simulator replaces the values of `PACE`, so that a seed decides where work pauses.
    """

    __slots__ = ("clock", "steps_per_reading", "turn_seconds")

    def __init__(self) -> None:
        self.clock: Callable[[], float] = monotonic
        # Short against the 50 ms that count as a stall, long against an iteration of the loop.
        self.turn_seconds = 0.002
        # A reading costs as much as a short step; eight of the longest steps last one turn.
        self.steps_per_reading = 8


PACE = Pace()


class _Pause:
    """Awaited: one iteration of the loop passes."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


_PAUSE = _Pause()


class Turn:
    """The turn of a coroutine that loops: `await turn.share()` after each item.

    One turn serves nested loops as well.
    """

    __slots__ = ("_ends_at", "_left")

    def __init__(self) -> None:
        self._left = PACE.steps_per_reading
        self._ends_at = PACE.clock() + PACE.turn_seconds

    @property
    def is_over(self) -> bool:
        """Whether it is time to pause. Counts as one step."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = PACE.steps_per_reading
        return PACE.clock() >= self._ends_at

    async def share(self) -> None:
        """Let other tasks run if the turn is over; then a new one begins."""
        if self.is_over:
            await self.pause()

    async def pause(self) -> None:
        """Let other tasks run now; then a new turn begins."""
        await _PAUSE
        self._left = PACE.steps_per_reading
        self._ends_at = PACE.clock() + PACE.turn_seconds


async def over(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield the items; other tasks run whenever a turn is over."""
    turn = Turn()
    for item in items:
        yield item
        if turn.is_over:
            await turn.pause()


def run_at_once(steps: Steps[T]) -> T:
    """Return the result of `steps`, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def run(steps: Steps[T]) -> T | Coroutine[Any, Any, T]:
    """Run the first turn now. Return the result, or the coroutine that runs the rest in turns.

    An error in the first turn is raised here. The coroutine must be awaited.
    """
    try:
        next(steps)  # the end, of most requests: before anything is made for a turn
        turn = Turn()
        while not turn.is_over:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    return _run_rest(steps)


async def run_in_turns(steps: Steps[T]) -> T:
    """Return the result of `steps`; other tasks run whenever a turn is over."""
    turn = Turn()
    try:
        while True:
            next(steps)
            if turn.is_over:
                await turn.pause()
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


async def _run_rest(steps: Steps[T]) -> T:
    try:
        await _PAUSE
    except BaseException:
        steps.close()
        raise
    return await run_in_turns(steps)


class TurnQueue:
    """Jobs one after the other, in turns, for components that know the loop only as `call_soon`.

    The first turn of a job runs at once when no other job is in progress, so that a short one is
    done when `start` returns.
    """

    def __init__(
        self, defer: Callable[[Callable[[], None]], None], *, alternates: bool = False
    ) -> None:
        """`defer` runs a callback in a later iteration of the loop. With `alternates` the jobs
        have a turn each, so that a short one does not wait for the end of a long one."""
        self._defer = defer
        self._alternates = alternates
        self._jobs: deque[Steps[None]] = deque()

    def start(self, steps: Steps[None]) -> None:
        """Run a job. An error ends it; one in its first turn may be raised here."""
        self._jobs.append(steps)
        if len(self._jobs) == 1:
            self._run_turn()

    def finish(self) -> None:
        """Run the rest of all jobs, without a pause."""
        while self._jobs:
            run_at_once(self._jobs.popleft())

    def stop(self) -> None:
        """Drop all jobs."""
        for job in self._jobs:
            job.close()
        self._jobs.clear()

    def _run_turn(self) -> None:
        jobs, turn = self._jobs, Turn()
        try:
            while jobs:
                try:
                    next(jobs[0])
                except StopIteration:
                    jobs.popleft()
                except BaseException:
                    jobs.popleft()
                    raise
                if turn.is_over:
                    break
        finally:
            if jobs:
                if self._alternates:
                    jobs.rotate(-1)
                self._defer(self._run_turn)
