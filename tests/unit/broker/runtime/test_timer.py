import asyncio
import logging
from collections.abc import Callable
from time import monotonic

import pytest

from ottla.broker.runtime.timer import Timer
from tests.doubles.manual_timer import ManualClock, ManualTimer
from tests.doubles.pace import steps_per_turn


class TestTimer:
    async def test_callbacks_run_in_order_and_never_early(self) -> None:
        timer = Timer()
        ran: list[int] = []
        done = asyncio.get_running_loop().create_future()
        started_at = monotonic()

        def note(delay_ms: int) -> None:
            assert (monotonic() - started_at) * 1000 >= delay_ms
            ran.append(delay_ms)
            if len(ran) == 5:
                done.set_result(None)

        # 0 before 1: a millisecond may pass between the two calls.
        for delay_ms in (90, 0, 70, 1, 30):
            timer.schedule(delay_ms, lambda delay_ms=delay_ms: note(delay_ms))
        assert ran == []
        await done
        assert ran == [0, 1, 30, 70, 90]

    async def test_a_negative_delay_counts_as_none(self) -> None:
        timer = Timer()
        done = asyncio.Event()
        timer.schedule(-5, done.set)
        assert not done.is_set()
        await done.wait()

    async def test_a_cancelled_callback_does_not_run(self) -> None:
        timer = Timer()
        ran: list[str] = []
        done = asyncio.Event()
        task = timer.schedule(5, lambda: ran.append("cancelled"))
        timer.schedule(10, done.set)
        assert task.cancel()
        await done.wait()
        assert ran == []

    async def test_a_postponed_callback_runs_once_and_not_early(self) -> None:
        timer = Timer()
        ran: list[float] = []
        done = asyncio.Event()
        started_at = monotonic()
        task = timer.schedule(5, lambda: (ran.append(monotonic() - started_at), done.set()))
        assert timer.postpone(task, 60)
        assert not timer.postpone(task, 0)
        await done.wait()
        assert len(ran) == 1
        assert ran[0] >= 0.06
        assert not timer.postpone(task, 60)

    async def test_a_callback_may_cancel_another_that_is_due_too(self) -> None:
        timer = Timer(tick_ms=20)  # both in one tick
        ran: list[str] = []
        done = asyncio.Event()
        tasks = [timer.schedule(5, lambda: (ran.append("first"), tasks[1].cancel()))]
        tasks.append(timer.schedule(5, lambda: ran.append("second")))
        timer.schedule(60, done.set)
        await done.wait()
        assert ran == ["first"]

    async def test_only_one_timer_of_the_loop_is_used(self) -> None:
        loop = asyncio.get_running_loop()
        live: set[asyncio.TimerHandle] = set()
        call_later = loop.call_later

        def counted(delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
            handle = call_later(delay, callback)
            live.add(handle)
            return handle

        loop.call_later = counted
        timer = Timer()
        for delay_ms in (500, 400, 300, 600, 50_000):
            timer.schedule(delay_ms, lambda: None)
        assert sum(not handle.cancelled() for handle in live) == 1
        timer.close()
        assert all(handle.cancelled() for handle in live)

    async def test_a_failing_callback_is_logged_and_disturbs_no_other(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        timer = Timer()
        done = asyncio.Event()

        def fail() -> None:
            raise RuntimeError("as planned")

        timer.schedule(1, fail)
        timer.schedule(2, done.set)
        await done.wait()
        assert "as planned" in caplog.text
        assert [record.levelno for record in caplog.records] == [logging.ERROR]

    async def test_very_many_due_at_once_leave_the_loop_its_turns(self) -> None:
        timer = Timer()
        ran: list[int] = []
        turns: list[int] = []
        for number in range(10):
            timer.schedule(0, lambda number=number: ran.append(number))
        with steps_per_turn(1):
            while len(ran) < 10:
                await asyncio.sleep(0)  # one iteration of the loop, however long it takes
                turns.append(len(ran))
        assert ran == list(range(10))
        assert set(turns) >= set(range(1, 11))

    async def test_what_a_callback_schedules_runs_too(self) -> None:
        timer = Timer()
        done = asyncio.Event()
        timer.schedule(1, lambda: timer.schedule(1, lambda: timer.schedule(0, done.set)))
        await done.wait()

    async def test_nothing_runs_after_close(self) -> None:
        timer = Timer()
        ran: list[int] = []
        timer.schedule(0, lambda: ran.append(0))
        timer.schedule(1, lambda: (ran.append(1), timer.close()))
        timer.schedule(2, lambda: ran.append(2))
        await asyncio.sleep(0.02)
        timer.schedule(0, lambda: ran.append(3))
        await asyncio.sleep(0.005)
        assert ran == [0, 1]


class TestManualTimer:
    def test_callbacks_run_at_their_own_moment(self) -> None:
        clock = ManualClock(now_ms=1_000)
        timer = ManualTimer(clock)
        seen: list[int] = []
        for delay_ms in (300, 5, 70_000):
            timer.schedule(delay_ms, lambda: seen.append(clock.now_ms()))
        assert timer.advance(400) == 2
        assert seen == [1_005, 1_300]
        assert clock.now_ms() == 1_400
        assert timer.advance(69_600) == 1
        assert seen[2] == 71_000

    def test_no_delay_runs_in_the_next_advance(self) -> None:
        timer = ManualTimer()
        ran: list[int] = []
        timer.schedule(0, lambda: ran.append(1))
        assert ran == []
        assert timer.advance(0) == 1
        assert ran == [1]

    def test_what_callbacks_schedule_runs_if_it_is_due_by_then(self) -> None:
        timer = ManualTimer()
        ran: list[str] = []
        timer.schedule(10, lambda: timer.schedule(10, lambda: ran.append("second")))
        timer.advance(19)
        assert ran == []
        timer.advance(1)
        assert ran == ["second"]

    def test_a_cancelled_callback_does_not_run(self) -> None:
        timer = ManualTimer()
        for delay_ms in (0, 10):
            timer.schedule(delay_ms, lambda: pytest.fail("it was cancelled")).cancel()
        assert timer.advance(1000) == 0

    def test_a_postponed_callback_runs_at_its_new_moment(self) -> None:
        timer = ManualTimer()
        ran: list[int] = []
        task = timer.schedule(10, lambda: ran.append(1))
        assert timer.postpone(task, 5_000)
        assert timer.advance(4_999) == 0
        assert timer.advance(1) == 1
        assert not timer.postpone(task, 10)

    def test_a_periodic_callback_runs_once_a_period(self) -> None:
        timer = ManualTimer()
        times: list[float] = []

        def again() -> None:
            times.append(timer.clock.monotonic())
            timer.schedule(100, again)

        timer.schedule(100, again)
        timer.advance(1_000)
        assert times == [pytest.approx(n / 10) for n in range(1, 11)]

    def test_what_repeats_without_delay_lets_time_pass(self) -> None:
        timer = ManualTimer()
        times: list[float] = []

        def again() -> None:
            times.append(timer.clock.monotonic())
            timer.schedule(0, again)

        timer.schedule(0, again)
        timer.advance(3)
        assert times == [0.0, 0.001, 0.002, 0.003]
