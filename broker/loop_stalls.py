"""Notices when something holds up the event loop, and finds out what.

The loop sets a heartbeat every `BEAT_SECONDS`. A beat that comes too late by more than
`STALL_SECONDS` is a stall. A stall longer than `STALL_SECONDS + BEAT_SECONDS` is always noticed; a
shorter one if a beat was due in its first part. Handlers are timed one by one besides, by the
request channel, so for them every stall is found and named.

A watchdog thread looks at what the loop's thread is doing when a beat is overdue: that is the
stall's name in the metrics and in the log. It wakes 20 times a second and does nothing else.
"""

import asyncio
import logging
import sys
import threading
from time import monotonic
from types import FrameType

from broker.metrics import STALL_SECONDS, StallStatistics

logger = logging.getLogger("ottla.loop")

BEAT_SECONDS = 0.05

# One line in the log for this time; the metrics count them all.
QUIET_SECONDS = 10.0

UNKNOWN = "unknown"


class StallMonitor:
    """Watches the loop that `start` is called on."""

    def __init__(self, statistics: StallStatistics, *, watchdog: bool = True) -> None:
        self.statistics = statistics
        self._watchdog = watchdog
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        self._loop_thread_id = 0
        self._stopped = threading.Event()
        self._due_at = 0.0  # when the next beat is due
        self._seen_total = 0
        self._seen_running: str | None = None  # written by the watchdog, taken by the beat
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
        self._due_at = monotonic() + BEAT_SECONDS
        self._handle = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        late = monotonic() - self._due_at
        running, self._seen_running = self._seen_running, None
        # A stall that the request channel has counted is not counted again.
        if late > STALL_SECONDS and self.statistics.total == self._seen_total:
            name = running or UNKNOWN
            self.statistics.record(name, late)
            now = monotonic()
            if now - self._logged_at > QUIET_SECONDS:
                self._logged_at = now
                logger.warning("the event loop was held up for %d ms by %s", late * 1000, name)
        self._schedule()

    def _watch(self) -> None:
        """The watchdog thread."""
        while not self._stopped.wait(BEAT_SECONDS):
            if monotonic() - self._due_at > STALL_SECONDS and self._seen_running is None:
                self._seen_running = self._what_runs()

    def _what_runs(self) -> str:
        frame: FrameType | None = sys._current_frames().get(self._loop_thread_id)
        place = UNKNOWN
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.split(".", 1)[0] in OUR_PACKAGES:
                place = f"{module}.{frame.f_code.co_qualname}"
                break
            frame = frame.f_back
        task = asyncio.current_task(self._loop)
        return place if task is None else f"{task.get_name()}: {place}"


OUR_PACKAGES = ("broker", "storage", "protocol", "controller")
