"""Detects and names work that blocks the event loop.

The loop sets a heartbeat every `BEAT_SECONDS`. A beat that comes too late by more than
`STALL_SECONDS` is a stall. A stall longer than `STALL_SECONDS + BEAT_SECONDS` is always noticed; a
shorter one if a beat was due in its first part. Handlers are timed one by one besides, by the
request channel, so for them every stall is found and named.

A watchdog thread reads what the loop's thread is doing when a beat is overdue: that is the
stall's name in the metrics, and the stack in the log. It runs 20 times a second and does nothing
else (a tenth of a percent of one core).

A process that got no processor for a while looks the same as one that computed or waited for a
disk; so the log line has the time that the loop's thread was computing. If it did not compute, and
no place of ours was seen or it waited for a processor (known on Linux), the cause is outside of the
broker: the line is at DEBUG. If the watchdog stood still, too, the whole process did, by SIGSTOP, a
frozen container or a paused machine: that is no stall of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, thread_time
from types import FrameType
from typing import NamedTuple

from ottla.broker.metrics.statistics import STALL_SECONDS, StallStatistics

logger = logging.getLogger("ottla.loop")

BEAT_SECONDS = 0.05

# One line in the log for this time; the metrics count them all.
QUIET_SECONDS = 10.0

# A whole process that stands still for less may be one that got no processor.
STOOD_STILL_SECONDS = 1.0

# A stall with less computing is due to something else: a disk, or other processes.
COMPUTING_SECONDS = 0.005

UNKNOWN = "unknown"

OUR_PACKAGE = "ottla"

# Where the loop itself is started: a stack that ends there was in no callback.
BASES = (
    "ottla.broker.__main__",
    "ottla.broker.server.process",
    "ottla.broker.testing.embedded",
    "ottla.broker.workers.worker",
)

# Places that may block the loop, with the reason; they are counted, and logged on INFO.
STATED_PLACES = {
    "ottla.protocol.codec": "a version of a message is used for the first time",
    "ottla.broker.server.broker_server": "the broker starts or stops",
}

DEEPEST_STACK = 12


class Observation(NamedTuple):
    """A look at the loop's thread: the work it did, and its stack."""

    name: str
    stack: str


class ProcessorWait:
    """The time that the creating thread waited for a processor: Linux' run delay."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:  # another system, or a kernel without it
            self._fd = -1

    def seconds(self) -> float:
        """Since the thread began; 0 where the system does not tell."""
        if self._fd < 0:
            return 0.0
        try:
            return int(os.pread(self._fd, 128, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def close(self) -> None:
        """Give back the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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
        self._processor_wait: ProcessorWait | None = None
        self._waited_at_beat = 0.0  # seconds for a processor
        self._seen: Observation | None = None  # written by the watchdog, taken by the beat
        self._looked_at = 0.0  # by the watchdog, last
        self._unwatched = 0.0  # its longest time without a look since the last beat
        self._faults_at_beat = 0
        self._logged_at = -QUIET_SECONDS

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread_id = threading.get_ident()
        self._processor_wait = ProcessorWait()
        self._schedule()
        if self._watchdog:
            self._looked_at = self._clock()
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
        if self._processor_wait is not None:
            self._processor_wait.close()
            self._processor_wait = None

    def _schedule(self) -> None:
        assert self._loop is not None
        self._seen_total = self.statistics.total
        self._computed_at_beat = thread_time()
        self._waited_at_beat = self._waited()
        self._faults_at_beat = _major_faults()
        self._unwatched = 0.0
        self._due_at = self._clock() + BEAT_SECONDS
        self._handle = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        late = self._clock() - self._due_at
        seen, self._seen = self._seen, None
        self.health.lag_seconds = max(late, 0.0)
        if late <= STALL_SECONDS:  # as nearly always: what it waited for is not asked for
            self._schedule()
            return
        computed = thread_time() - self._computed_at_beat
        waited = self._waited() - self._waited_at_beat
        if self._stood_still(late, computed + waited):
            logger.info(
                "this process stood still for %.1f s: it was stopped (SIGSTOP), or its container "
                "or its machine was",
                late,
            )
            self.health.lag_seconds = 0.0
        else:
            self.health.blocked(late, computed, seen.name if seen else UNKNOWN)
            if computed > STALL_SECONDS:
                self.statistics.computing += 1
            # A stall that the request channel has counted is not counted again.
            if self.statistics.total == self._seen_total:
                self.statistics.record(seen.name if seen else UNKNOWN, late)
            self._log(late, computed, waited, seen)
        self._schedule()

    def _stood_still(self, late: float, active: float) -> bool:
        """Whether the watchdog was late as well, and the loop's thread neither computed, nor waited
        for a processor, nor for the disk behind a mapped file, which holds all threads."""
        if self._thread is None or late < STOOD_STILL_SECONDS or active > late / 10:
            return False
        unwatched = max(self._unwatched, self._clock() - self._looked_at)
        return unwatched > late * 0.9 and _major_faults() == self._faults_at_beat

    def _waited(self) -> float:
        return 0.0 if self._processor_wait is None else self._processor_wait.seconds()

    def _log(self, late: float, computed: float, waited: float, seen: Observation | None) -> None:
        reason = stated_reason(seen) if seen else ""
        # Without computing it is a disk or the machine, which no change of the broker mends.
        level = logging.INFO if reason or computed < COMPUTING_SECONDS else logging.WARNING
        if computed < COMPUTING_SECONDS and (not (seen and seen.stack) or waited > late / 2):
            level = logging.DEBUG
        else:
            now = self._clock()
            if now - self._logged_at <= QUIET_SECONDS:
                return
            self._logged_at = now
        logger.log(
            level,
            "the event loop was blocked for %d ms (%d ms of computing) by %s%s%s",
            late * 1000,
            computed * 1000,
            seen.name if seen else UNKNOWN,
            f" ({reason})" if reason else "",
            f", seen at {seen.stack}" if seen and seen.stack else "",
        )

    def _watch(self) -> None:
        """The watchdog thread: looks when the beat that is due next would be a stall."""
        wait = BEAT_SECONDS
        while not self._stopped.wait(wait):
            now = self._clock()
            wait = max(self._due_at + STALL_SECONDS - now + 0.001, BEAT_SECONDS)
            self._unwatched = max(self._unwatched, now - self._looked_at)
            self._looked_at = now
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


def _major_faults() -> int:
    """Of this thread: pages of mapped files that were read from a disk."""
    if sys.platform != "linux":
        return 0
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def stated_reason(seen: Observation) -> str:
    """Why what was seen may block the loop; empty when it may not."""
    for place in [seen.name.rpartition(": ")[2], *seen.stack.split(" < ")]:
        for prefix, reason in STATED_PLACES.items():
            if place.startswith(prefix):
                return reason
    return ""


# How far back "lately" is.
WINDOW_SECONDS = 60.0

# Turns that are kept. One gets here if it blocked the loop for more than 50 ms and a heartbeat of
# 50 ms was late because of it, so that there are at most 600 in a window.
MAX_TURNS = 600


class Turn(NamedTuple):
    """A turn of the loop that blocked it. `computed_seconds` is the processor time of the loop's
    thread: the rest was waiting, for a disk or for a processor."""

    at: float
    seconds: float
    computed_seconds: float
    name: str


class LoopHealth:
    """Written by the heartbeat of the loop. Loop only."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._turns: deque[Turn] = deque(maxlen=MAX_TURNS)
        #: By how much the last heartbeat was late.
        self.lag_seconds = 0.0

    def blocked(self, seconds: float, computed_seconds: float, name: str) -> None:
        """A turn of `name` blocked the loop."""
        self._turns.append(Turn(self._clock(), seconds, computed_seconds, name))

    def longest(self) -> Turn | None:
        """The longest turn of the last `WINDOW_SECONDS`, None when none blocked the loop."""
        oldest = self._clock() - WINDOW_SECONDS
        while self._turns and self._turns[0].at < oldest:
            self._turns.popleft()
        return max(self._turns, key=lambda turn: turn.seconds, default=None)
