"""Time, timers and tasks for the controller, as a protocol.

The broker passes its own; tests pass a manual clock, so that no test waits for real time.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Protocol


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Runtime(Protocol):
    def now_ms(self) -> int:
        """Wall clock."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Cancellable:
        """Run the callback once on the loop, unless cancelled before."""

    def spawn(self, coroutine: Coroutine[object, object, None], *, name: str) -> Cancellable: ...


class LoopRuntime:
    """The runtime on an event loop; `spawn` is `ottla.broker.runtime.tasks.spawn`."""

    def __init__(self, spawn: Callable[..., Cancellable]) -> None:
        self._spawn = spawn

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Cancellable:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)

    def spawn(self, coroutine: Coroutine[object, object, None], *, name: str) -> Cancellable:
        return self._spawn(coroutine, name=name)
