"""TaskSchedule: bounded runs, one at a time for each key, and what a stop waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.broker.remote.remote_log_manager import TaskSchedule
from ottla.broker.runtime.tasks import spawn
from tests.doubles.eventually import eventually_async

NEVER = 1e6


class Jobs:
    """Runs end when the test says so."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.gate = asyncio.Semaphore(0)
        self.delay = NEVER

    async def run(self, key: str) -> float:
        self.began.append(key)
        await self.gate.acquire()
        self.ended.append(key)
        return self.delay


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
async def schedule(jobs: Jobs) -> AsyncIterator[TaskSchedule[str]]:
    schedule = TaskSchedule("test", jobs.run, concurrency=2)
    schedule.start()
    yield schedule
    await schedule.stop(0)


async def test_a_bounded_number_runs_at_the_same_time(
    schedule: TaskSchedule[str], jobs: Jobs
) -> None:
    for key in "abc":
        schedule.add(key)
    await eventually_async(lambda: jobs.began == ["a", "b"])
    assert schedule.is_running("a")
    jobs.gate.release()
    await eventually_async(lambda: jobs.began == ["a", "b", "c"])
    jobs.gate.release()
    jobs.gate.release()
    await eventually_async(lambda: sorted(jobs.ended) == ["a", "b", "c"])


async def test_a_key_runs_again_after_what_its_job_returned(
    schedule: TaskSchedule[str], jobs: Jobs
) -> None:
    jobs.delay = 0.0
    schedule.add("a")
    for _ in range(3):
        jobs.gate.release()
    await eventually_async(lambda: len(jobs.began) == 4)
    assert jobs.ended == ["a"] * 3


async def test_a_key_that_is_added_while_it_runs_runs_again_once(
    schedule: TaskSchedule[str], jobs: Jobs
) -> None:
    schedule.add("a")
    await eventually_async(lambda: jobs.began == ["a"])
    schedule.add("a")
    schedule.add("a")
    schedule.add("b")
    await eventually_async(lambda: jobs.began == ["a", "b"])
    jobs.gate.release()
    await eventually_async(lambda: jobs.began == ["a", "b", "a"])
    jobs.gate.release()
    jobs.gate.release()
    await eventually_async(lambda: len(jobs.ended) == 3)
    assert not schedule.is_running("a")
    assert len(jobs.began) == 3


async def test_a_removed_key_does_not_run_again(schedule: TaskSchedule[str], jobs: Jobs) -> None:
    jobs.delay = 0.0
    schedule.add("a")
    await eventually_async(lambda: jobs.began == ["a"])
    schedule.remove("a")
    waiting = spawn(schedule.wait_for("a"), name="waiting")
    jobs.gate.release()
    await waiting
    schedule.add("b")
    await eventually_async(lambda: jobs.began == ["a", "b"])


async def test_a_stop_waits_for_what_runs(jobs: Jobs) -> None:
    schedule = TaskSchedule("test", jobs.run, concurrency=2)
    schedule.start()
    schedule.add("a")
    schedule.add("later", NEVER)
    await eventually_async(lambda: jobs.began == ["a"])
    stopping = spawn(schedule.stop(60), name="stopping")
    await asyncio.sleep(0)
    jobs.gate.release()
    await stopping
    assert jobs.ended == ["a"]


async def test_a_stop_cancels_what_takes_too_long(jobs: Jobs) -> None:
    schedule = TaskSchedule("test", jobs.run, concurrency=2)
    schedule.start()
    schedule.add("a")
    await eventually_async(lambda: jobs.began == ["a"])
    await schedule.stop(0)
    assert jobs.ended == []
    assert not schedule.is_running("a")
