import asyncio
import gc
import threading
import weakref
from contextlib import suppress
from functools import partial

import pytest

from ottla.broker.runtime.tasks import (
    WorkerPool,
    WorkerPoolClosed,
    abandoned_threads,
    gather_limited,
    run_in_threads,
    running_tasks,
    spawn,
    stop,
)
from tests.doubles.eventually import eventually_async


class TestSpawn:
    async def test_a_task_is_named_kept_and_let_go(self) -> None:
        go_on = asyncio.Event()
        spawn(go_on.wait(), name="waiter")
        gc.collect()
        (task,) = running_tasks()
        assert task.get_name() == "waiter"
        go_on.set()
        await task
        assert running_tasks() == []

    async def test_a_failure_is_logged_once_and_seen_by_who_awaits(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def fail() -> None:
            raise RuntimeError("as planned")

        task = spawn(fail(), name="unlucky")
        with pytest.raises(RuntimeError, match="as planned"):
            await task
        assert [record.getMessage() for record in caplog.records] == ["task unlucky failed"]

    async def test_cancelling_is_no_failure(self, caplog: pytest.LogCaptureFixture) -> None:
        tasks = [spawn(asyncio.Event().wait(), name=str(n)) for n in range(3)]
        await stop(*tasks)
        assert all(task.cancelled() for task in tasks)
        assert running_tasks() == []
        assert not caplog.records


class Blocking:
    """A function for a worker that ends when the test says so."""

    def __init__(self) -> None:
        self.started = 0
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.started += 1
        assert self.go_on.wait(20)
        return threading.get_ident()


async def until_started(blocking: Blocking, count: int) -> None:
    await eventually_async(lambda: blocking.started >= count, seconds=20)


class TestWorkerPool:
    async def test_functions_run_in_threads_of_their_own(self) -> None:
        pool = WorkerPool(threads=2)
        thread_id = await pool.run(threading.get_ident)
        assert thread_id != threading.get_ident()
        assert await pool.run(lambda a, b: a + b, 2, 3) == 5
        assert pool.accepted == 0
        await pool.close()

    async def test_an_exception_comes_back(self) -> None:
        pool = WorkerPool()
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        assert pool.accepted == 0
        await pool.close()

    async def test_threads_and_queue_are_bounded(self) -> None:
        pool = WorkerPool(threads=2, queue_limit=3)
        blocking = Blocking()
        calls = [spawn(pool.run(blocking), name=str(n)) for n in range(9)]
        await until_started(blocking, 2)
        await asyncio.sleep(0.01)
        assert blocking.started == 2
        assert pool.accepted == 5
        blocking.go_on.set()
        threads = await asyncio.gather(*calls)
        assert len(set(threads)) <= 2
        assert (blocking.started, pool.accepted) == (9, 0)
        await pool.close()

    async def test_a_cancelled_caller_does_not_give_its_place_back_too_early(self) -> None:
        pool = WorkerPool(threads=1, queue_limit=0)
        blocking = Blocking()
        first = spawn(pool.run(blocking), name="first")
        await until_started(blocking, 1)
        await stop(first)
        second = spawn(pool.run(threading.get_ident), name="second")
        await asyncio.sleep(0.01)
        assert pool.accepted == 1  # the function still runs
        blocking.go_on.set()
        await second
        assert pool.accepted == 0
        await pool.close()

    async def test_a_cancelled_caller_in_the_waiting_line_makes_room_for_the_next(self) -> None:
        pool = WorkerPool(threads=1, queue_limit=0)
        blocking = Blocking()
        first = spawn(pool.run(blocking), name="first")
        await until_started(blocking, 1)
        waiting = [spawn(pool.run(threading.get_ident), name=str(n)) for n in range(3)]
        await asyncio.sleep(0)
        await stop(waiting[0])
        blocking.go_on.set()
        await asyncio.gather(first, *waiting[1:])
        assert pool.accepted == 0
        await pool.close()

    async def test_a_place_handed_to_a_caller_that_is_cancelled_just_then_is_not_lost(
        self,
    ) -> None:
        pool = WorkerPool(threads=1, queue_limit=0)
        blocking = Blocking()
        first = spawn(pool.run(blocking), name="first")
        await until_started(blocking, 1)
        second = spawn(pool.run(threading.get_ident), name="second")
        await asyncio.sleep(0)
        pool._release()  # hands the place over; the caller has not run yet
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert second.cancelled()
        assert pool.accepted == 0
        blocking.go_on.set()
        await first
        pool._free -= 1  # the place that the test gave back above was still in use
        await pool.close()

    async def test_close_waits_for_what_runs_and_refuses_the_rest(self) -> None:
        pool = WorkerPool(threads=1, queue_limit=0)
        blocking = Blocking()
        running = spawn(pool.run(blocking), name="running")
        await until_started(blocking, 1)
        waiting = spawn(pool.run(blocking), name="waiting")
        await asyncio.sleep(0)
        closing = spawn(pool.close(), name="closing")
        with pytest.raises(RuntimeError, match="closed"):
            await waiting
        assert not closing.done()
        blocking.go_on.set()
        await asyncio.gather(closing, running)
        with pytest.raises(RuntimeError, match="closed"):
            await pool.run(blocking)

    async def test_close_gives_up_what_hangs(self) -> None:
        pool = WorkerPool(threads=1)
        blocking = Blocking()
        running = spawn(pool.run(blocking), name="running")
        await until_started(blocking, 1)
        waiting = spawn(pool.run(blocking), name="waiting")
        await asyncio.sleep(0)
        assert await pool.close(0.01) is False
        assert abandoned_threads() == ["ottla-worker_0"]
        with pytest.raises(asyncio.CancelledError):
            await waiting
        blocking.go_on.set()
        await running
        await eventually_async(lambda: not abandoned_threads(), seconds=20)
        assert blocking.started == 1, "what had not begun is dropped"

    async def test_close_gives_up_what_was_posted_and_hangs(self) -> None:
        pool = WorkerPool(threads=1)
        blocking = Blocking()
        pool.post(blocking)
        await until_started(blocking, 1)
        assert await pool.close(0.01) is False
        blocking.go_on.set()
        await eventually_async(lambda: not abandoned_threads(), seconds=20)

    async def test_close_waits_for_what_is_posted(self) -> None:
        pool = WorkerPool(threads=1)
        blocking = Blocking()
        pool.post(blocking)
        await until_started(blocking, 1)
        closing = spawn(pool.close(), name="closing")
        await asyncio.sleep(0.01)
        assert not closing.done()
        blocking.go_on.set()
        assert await closing

    async def test_close_while_a_place_is_on_its_way(self) -> None:
        pool = WorkerPool(threads=1, queue_limit=0)
        blocking = Blocking()
        first = spawn(pool.run(blocking), name="first")
        await until_started(blocking, 1)
        second = spawn(pool.run(blocking), name="second")
        await asyncio.sleep(0)
        blocking.go_on.set()
        await first
        closing = spawn(pool.close(20), name="closing")
        with suppress(WorkerPoolClosed):
            await second
        assert await closing

    async def test_the_age_of_the_oldest_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pool = WorkerPool(threads=1)
        assert pool.oldest_seconds() == 0.0
        loop, blocking = asyncio.get_running_loop(), Blocking()
        begun = loop.time()
        calls = []
        for number, later in enumerate((0.0, 5.0)):
            monkeypatch.setattr(loop, "time", lambda later=later: begun + later)
            calls.append(spawn(pool.run(blocking), name=str(number)))
            await asyncio.sleep(0)
        monkeypatch.setattr(loop, "time", lambda: begun + 40.0)
        assert pool.oldest_seconds() == pytest.approx(40.0)
        monkeypatch.undo()
        blocking.go_on.set()
        await asyncio.gather(*calls)
        await eventually_async(lambda: pool.oldest_seconds() == 0.0, seconds=20)
        await pool.close()

    async def test_what_is_posted_runs_without_a_turn_of_the_loop(self) -> None:
        pool = WorkerPool(threads=1)
        blocking, ended = Blocking(), threading.Event()
        pool.post(blocking)
        pool.post(ended.set)
        assert pool.accepted == 2
        assert not ended.is_set()
        blocking.go_on.set()
        assert ended.wait(20), "the loop did not run meanwhile"
        await pool.close()
        assert pool.accepted == 0
        with pytest.raises(RuntimeError, match="closed"):
            pool.post(ended.set)
        assert pool.accepted == 0

    async def test_an_error_of_what_is_posted_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        pool = WorkerPool(threads=1, name="reader")
        pool.post(lambda: next(iter(())))
        assert await pool.run(lambda: 5) == 5, "the thread continues"
        await pool.close()
        [record] = caplog.records
        assert record.getMessage() == "a function in worker pool reader failed"
        assert record.exc_info is not None


class TestRunInThreads:
    @pytest.mark.parametrize("count", [0, 1, 5, 20])
    def test_all_have_run_when_it_returns(self, count: int) -> None:
        done: list[int] = []
        run_in_threads([partial(done.append, number) for number in range(count)])
        assert sorted(done) == list(range(count))

    def test_they_run_beside_each_other(self) -> None:
        meeting = threading.Barrier(3)
        run_in_threads([lambda: meeting.wait(60) and None] * 3)

    def test_the_first_error_is_raised_when_all_have_ended(self) -> None:
        done: list[int] = []

        def fail() -> None:
            raise RuntimeError("as planned")

        with pytest.raises(RuntimeError, match="as planned"):
            run_in_threads([fail, partial(done.append, 1), partial(done.append, 2)])
        assert sorted(done) == [1, 2]


class Load:
    """Something that a function had in hand."""


async def test_a_failed_function_leaves_nothing_in_memory() -> None:
    """Without a run of the garbage collector: what it had in hand may be a hundred megabytes."""
    seen: list[weakref.ref[Load]] = []

    def fail() -> None:
        load = Load()
        seen.append(weakref.ref(load))
        raise ValueError

    pool = WorkerPool(threads=1)
    gc.disable()
    try:
        with suppress(ValueError):
            await pool.run(fail)
        await pool.close()  # the thread's own hold on it has ended
        assert seen[0]() is None
    finally:
        gc.enable()


async def test_coroutines_run_in_slices() -> None:
    running: list[int] = []
    most: list[int] = []

    async def work(number: int) -> None:
        running.append(number)
        most.append(len(running))
        await asyncio.sleep(0)
        running.remove(number)

    await gather_limited([work(number) for number in range(5)], 2)
    assert (len(most), max(most)) == (5, 2)
    await gather_limited([work(5)], 2)
    assert len(most) == 6
