"""Waiting for requests in flight."""

from __future__ import annotations

from ottla.controller.requests.delivery import Delivery, wait_for
from tests.doubles.controller_cluster import settle
from tests.doubles.controller_runtime import ManualRuntime


async def test_waits_for_all_of_them() -> None:
    runtime = ManualRuntime()
    deliveries = [Delivery(), Delivery()]
    outcome: list[bool] = []

    async def wait() -> None:
        outcome.append(await wait_for(deliveries, 1000, runtime))

    runtime.spawn(wait(), name="wait")
    await settle()
    deliveries[1].finish()
    await settle()
    assert outcome == []
    deliveries[0].finish()
    await settle()
    assert outcome == [True]
    assert runtime.next_due_in_ms() is None  # the timer is not left behind


async def test_gives_up_in_time() -> None:
    runtime = ManualRuntime()
    done, waiting = Delivery(), Delivery()
    done.finish()
    outcome: list[bool] = []

    async def wait() -> None:
        outcome.append(await wait_for([done, waiting], 1000, runtime))

    runtime.spawn(wait(), name="wait")
    await settle()
    runtime.advance(999)
    await settle()
    assert outcome == []
    runtime.advance(1)
    await settle()
    assert outcome == [False]
    waiting.finish()  # there is no waiter any more


async def test_nothing_to_wait_for() -> None:
    runtime = ManualRuntime()
    assert await wait_for([], 0, runtime)
    assert not await wait_for([Delivery()], 0, runtime)
