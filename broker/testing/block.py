"""`with` and `async with` for what has `start` and `stop`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self


class RunsInBlock(ABC):
    """Runs inside a `with` block; in `async with` it starts and stops on a worker thread."""

    @abstractmethod
    def start(self) -> Self:
        """Start, wait until it runs, and return it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop, and wait for the end."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await _in_worker_thread(self.start)
        except asyncio.CancelledError:
            await _in_worker_thread(self.stop)  # `__aexit__` is not called
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await _in_worker_thread(self.stop)


async def _in_worker_thread(call: Callable[[], object]) -> None:
    """Run a call to its end, also when the caller is cancelled: a start cannot be interrupted."""
    running = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # is not logged as one that was never retrieved
        raise
