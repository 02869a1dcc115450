"""Work on many partitions, in slices, so that it holds the event loop for some milliseconds only.

The event queue processes one event at a time, so nothing else changes the context between two
slices of an event. Readers besides the queue (gauges, `Controller.context`) may see a part of an
event, as they do while it awaits the store.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

#: One item takes 1 to 20 us: a state is decoded, encoded, or added to the requests to brokers.
ITEMS_PER_SLICE = 256


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; other tasks run after every ITEMS_PER_SLICE of them."""
    left = ITEMS_PER_SLICE
    for item in items:
        yield item
        left -= 1
        if left <= 0:
            left = ITEMS_PER_SLICE
            await pause()


class Slices:
    """For nested loops, such as over the partitions of topics: counts the items of all of them."""

    def __init__(self) -> None:
        self._left = ITEMS_PER_SLICE

    async def add(self, items: int) -> None:
        """Work on so many items is done: other tasks run after every ITEMS_PER_SLICE of them."""
        self._left -= items
        if self._left <= 0:
            self._left = ITEMS_PER_SLICE
            await pause()


async def pause() -> None:
    """Lets other tasks run."""
    await asyncio.sleep(0)
