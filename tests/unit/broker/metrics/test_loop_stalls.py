import logging
import threading
import time

import pytest

from ottla.broker.metrics.loop_stalls import Observation, StallMonitor, stated_reason
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
    statistics, clock = StallStatistics(), Clock()
    monitor = StallMonitor(statistics, watchdog=watchdog, clock=clock)
    monitor.start()
    clock.now += 0.25
    await until_counted(statistics)
    monitor.stop()
    assert statistics.total == 1
    assert statistics.longest_seconds == pytest.approx(0.2)
    assert "the event loop was blocked for 20" in caplog.text


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
    monitor._seen = Observation("task: ottla.protocol.codec.compile_codec", "")
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
    threads = threading.active_count()
    monitor = StallMonitor(StallStatistics())
    monitor.start()
    assert threading.active_count() == threads + 1
    monitor.stop()
    monitor.stop()
    assert threading.active_count() == threads
