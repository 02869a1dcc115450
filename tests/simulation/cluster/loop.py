"""An event loop with virtual time, on which several simulated processes run.

Nothing waits: when no callback is ready, the time jumps to the next timer. Each simulated process
has a context variable that its tasks and callbacks inherit; after `Process.kill` none of them runs
again, as after `kill -9`. Sockets, worker threads and connections are simulated (network.py).

Callbacks of one process keep their order, as asyncio promises. How long they take,
and so how late timers are, and when other processes come first is up to the seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, NamedTuple, TextIO

# A reading of the clock takes this long on average, so that work that watches the clock is sliced.
READING_SECONDS = 2e-6
FIRST_SECOND = 1_000.0
# The longest seeds take 1,000 s; a trouble may wait for what never comes.
LAST_SECOND = FIRST_SECOND + 3_600
# At this share of the readings, the process did not get a processor for a moment.
PREEMPTED_SHARE = 1 / 2_000
PREEMPTED_SECONDS = 0.02

# A callback takes so long on average: some machines are slow, and then what others send arrives
# between two slices of work.
CALLBACK_SECONDS = (0.0, 0.0, 3e-5, 2e-4)
# At this share of its callbacks a process has to wait, for up to so long, while others continue.
DESCHEDULED_SHARE = 1 / 3_000
DESCHEDULED_SECONDS = 0.01

# Work handed to a worker thread is done after up to this long.
WORKER_SECONDS = 0.02

# Cancelled timers are removed when there are more of them, and more than of others.
MAX_CANCELLED = 100


# A callback that takes more steps holds the loop too long. A step is a call of the file system or a
# reading of the clock, of which code that slices its work takes one for each part. The most that
# a run was seen to take is a fifth of it.
STEP_BUDGET = 10_000


class LongestTurn(NamedTuple):
    """The callback that took most steps before it gave the loop back."""

    steps: int
    name: str


class Process:
    """One simulated process: what runs in its context stops for good when it is killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        #: How many hold it.
        self.pauses = 0
        #: While clients wait for it: neither starting nor stopping.
        self.is_serving = False
        self._held: list[Callable[[], None]] = []
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)
        self._graveyard: list[object] = []

    def kill(self) -> None:
        self.dead = True
        self._held.clear()

    @property
    def paused(self) -> bool:
        """Whether anything holds it."""
        return self.pauses > 0

    def pause(self) -> None:
        """As SIGSTOP: what becomes due is held until `resume`, once for each `pause`."""
        self.pauses += 1

    def resume(self) -> None:
        """As SIGCONT."""
        self.pauses -= 1
        if self.paused:
            return
        held, self._held = self._held, []
        for run in held:
            run()

    def hold(self, run: Callable[[], None]) -> None:
        """Until `resume`."""
        self._held.append(run)

    def keep(self, thing: object) -> None:
        """Until the simulation ends: collecting it earlier would run its `finally` clauses."""
        self._graveyard.append(thing)


_Task = asyncio.Task

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    return _process.get()


class Step(asyncio.TimerHandle):
    """A callback that is due, now or at `when()`. Without the checks of asyncio's own handles."""

    __slots__ = ("arguments", "callback", "context", "is_cancelled", "loop", "time")

    def __init__(
        self,
        loop: SimulatedLoop,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: contextvars.Context | None,
        time: float,
    ) -> None:
        self.loop = loop
        self.callback = callback
        self.arguments = arguments
        self.context = contextvars.copy_context() if context is None else context
        self.time = time
        self.is_cancelled = False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.callback, self.arguments = _nothing, ()
            self.loop.cancelled_one()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.time


def _nothing() -> None: ...


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the head of the module. `network` is set by the world before anything runs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(f"loop {seed}")
        self._draw = self.random.random  # called very often
        self._order = Random(f"order {seed}")
        self._draw_order = self._order.random
        #: The callbacks of brokers take so long on average.
        self.callback_seconds = self._order.choice(CALLBACK_SECONDS)
        self.now = FIRST_SECOND
        self.network: Any = None
        self._due: deque[Step] = deque()
        # Those of one moment in the order in which they were set.
        self._timers: list[tuple[float, int, Step]] = []
        self._order_of_timers = 0
        self._cancelled = 0
        #: Of no process.
        self._outside = contextvars.Context()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self.set_task_factory(self._make_task)
        self.tasks_of_dead: list[asyncio.Task[Any]] = []
        #: Whether a worker thread runs, and for how many seconds the disk makes it wait.
        self.in_worker = False
        self.work_seconds = 0.0
        #: What was run and read, in order: equal in equal runs. `log` gets a line for each step.
        self.checksum = 0
        self.log: TextIO | None = None
        self.steps = 0
        self.longest_turn = LongestTurn(0, "")
        #: The callbacks of serving processes that exceeded the budget.
        self.too_long: list[str] = []

    # Time

    def time(self) -> float:
        return self.now

    def tick(self) -> float:
        """A reading of the clock by the code under test."""
        drawn = self._draw()
        self.now += READING_SECONDS * drawn * 2
        if drawn < PREEMPTED_SHARE:
            self.now += PREEMPTED_SECONDS * self.random.random()
        self.steps += 1
        if self.log is not None:
            self._write_reading(self.log)
        return self.now

    def _run_once(self) -> None:
        """Turns until the loop stops: what is ready, or else what is due next."""
        ready, timers, run = self._due, self._timers, self._run_step
        next_step, make_ready = ready.popleft, ready.append
        while not self._stopping:  # type: ignore[attr-defined]
            if not ready:
                while timers and timers[0][2].is_cancelled:
                    heappop(timers)
                if not timers:
                    raise RuntimeError("nothing is left to happen: the simulation would wait")
                self.now = max(self.now, timers[0][0])
            now = self.now
            if now > LAST_SECOND:
                raise RuntimeError("the simulation does not end")
            while timers and timers[0][0] <= now:
                make_ready(heappop(timers)[2])
            for _ in range(len(ready)):
                run(next_step())

    def _run_step(self, step: Step) -> None:
        """Runs a callback of a process and keeps account of it."""
        if step.is_cancelled:
            return
        process = step.context.get(_process)
        if process is not None:
            if process.dead:
                return
            if process.pauses:
                process.hold(partial(self._due.append, step))
                return
        callback = step.callback
        owner = getattr(callback, "__self__", None)
        name = owner.get_name() if type(owner) is _Task else _name_of(callback)
        # Strings have the same hash in every run (__main__.py); this is cheaper than to write them.
        self.checksum = hash((self.checksum, self.now, name))
        if self.log is not None:
            self.log.write(f"{self.now!r} {_long_name_of(callback)}\n")
        before = self.steps
        try:
            step.context.run(callback, *step.arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": "exception in a callback", "exception": error})
        if process is None or not process.is_serving:
            return
        drawn = self._draw_order()
        self.now += self.callback_seconds * 2 * drawn
        if drawn < DESCHEDULED_SHARE and not process.pauses:
            process.pause()
            seconds = self._order.uniform(0, DESCHEDULED_SECONDS)
            self.call_later(seconds, process.resume, context=self._outside)
        steps = self.steps - before
        if steps > self.longest_turn.steps:
            name = _long_name_of(callback)
            self.longest_turn = LongestTurn(steps, name)
            if steps > STEP_BUDGET:
                self.too_long.append(f"{process.name}: {name} took {steps} steps in one turn")

    def _write_reading(self, log: TextIO) -> None:
        frames = []
        frame = sys._getframe(2)
        while frame is not None and len(frames) < 5:
            frames.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            frame = frame.f_back  # type: ignore[assignment]
        log.write(f"  {self.now!r} {' < '.join(frames)}\n")

    # Callbacks of dead processes do not run

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Step:
        step = Step(self, callback, args, context, self.now)
        self._due.append(step)
        return step

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Step:
        step = Step(self, callback, args, context, when)
        self._order_of_timers = order = self._order_of_timers + 1
        heappush(self._timers, (when, order, step))
        return step

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Step:
        when = self.now + delay
        step = Step(self, callback, args, context, when)
        self._order_of_timers = order = self._order_of_timers + 1
        heappush(self._timers, (when, order, step))
        return step

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Step:
        return self.call_soon(callback, *args, context=context)

    def cancelled_one(self) -> None:
        """Most timers are deadlines that are cancelled: they must not pile up."""
        self._cancelled += 1
        if self._cancelled > MAX_CANCELLED and self._cancelled * 2 > len(self._timers):
            self._cancelled = 0
            self._timers[:] = [each for each in self._timers if not each[2].is_cancelled]
            heapify(self._timers)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, context: Any = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context)
        process = (context or contextvars.copy_context()).get(_process)
        if process is not None:
            process.keep(task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    # Worker threads

    def run_in_executor(self, executor: Any, function: Any, *args: Any) -> Any:
        """The work is done in one piece, some time later, if the process still lives."""
        outcome = self.create_future()

        def work() -> None:
            before = self.steps
            self.in_worker, self.work_seconds = True, 0.0
            try:
                finish = partial(outcome.set_result, function(*args))
            except Exception as error:
                finish = partial(outcome.set_exception, error)
            finally:
                self.in_worker = False
                self.steps = before  # of a thread, which does not hold the loop
            if self.work_seconds:
                self.call_later(self.work_seconds, end, finish)
            else:
                end(finish)

        def end(finish: Callable[[], None]) -> None:
            if not outcome.done():
                finish()

        self.call_later(self.random.uniform(0, WORKER_SECONDS), work)
        return outcome

    # Sockets

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        self._readers[fd] = callback
        self.network.readable(fd)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:
        self._writers[fd] = callback
        self.network.writable(fd)

    def remove_writer(self, fd: Any) -> bool:
        return self._writers.pop(fd, None) is not None

    def reader(self, fd: int) -> Callable[[], None] | None:
        return self._readers.get(fd)

    def writer(self, fd: int) -> Callable[[], None] | None:
        return self._writers.get(fd)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[Any, Any]:
        return await self.network.connect(protocol_factory, host, port)


def _name_of(callback: Callable[..., object]) -> str:
    """The same in every run: no addresses."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    return getattr(callback, "__qualname__", None) or type(callback).__name__


def _long_name_of(callback: Callable[..., object]) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine: Any = owner.get_coro()
        return f"{coroutine.__qualname__} in {owner.get_name()}"
    return _name_of(callback)
