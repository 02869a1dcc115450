"""Waiting for the responses of brokers, with a timeout."""

import asyncio
from collections.abc import Iterable

from ottla.controller.runtime import Runtime


class Delivery:
    """A request in flight; call ``finish`` when it has a response or is dropped."""

    __slots__ = ("_waiters", "done")

    def __init__(self) -> None:
        self.done = False
        self._waiters: list[asyncio.Future[None]] = []

    def finish(self) -> None:
        self.done = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def add_waiter(self, waiter: "asyncio.Future[None]") -> None:
        self._waiters.append(waiter)


async def wait_for(deliveries: Iterable[Delivery], timeout_ms: int, runtime: Runtime) -> bool:
    """Returns whether all were finished within ``timeout_ms``."""
    waiting = [each for each in deliveries if not each.done]
    if not waiting or timeout_ms <= 0:
        return not waiting
    expired = False
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def expire() -> None:
        nonlocal expired
        expired = True
        if not waiter.done():
            waiter.set_result(None)

    timer = runtime.call_later(timeout_ms, expire)
    try:
        for delivery in waiting:
            while not delivery.done and not expired:
                if waiter.done():
                    waiter = asyncio.get_running_loop().create_future()
                delivery.add_waiter(waiter)
                await waiter
    finally:
        timer.cancel()
    return all(each.done for each in waiting)
