"""Detects when something blocks the event loop, and what.

The loop sets a heartbeat every `BEAT_SECONDS`. A beat that comes too late by more than
`STALL_SECONDS` is a stall. A stall longer than `STALL_SECONDS + BEAT_SECONDS` is always noticed; a
shorter one if a beat was due in its first part. Handlers are timed one by one besides, by the
request channel, so for them every stall is found and named.

A watchdog thread reads what the loop's thread is doing when a beat is overdue: that is the
stall's name in the metrics, and the stack in the log. It runs 20 times a second and does nothing
else (a tenth of a percent of one core).

A process that got no processor for a while looks the same as one that computed or waited for a
disk; so the log line has the time that the loop's thread was computing.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from time import monotonic, thread_time
from types import FrameType
from typing import NamedTuple

from ottla.broker.metrics.loop_health import LoopHealth
from ottla.broker.metrics.statistics import STALL_SECONDS, StallStatistics

logger = logging.getLogger("ottla.loop")

BEAT_SECONDS = 0.05

# One line in the log for this time; the metrics count them all.
QUIET_SECONDS = 10.0

UNKNOWN = "unknown"

OUR_PACKAGE = "ottla"

# Where the loop itself is started: a stack that ends there was in no callback.
BASES = ("ottla.broker.__main__", "ottla.broker.testing.embedded")

# Places that may block the loop, with the reason; they are counted, and logged on INFO.
STATED_PLACES = {
    "ottla.protocol.codec": "a version of a message is used for the first time",
    "ottla.broker.server.broker_server": "the broker starts or stops",
}

DEEPEST_STACK = 12


class Observation(NamedTuple):
    """What the loop's thread was doing."""

    name: str
    stack: str


class StallMonitor:
    """Watches the loop that `start` is called on."""

    def __init__(
        self,
        statistics: StallStatistics,
        *,
        watchdog: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.statistics = statistics
        self.health = LoopHealth(clock)
        self._clock = clock
        self._watchdog = watchdog
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        self._loop_thread_id = 0
        self._stopped = threading.Event()
        self._due_at = 0.0  # when the next beat is due
        self._seen_total = 0
        self._computed_at_beat = 0.0  # processor seconds of the loop's thread
        self._seen: Observation | None = None  # written by the watchdog, taken by the beat
        self._logged_at = -QUIET_SECONDS

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread_id = threading.get_ident()
        self._schedule()
        if self._watchdog:
            self._thread = threading.Thread(
                target=self._watch, name="ottla-loop-watch", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the beat and the thread; waits for it, which takes no longer than one look."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _schedule(self) -> None:
        assert self._loop is not None
        self._seen_total = self.statistics.total
        self._computed_at_beat = thread_time()
        self._due_at = self._clock() + BEAT_SECONDS
        self._handle = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        late = self._clock() - self._due_at
        seen, self._seen = self._seen, None
        self.health.lag_seconds = max(late, 0.0)
        if late > STALL_SECONDS:
            computed = thread_time() - self._computed_at_beat
            self.health.blocked(late, computed, seen.name if seen else UNKNOWN)
            if computed > STALL_SECONDS:
                self.statistics.computing += 1
            # A stall that the request channel has counted is not counted again.
            if self.statistics.total == self._seen_total:
                self.statistics.record(seen.name if seen else UNKNOWN, late)
            self._log(late, computed, seen)
        self._schedule()

    def _log(self, late: float, computed: float, seen: Observation | None) -> None:
        now = self._clock()
        if now - self._logged_at <= QUIET_SECONDS:
            return
        self._logged_at = now
        reason = stated_reason(seen) if seen else ""
        logger.log(
            logging.INFO if reason else logging.WARNING,
            "the event loop was blocked for %d ms (%d ms of computing) by %s%s%s",
            late * 1000,
            computed * 1000,
            seen.name if seen else UNKNOWN,
            f" ({reason})" if reason else "",
            f", seen at {seen.stack}" if seen and seen.stack else "",
        )

    def _watch(self) -> None:
        """The watchdog thread."""
        while not self._stopped.wait(BEAT_SECONDS):
            if self._clock() - self._due_at > STALL_SECONDS and self._seen is None:
                self._seen = self._what_runs()

    def _what_runs(self) -> Observation:
        frame: FrameType | None = sys._current_frames().get(self._loop_thread_id)
        stack: list[str] = []
        place = ""
        while frame is not None and len(stack) < DEEPEST_STACK:
            module = frame.f_globals.get("__name__", "")
            if module in BASES:
                break
            if module.split(".", 1)[0] == OUR_PACKAGE:
                where = f"{module}.{frame.f_code.co_qualname}"
                place = place or where
                stack.append(f"{where}:{frame.f_lineno}")
            frame = frame.f_back
        task = asyncio.current_task(self._loop)
        name = place or UNKNOWN
        return Observation(
            name if task is None else f"{task.get_name()}: {name}", " < ".join(stack)
        )


def stated_reason(seen: Observation) -> str:
    """Why what was seen may block the loop; empty when it may not."""
    for place in [seen.name.rpartition(": ")[2], *seen.stack.split(" < ")]:
        for prefix, reason in STATED_PLACES.items():
            if place.startswith(prefix):
                return reason
    return ""
