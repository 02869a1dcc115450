"""Full runs of Python's garbage collector that stay short in a broker with very many partitions.

A full run reads every object that may be part of a cycle, and holds the interpreter: a third of a
second with the state of 100,000 partitions. What has survived a long run is in use, so it is set
aside (`gc.freeze`), and the next run reads what is new since. An object that is set aside is freed
with its last reference, as any other; only a cycle of such objects is not found any more. So all
are read again once the process has grown by an eighth of the memory that it may use.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from time import thread_time
from typing import Any

# New objects after which a young run follows. With 700, Python's own threshold, the requests in
# progress are read again and again, and they are no garbage.
YOUNG_OBJECTS = 10_000
# Every fifth young run also reads the objects between young and old, and every second of these is a
# full run: after 100,000 new objects, which take up to 25 ms.
MIDDLE_RUNS, FULL_RUNS = 4, 1

# A full run that took so much processor time sets aside what it has read. Most brokers have none.
LONG_SECONDS = 0.01
# The process grows by this part of its memory before everything is read again.
MEMORY_PARTS = 8
LOOK_SECONDS = 30.0


class ShortFullRuns:
    """Keeps full runs short from `start` to `stop`. One in a process; loop thread only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resident: Callable[[], int],
        available: Callable[[], int],
        processor_seconds: Callable[[], float] = thread_time,
    ) -> None:
        """`resident` and `available` return the bytes that the process uses and may use."""
        self.reviews = 0
        self._loop = loop
        self._resident = resident
        self._available = available
        self._processor_seconds = processor_seconds
        self._began = 0.0
        self._is_aside = False  # something is, since the start or the last review
        self._least = 0  # bytes: the resident memory after the last review, or less since
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Set aside what there is, and let the collector run."""
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_RUNS, FULL_RUNS)
        gc.callbacks.append(self._on_run)
        gc.enable()
        self._least = self._resident()
        self._look_later()

    def stop(self) -> None:
        """Leave the collector to its thresholds."""
        gc.callbacks.remove(self._on_run)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Read all objects if the process has grown by an eighth of its memory."""
        resident = self._resident()
        self._least = min(self._least, resident)
        if self._is_aside and resident - self._least > self._available() // MEMORY_PARTS:
            self.reviews += 1
            self._is_aside = False
            gc.unfreeze()
            gc.collect()  # sets aside what is in use
            self._least = self._resident()

    def _on_run(self, phase: str, details: dict[str, Any]) -> None:
        """In any thread, as a run is in the one that made the last object."""
        if details["generation"] < 2:
            return
        if phase == "start":
            self._began = self._processor_seconds()
        elif self._processor_seconds() - self._began >= LONG_SECONDS:
            self._is_aside = True
            gc.freeze()
            # A run is due when there is a quarter as much as the last one left: nearly nothing.
            self._loop.call_soon_threadsafe(gc.collect)

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look_and_go_on)

    def _look_and_go_on(self) -> None:
        self._look_later()
        self.look()
