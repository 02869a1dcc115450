"""Long work in slices, so that it holds the event loop for some milliseconds only.

The work is a generator that yields between steps of about 0.1 ms. Slices are counted in steps, not
in time, so that a run under a seed repeats them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

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


def run_at_once(steps: Generator[None, None, T]) -> T:
    """The result of `steps`, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
