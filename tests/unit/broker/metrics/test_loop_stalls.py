import logging
import signal
import subprocess
import sys
import threading
import time

import pytest

from ottla.broker.metrics.loop_stalls import (
    MAX_TURNS,
    WINDOW_SECONDS,
    LoopHealth,
    Observation,
    ProcessorWait,
    StallMonitor,
    stated_reason,
)
from ottla.broker.metrics.statistics import StallStatistics
from ottla.broker.runtime.tasks import spawn
from tests.doubles.eventually import eventually_async


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def until_counted(statistics: StallStatistics) -> None:
    await eventually_async(lambda: statistics.total > 0)


@pytest.mark.parametrize("watchdog", [True, False])
async def test_a_loop_that_was_held_up_is_noticed(
    watchdog: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ottla.loop")
    statistics, clock = StallStatistics(), Clock()
    monitor = StallMonitor(statistics, watchdog=watchdog, clock=clock)
    monitor.start()
    clock.now += 0.25
    await until_counted(statistics)
    monitor.stop()
    assert statistics.total == 1
    assert statistics.longest_seconds == pytest.approx(0.2)
    assert "the event loop was blocked for 20" in caplog.text


@pytest.mark.parametrize(
    ("computed", "waited", "stack", "level"),
    [
        (0.2, 0.0, "", logging.WARNING),  # we computed
        (0.0, 0.0, "ottla.storage.x:1", logging.INFO),  # our place waited for a disk
        (0.0, 0.2, "ottla.storage.x:1", logging.DEBUG),  # it had no processor
        (0.0, 0.0, "", logging.DEBUG),  # nothing of ours was seen
        (0.2, 0.0, "ottla.broker.server.broker_server:1", logging.INFO),
    ],
)
def test_stalls_with_a_cause_outside_of_the_broker_are_at_debug(
    computed: float, waited: float, stack: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ottla.loop")
    monitor = StallMonitor(StallStatistics(), watchdog=False)
    monitor._log(0.2, computed, waited, Observation("task: place", stack) if stack else None)
    (record,) = caplog.records
    assert record.levelno == level


def test_a_line_at_debug_does_not_silence_the_next(caplog: pytest.LogCaptureFixture) -> None:
    monitor = StallMonitor(StallStatistics(), watchdog=False)
    for _ in range(3):
        monitor._log(0.2, 0.0, 0.0, None)
    for _ in range(3):
        monitor._log(0.2, 0.2, 0.0, None)
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1


def test_the_wait_for_a_processor_only_grows() -> None:
    wait = ProcessorWait()
    first = wait.seconds()
    assert 0 <= first <= wait.seconds()
    wait.close()
    assert wait.seconds() == 0
    wait.close()


async def test_a_beat_in_time_is_no_stall() -> None:
    statistics, clock = StallStatistics(), Clock()
    monitor = StallMonitor(statistics, watchdog=False, clock=clock)
    monitor.start()
    clock.now += 0.099
    monitor._beat()
    monitor.stop()
    assert statistics.total == 0


async def test_the_watchdog_names_the_task_and_the_place_and_logs_the_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)  # the place waits, and computes little
    clock, statistics = Clock(), StallStatistics()
    monitor = StallMonitor(statistics, watchdog=False, clock=clock)
    monitor.start()
    seen: list[Observation] = []

    async def busy() -> None:
        # A place of ours that stays busy until it was seen by another thread.
        place = StallMonitor(StallStatistics())
        place._due_at = time.monotonic() + 1_000

        def look() -> None:
            deadline = time.monotonic() + 60
            while not seen and time.monotonic() < deadline:
                sight = monitor._what_runs()
                if "_watch" in sight.name:
                    seen.append(sight)
                time.sleep(0.001)
            place._stopped.set()

        thread = threading.Thread(target=look)
        thread.start()
        place._watch()
        thread.join()

    await spawn(busy(), name="busy-task")
    monitor._seen = seen[0]
    clock.now += 0.25
    monitor._beat()
    monitor.stop()
    assert list(statistics.by_name) == [
        "busy-task: ottla.broker.metrics.loop_stalls.StallMonitor._watch"
    ]
    assert "seen at ottla.broker.metrics.loop_stalls.StallMonitor._watch:" in caplog.text


async def test_what_the_request_channel_counted_is_not_counted_again() -> None:
    statistics, clock = StallStatistics(), Clock()
    monitor = StallMonitor(statistics, watchdog=False, clock=clock)
    monitor.start()
    clock.now += 0.25
    statistics.record("Fetch", 0.2)
    monitor._beat()
    monitor.stop()
    assert statistics.by_name == {"Fetch": 1}


async def test_a_stated_place_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.loop")
    clock = Clock()
    monitor = StallMonitor(StallStatistics(), watchdog=False, clock=clock)
    monitor.start()
    clock.now += 0.25
    place = "ottla.protocol.codec.compile_codec"
    monitor._seen = Observation(f"task: {place}", f"{place}:1")
    monitor._beat()
    monitor.stop()
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "used for the first time" in record.getMessage()
    place = "ottla.broker.handlers.records.fetch.handle"
    assert (
        stated_reason(
            Observation(place, f"{place}:1 < ottla.broker.requests.request_channel.handle:2")
        )
        == ""
    )
    assert stated_reason(
        Observation("ottla.protocol.x", "ottla.protocol.x:1 < ottla.protocol.codec.check:2")
    )


async def test_after_stop_nothing_is_left() -> None:
    def watching() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "ottla-loop-watch"]

    assert watching() == []
    monitor = StallMonitor(StallStatistics())
    monitor.start()
    assert len(watching()) == 1
    monitor.stop()
    monitor.stop()
    assert watching() == []


def test_the_longest_turn_until_the_window_is_over() -> None:
    now = 0.0
    health = LoopHealth(lambda: now)
    assert health.longest() is None
    health.blocked(2.0, 1.5, "produce")
    now = 1.0
    health.blocked(0.1, 0.1, "fetch")
    longest = health.longest()
    assert longest is not None
    assert (longest.name, longest.seconds, longest.computed_seconds) == ("produce", 2.0, 1.5)
    now = WINDOW_SECONDS + 0.5
    longest = health.longest()
    assert longest is not None
    assert longest.name == "fetch"
    now = WINDOW_SECONDS + 2
    assert health.longest() is None


def test_the_turns_are_bounded() -> None:
    health = LoopHealth(lambda: 0.0)
    for number in range(2 * MAX_TURNS):
        health.blocked(float(number), 0.0, "x")
    assert len(health._turns) == MAX_TURNS


_STOPPED = """
import asyncio, logging, sys, time
from ottla.broker.metrics.loop_stalls import StallMonitor
from ottla.broker.metrics.statistics import StallStatistics

logging.basicConfig(level="INFO", stream=sys.stdout)

async def main():
    monitor = StallMonitor(StallStatistics())
    monitor.start()
    await asyncio.sleep(0.2)
    print("runs", flush=True)
    await asyncio.sleep(1.5)
    longest = monitor.health.longest()
    print("stopped", longest is None or longest.seconds < 1, flush=True)
    time.sleep(1.3)  # a call that waits, which the watchdog sees
    await asyncio.sleep(0.2)
    print("blocked", monitor.health.longest().seconds > 1, flush=True)
    monitor.stop()

asyncio.run(main())
"""


def test_a_process_that_was_stopped_had_no_stall() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STOPPED], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)
        output = process.communicate(timeout=60)[0]
    assert "this process stood still for 1." in output
    assert "stopped True" in output
    assert "blocked True" in output
