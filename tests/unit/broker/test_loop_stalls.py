import asyncio
import threading
import time

import pytest

from broker import loop_stalls
from broker.loop_stalls import StallMonitor
from broker.metrics import StallStatistics
from broker.tasks import spawn


async def until_counted(statistics: StallStatistics) -> None:
    async with asyncio.timeout(20):
        while not statistics.total:  # noqa: ASYNC110 (there is nothing that could set an event)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("watchdog", [True, False])
async def test_a_loop_that_was_held_up_is_noticed(
    watchdog: bool, caplog: pytest.LogCaptureFixture
) -> None:
    statistics = StallStatistics()
    monitor = StallMonitor(statistics, watchdog=watchdog)
    monitor.start()
    await asyncio.sleep(0)
    time.sleep(0.25)  # noqa: ASYNC251 (that is the point)
    await until_counted(statistics)
    monitor.stop()
    assert statistics.total == 1
    assert statistics.longest_seconds >= 0.15
    assert "the event loop was held up" in caplog.text


async def test_the_watchdog_names_the_task_and_the_place() -> None:
    statistics = StallStatistics()
    monitor = StallMonitor(statistics)
    monitor.start()

    async def busy() -> None:
        # A place of ours that can be kept busy for as long as the test wants.
        pool = loop_stalls.StallMonitor(StallStatistics())
        pool._stopped = threading.Event()
        pool._watchdog = False
        pool._due_at = time.monotonic() + 1_000
        threading.Timer(0.3, pool._stopped.set).start()
        pool._watch()

    task = spawn(busy(), name="busy-task")
    await until_counted(statistics)
    monitor.stop()
    await task
    assert list(statistics.by_name) == ["busy-task: broker.loop_stalls.StallMonitor._watch"]


async def test_what_the_request_channel_counted_is_not_counted_again() -> None:
    statistics = StallStatistics()
    monitor = StallMonitor(statistics, watchdog=False)
    monitor.start()
    time.sleep(0.2)  # noqa: ASYNC251 (that is the point)
    statistics.record("Fetch", 0.2)
    await asyncio.sleep(0.06)
    monitor.stop()
    assert statistics.by_name == {"Fetch": 1}


async def test_after_stop_nothing_is_left() -> None:
    threads = threading.active_count()
    monitor = StallMonitor(StallStatistics())
    monitor.start()
    assert threading.active_count() == threads + 1
    monitor.stop()
    monitor.stop()
    assert threading.active_count() == threads
