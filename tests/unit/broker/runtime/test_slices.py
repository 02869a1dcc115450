from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

import pytest

from ottla.broker.runtime.slices import STEPS_PER_SLICE, SlicedJobs, run_in_slices
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.steps import run_at_once


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


def ends(number: int, done: list[int]) -> Generator[None, None, None]:
    yield from count(number, done)


def test_a_short_job_is_done_at_once() -> None:
    done: list[int] = []
    deferred: list[Callable[[], None]] = []
    SlicedJobs(deferred.append).start(ends(3, done))
    assert (done, deferred) == ([0, 1, 2], [])


def test_jobs_run_one_after_the_other_in_slices() -> None:
    first: list[int] = []
    second: list[int] = []
    deferred: list[Callable[[], None]] = []
    jobs = SlicedJobs(deferred.append)
    jobs.start(ends(STEPS_PER_SLICE + 5, first))
    jobs.start(ends(STEPS_PER_SLICE, second))
    assert (len(first), second, len(deferred)) == (STEPS_PER_SLICE, [], 1)
    deferred.pop()()
    assert len(first) == STEPS_PER_SLICE + 5
    assert 0 < len(second) < STEPS_PER_SLICE
    deferred.pop()()
    assert (len(second), deferred) == (STEPS_PER_SLICE, [])


def test_the_error_of_a_job_is_raised_and_others_go_on() -> None:
    def fails(steps: int) -> Generator[None, None, None]:
        for _ in range(steps):
            yield
        raise ValueError("no")

    done: list[int] = []
    deferred: list[Callable[[], None]] = []
    jobs = SlicedJobs(deferred.append)
    with pytest.raises(ValueError, match="no"):
        jobs.start(fails(0))
    jobs.start(fails(STEPS_PER_SLICE))
    jobs.start(ends(2, done))
    with pytest.raises(ValueError, match="no"):
        deferred.pop()()
    deferred.pop()()
    assert (done, deferred) == ([0, 1], [])


def test_stopped_jobs_do_not_go_on() -> None:
    done: list[int] = []
    deferred: list[Callable[[], None]] = []
    jobs = SlicedJobs(deferred.append)
    jobs.start(ends(STEPS_PER_SLICE * 2, done))
    jobs.stop()
    deferred.pop()()
    assert (len(done), deferred) == (STEPS_PER_SLICE, [])
