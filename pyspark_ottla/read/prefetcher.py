"""An iterator that runs ahead in a thread of its own, within a bound.

The next response travels while the last one is decoded.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# How long closing waits for a thread that is in the middle of a request.
JOIN_SECONDS = 2.0


class _Failure(NamedTuple):
    error: BaseException


class Prefetcher(Iterator[T]):
    """Runs `source` in a thread, at most `depth` items ahead of the caller that iterates."""

    def __init__(self, source: Iterator[T], depth: int, name: str) -> None:
        # The bound on memory: `depth` responses wait here, one is being fetched, one is in use.
        self._items: queue.Queue[T | _Failure | None] = queue.Queue(maxsize=max(1, depth))
        self._source = source
        self._stopped = threading.Event()
        self._finished = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last: _Failure | None = None
        try:
            for item in self._source:
                if not self._put(item):
                    return
        except BaseException as error:  # handed over and raised where the items are taken
            last = _Failure(error)
        self._put(last)

    def _put(self, item: T | _Failure | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._items.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def __next__(self) -> T:
        if self._finished:
            raise StopIteration
        item = self._items.get()
        if item is None or isinstance(item, _Failure):
            self._finished = True
            if item is None:
                raise StopIteration
            raise item.error
        return item

    def close(self) -> bool:
        """Stops the thread; returns whether it has ended (it may be waiting for a response)."""
        self._stopped.set()
        self._thread.join(JOIN_SECONDS)
        return not self._thread.is_alive()
