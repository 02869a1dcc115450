from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from ottla.broker.runtime.slices import STEPS_PER_SLICE, run_at_once, run_in_slices
from ottla.broker.runtime.tasks import spawn


def count(number: int, done: list[int]) -> Generator[None, None, str]:
    for each in range(number):
        done.append(each)
        yield
    return "result"


def test_at_once() -> None:
    done: list[int] = []
    assert run_at_once(count(100, done)) == "result"
    assert len(done) == 100


async def test_others_run_after_each_slice() -> None:
    done: list[int] = []
    task = spawn(run_in_slices(count(STEPS_PER_SLICE * 3, done)), name="work")
    seen = []
    while not task.done():
        await asyncio.sleep(0)
        seen.append(len(done))
    assert task.result() == "result"
    assert seen[:3] == [STEPS_PER_SLICE, STEPS_PER_SLICE * 2, STEPS_PER_SLICE * 3]


async def test_short_work_takes_no_turn() -> None:
    coroutine = run_in_slices(count(STEPS_PER_SLICE - 1, []))
    with pytest.raises(StopIteration):
        coroutine.send(None)


async def test_an_error_is_passed_on() -> None:
    def fails() -> Generator[None, None, None]:
        yield
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await run_in_slices(fails())


async def test_cancelled_work_is_closed() -> None:
    closed: list[bool] = []

    def endless() -> Generator[None, None, None]:
        try:
            while True:
                yield
        finally:
            closed.append(True)

    task = spawn(run_in_slices(endless()), name="work")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == [True]
