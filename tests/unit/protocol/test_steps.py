"""Long work in turns: what runs at once, where it pauses, how it ends."""

import asyncio
from collections.abc import Callable, Coroutine
from types import CoroutineType

import pytest

from ottla.broker.runtime.tasks import spawn
from ottla.protocol.steps import (
    PACE,
    Pace,
    Steps,
    Turn,
    TurnQueue,
    over,
    run,
    run_at_once,
    run_in_turns,
)
from tests.doubles.pace import endless_turns, steps_per_turn


def count(steps: int, done: list[int], result: str = "done") -> Steps[str]:
    try:
        for number in range(steps):
            done.append(number)
            yield
    finally:
        done.append(-1)
    return result


def job(steps: int, done: list[int], error: Exception | None = None) -> Steps[None]:
    for number in range(steps):
        done.append(number)
        yield
    if error is not None:
        raise error


async def iterations_of(work: Coroutine[object, object, object]) -> int:
    """How many iterations of the loop pass until `work` is done."""
    task = spawn(work, name="work")
    iterations = 0
    while not task.done():
        await asyncio.sleep(0)
        iterations += 1
    await task
    return iterations


def test_short_work_is_done_when_run_returns() -> None:
    done: list[int] = []
    with endless_turns():
        assert run(count(100, done)) == "done"
    assert done == [*range(100), -1]


async def test_long_work_goes_on_after_the_first_turn() -> None:
    done: list[int] = []
    with steps_per_turn(5):
        rest = run(count(12, done))
        assert isinstance(rest, CoroutineType)
        assert len(done) == 5
        assert await rest == "done"
    assert done == [*range(12), -1]


async def test_other_tasks_run_between_turns() -> None:
    with steps_per_turn(5):
        assert await iterations_of(run_in_turns(count(40, []))) >= 40 // 5
    with endless_turns():
        assert await iterations_of(run_in_turns(count(40, []))) <= 2


def test_an_error_of_the_first_turn_is_raised_by_run() -> None:
    with pytest.raises(KeyError):
        run(job(2, [], KeyError("it")))


async def test_an_error_of_a_later_turn_is_raised_by_the_coroutine() -> None:
    with steps_per_turn(2):
        rest = run(job(10, [], KeyError("it")))
        assert isinstance(rest, CoroutineType)
        with pytest.raises(KeyError):
            await rest


@pytest.mark.parametrize("start", [run, run_in_turns], ids=["run", "run_in_turns"])
async def test_cancelled_work_is_closed(start: Callable[[Steps[str]], object]) -> None:
    done: list[int] = []
    with steps_per_turn(2):
        rest = start(count(100, done))
        assert isinstance(rest, CoroutineType)
        task = spawn(rest, name="work")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert done[-1] == -1
    assert len(done) < 100


def test_run_at_once_never_pauses() -> None:
    done: list[int] = []
    with steps_per_turn(1):
        assert run_at_once(count(100, done)) == "done"


async def test_over_yields_all_items_in_turns() -> None:
    seen: list[int] = []

    async def loop() -> None:
        async for item in over(range(20)):
            seen.append(item)

    with steps_per_turn(4):
        assert await iterations_of(loop()) >= 20 // 4
    assert seen == [*range(20)]


async def test_nested_loops_share_one_turn() -> None:
    async def loop() -> None:
        turn = Turn()
        for _ in range(10):
            for _ in range(3):
                await turn.share()

    with steps_per_turn(10):
        assert await iterations_of(loop()) == 1 + 3


def test_a_turn_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(PACE, "clock", lambda: now)
    turn = Turn()
    assert not any(turn.is_over for _ in range(10 * PACE.steps_per_reading))
    now = PACE.turn_seconds
    assert sum(turn.is_over for _ in range(10 * PACE.steps_per_reading)) == 10


def test_eight_of_the_longest_steps_are_one_turn() -> None:
    assert Pace().steps_per_reading * 0.00025 <= Pace().turn_seconds


def test_a_queue_runs_short_jobs_at_once_and_long_ones_in_turns() -> None:
    deferred: list[Callable[[], None]] = []
    first: list[int] = []
    second: list[int] = []
    with steps_per_turn(5):
        jobs = TurnQueue(deferred.append)
        jobs.start(job(3, second))
        assert (len(second), deferred) == (3, [])
        jobs.start(job(10, first))
        jobs.start(job(1, second))
        assert (len(first), len(second), len(deferred)) == (5, 3, 1)
        while deferred:
            deferred.pop()()
    assert (len(first), len(second)) == (10, 4)


def test_a_short_job_does_not_wait_for_a_long_one_where_they_alternate() -> None:
    deferred: list[Callable[[], None]] = []
    long: list[int] = []
    short: list[int] = []
    with steps_per_turn(5):
        jobs = TurnQueue(deferred.append, alternates=True)
        jobs.start(job(100, long))
        jobs.start(job(1, short))
        deferred.pop()()  # the long one was alone when its turn ended
        deferred.pop()()
        assert short == [0]
        assert len(long) < 100


def test_a_job_that_fails_does_not_stop_the_next_one() -> None:
    deferred: list[Callable[[], None]] = []
    done: list[int] = []
    with steps_per_turn(3):
        jobs = TurnQueue(deferred.append)
        jobs.start(job(5, [], KeyError("it")))
        jobs.start(job(1, done))
        with pytest.raises(KeyError):
            deferred.pop()()
        while deferred:
            deferred.pop()()
    assert done == [0]


def test_finish_runs_the_rest_and_stop_drops_it() -> None:
    deferred: list[Callable[[], None]] = []
    with steps_per_turn(3):
        jobs = TurnQueue(deferred.append)
        done: list[int] = []
        jobs.start(job(10, done))
        jobs.finish()
        assert len(done) == 10
        deferred.pop()()
        left: list[int] = []
        jobs.start(job(10, left))
        jobs.stop()
        deferred.pop()()
        assert len(left) == 3
        assert not deferred
