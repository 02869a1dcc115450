"""The runtime on a plain event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine

from ottla.controller.runtime import LoopRuntime


async def test_time_timers_and_tasks() -> None:
    names: list[str] = []

    def spawn(coroutine: Coroutine[object, object, None], *, name: str) -> asyncio.Task[None]:
        names.append(name)
        return asyncio.Task(coroutine, loop=asyncio.get_running_loop())

    runtime = LoopRuntime(spawn)
    assert abs(runtime.now_ms() - time.time() * 1000) < 60_000
    called: list[str] = []
    done = asyncio.Event()

    async def work() -> None:
        runtime.call_later(0, lambda: called.append("cancelled")).cancel()
        runtime.call_later(1, done.set)
        await done.wait()
        called.append("done")

    task = runtime.spawn(work(), name="work")
    assert isinstance(task, asyncio.Task)
    await task
    assert names == ["work"]
    assert called == ["done"]
