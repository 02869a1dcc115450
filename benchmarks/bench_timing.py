"""The timing wheel and the purgatory: cost of each step and memory of a million pending timers.

Beside them, the same steps on the event loop's own timers, which are what most asyncio programs
would use. A figure is the best of several rounds; delays are those of a busy broker: fetch waits of
up to 500 ms, request time-outs of up to 30 s, sessions of up to 45 s.

    python -m benchmarks.bench_timing
"""

import argparse
import asyncio
import gc
import random
import resource
from collections.abc import Callable
from pathlib import Path
from time import process_time as perf_counter
from typing import NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.purgatory.purgatory import Purgatory
from ottla.broker.runtime.timer import Timer
from ottla.broker.runtime.wheel import TimerTask, TimingWheel
from tests.doubles.manual_timer import ManualTimer

PENDING = 1_000_000
STEPS = 200_000
ROUNDS = 3


class Figure(NamedTuple):
    """One line of the table."""

    name: str
    value: float
    unit: str


def delays(count: int) -> list[int]:
    generator = random.Random(1)
    return [
        generator.choice((500, 30_000, 45_000)) - generator.randrange(400) for _ in range(count)
    ]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def nothing() -> None:
    pass


def microseconds(seconds: float, count: int) -> float:
    return seconds / count * 1e6


def wheel_figures() -> list[Figure]:
    """Insert, cancel and fire with a million others pending, and what those take."""
    wheel = TimingWheel()
    gc.collect()
    before = resident_bytes()
    started_at = perf_counter()
    pending = [TimerTask(delay, nothing) for delay in delays(PENDING)]
    for task in pending:
        wheel.insert(task)
    filled = perf_counter() - started_at
    memory = resident_bytes() - before
    insert = cancel = float("inf")
    more = delays(STEPS)
    for _ in range(ROUNDS):
        started_at = perf_counter()
        tasks = []
        for delay in more:
            task = TimerTask(delay, nothing)
            wheel.insert(task)
            tasks.append(task)
        insert = min(insert, perf_counter() - started_at)
        random.Random(2).shuffle(tasks)
        started_at = perf_counter()
        for task in tasks:
            task.cancel()
        cancel = min(cancel, perf_counter() - started_at)
    del tasks
    started_at = perf_counter()
    fired = 0
    for now_ms in range(0, 46_000, 5):
        fired += len(wheel.advance(now_ms))
    fire = perf_counter() - started_at
    assert fired == PENDING
    return [
        Figure("wheel: insert, 1,000,000 pending", microseconds(insert, STEPS), "us"),
        Figure("wheel: cancel, 1,000,000 pending", microseconds(cancel, STEPS), "us"),
        Figure(
            "wheel: fire, all falls through the levels included", microseconds(fire, fired), "us"
        ),
        Figure("wheel: memory of 1,000,000 pending", memory / 1e6, "MB"),
        Figure("wheel: fill with 1,000,000", filled, "s"),
    ]


def best(rounds: int, run: Callable[[], float]) -> float:
    return min(run() for _ in range(rounds))


async def timer_figures(name: str) -> list[Figure]:
    """Schedule and cancel on the loop: what a request that waits and is done in time costs."""
    loop = asyncio.get_running_loop()
    timer = Timer()
    some = delays(STEPS)

    def through_the_wheel() -> float:
        started_at = perf_counter()
        for delay in some:
            timer.schedule(delay, nothing).cancel()
        return perf_counter() - started_at

    def through_the_loop() -> float:
        started_at = perf_counter()
        for delay in some:
            loop.call_later(delay / 1000, nothing).cancel()
        return perf_counter() - started_at

    ours, theirs = best(ROUNDS, through_the_wheel), best(ROUNDS, through_the_loop)
    return [
        Figure("timer: schedule and cancel", microseconds(ours, STEPS), "us"),
        Figure(f"{name}'s call_later and cancel", microseconds(theirs, STEPS), "us"),
    ]


class Waiting(DelayedOperation):
    """Completes on a flag."""

    __slots__ = ("ready",)

    def __init__(self) -> None:
        super().__init__(30_000)
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        pass


def purgatory_figures() -> list[Figure]:
    """A produce with acks=all: waits under one key and is completed by it."""
    purgatory: Purgatory[Waiting] = Purgatory("bench", ManualTimer())
    keys = [("topic", number) for number in range(100)]

    def run() -> float:
        started_at = perf_counter()
        for number in range(STEPS):
            key = keys[number % 100]
            operation = Waiting()
            purgatory.try_complete_else_watch(operation, (key,))
            operation.ready = True
            purgatory.check_and_complete(key)
        return perf_counter() - started_at

    return [Figure("purgatory: wait and complete", microseconds(best(ROUNDS, run), STEPS), "us")]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    figures = wheel_figures()
    gc.collect()
    figures += asyncio.run(timer_figures("asyncio"))
    figures += uvloop.run(timer_figures("uvloop"))
    figures += purgatory_figures()
    table = Table("what", "best", "")
    for figure in figures:
        table.add_row(figure.name, f"{figure.value:,.2f}", figure.unit)
    Console().print(table)


if __name__ == "__main__":
    main()
