"""A lock for each key."""

import asyncio

import pytest

from ottla.broker.runtime.keyed_locks import KeyedLocks
from ottla.broker.runtime.tasks import spawn


async def test_one_task_at_a_time_for_each_key() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    events: list[str] = []

    async def work(name: str, key: str) -> None:
        async with locks.locked(key):
            events.append(f"{name} begins")
            await asyncio.sleep(0)
            events.append(f"{name} ends")

    await asyncio.gather(work("a", "x"), work("b", "x"), work("c", "y"))
    x = [event for event in events if event[0] in "ab"]
    assert x == ["a begins", "a ends", "b begins", "b ends"]
    assert events.index("c begins") < events.index("a ends")
    assert len(locks) == 0


async def test_nothing_remains_of_a_failed_or_cancelled_task() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    with pytest.raises(ValueError, match="wrong"):
        async with locks.locked("x"):
            raise ValueError("wrong")

    async def wait() -> None:
        async with locks.locked("x"):
            pass

    async with locks.locked("x"):
        waiting = spawn(wait(), name="waits")
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(locks) == 1
    assert len(locks) == 0
