"""Work in slices."""

from __future__ import annotations

import asyncio

from ottla.broker.runtime.tasks import spawn
from ottla.controller.slices import ITEMS_PER_SLICE, Slices, in_slices


async def test_other_tasks_run_between_slices() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = spawn(other(), name="other")
    items = [each async for each in in_slices(range(3 * ITEMS_PER_SLICE + 1))]
    assert items == list(range(3 * ITEMS_PER_SLICE + 1))
    assert turns == 3
    task.cancel()


async def test_few_items_are_one_turn() -> None:
    called = []
    asyncio.get_running_loop().call_soon(called.append, 1)
    assert [each async for each in in_slices("abc")] == ["a", "b", "c"]
    assert not called


async def test_nested_loops_count_the_items_of_all() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = spawn(other(), name="other")
    slices = Slices()
    for items in (ITEMS_PER_SLICE - 1, 1, 3 * ITEMS_PER_SLICE, ITEMS_PER_SLICE - 1):
        await slices.add(items)
    assert turns == 2
    task.cancel()
