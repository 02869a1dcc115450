"""The limits of the `MemoryBudget`: shares of the memory that the process may use.

The limit of a container can change while it runs, and what the broker needs for itself grows with
its partitions and groups. So both are measured again and again. After a load has ended, what the
allocator keeps of it is given back to the system.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.broker.requests.memory_budget import MemoryBudget
from ottla.broker.requests.memory_pool import UNLIMITED
from ottla.broker.runtime.memory_limit import memory_limit, resident_bytes
from ottla.broker.runtime.tasks import WorkerPoolClosed

if TYPE_CHECKING:
    from ottla.broker.runtime.tasks import WorkerPool
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.runtime.wheel import TimerTask

logger = logging.getLogger("ottla.memory")

# Sixteenths of the memory that the process may use: the rest is for the broker itself, for objects
# made of what is counted, and for files in memory, without which a disk is slow.
REQUEST_PARTS, RESPONSE_PARTS, RECORD_PARTS, PARTS = 2, 1, 2, 16
# Together they take no more of what the broker leaves free.
FREE_PARTS, FREE_OF = 2, 3

# With less, a request and a batch of a megabyte, which clients send by default, do not get through.
LEAST_REQUEST_BYTES = 4 << 20
LEAST_RESPONSE_BYTES = 2 << 20
LEAST_RECORD_BYTES = 4 << 20

INTERVAL_MS = 1000
# In intervals: reading the limits takes a third of a millisecond.
LIMIT_INTERVALS = 5

# After a load that took so much more than is used now, memory is returned. It takes a worker thread
# some milliseconds, so it is not worth it for less.
TRIM_BYTES = 4 << 20


class Shares:
    """The limits of the pools in bytes, for a process that may use `available` bytes and itself
    takes `own`."""

    __slots__ = ("frame", "records", "requests", "responses")

    def __init__(self, available: int, own: int) -> None:
        parts = REQUEST_PARTS + RESPONSE_PARTS + RECORD_PARTS
        free = max(available - own, 0) * FREE_PARTS // FREE_OF
        unit = min(available // PARTS, free // parts)
        self.requests = max(unit * REQUEST_PARTS, LEAST_REQUEST_BYTES)
        self.responses = max(unit * RESPONSE_PARTS, LEAST_RESPONSE_BYTES)
        self.records = max(unit * RECORD_PARTS, LEAST_RECORD_BYTES)
        #: The longest request. It does not depend on what the broker takes at the moment: what gets
        #: through once must get through always.
        self.frame = max(available * REQUEST_PARTS // PARTS, LEAST_REQUEST_BYTES) * 5 // 16


class MemoryWatch:
    """Sets the limits of a budget from `start` to `stop`. Loop thread only."""

    def __init__(
        self,
        budget: MemoryBudget,
        timer: DelayQueue,
        workers: WorkerPool,
        *,
        request_bytes: int = -1,
        client_bytes: int = -1,
        memory_bytes: int = -1,
        processes: int = 1,
        available: Callable[[], int] = memory_limit,
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], None] | None = None,
    ) -> None:
        """`request_bytes`: queued.max.request.bytes, `client_bytes`:
        ottla.address.request.max.bytes, `memory_bytes`: ottla.memory.max.bytes; not positive for
        what the memory allows. `processes` of this machine share what `available` returns.
        `available` and `resident` return bytes."""
        self.budget = budget
        self.available = 0  # bytes that the process may use
        self.own = 0  # bytes that the broker takes for itself
        self.trims = 0
        self._timer = timer
        self._workers = workers
        self._request_bytes = request_bytes
        self._memory_bytes = memory_bytes
        self._processes = processes
        self._measure_available = available
        self._measure_resident = resident
        self._trim = trim_allocator if trim is None else trim
        self._used_max = 0
        self._intervals = 0
        self._task: TimerTask | None = None
        if client_bytes > 0:
            budget.large.client_limit = budget.quick.client_limit = client_bytes

    def start(self) -> None:
        """Set the limits now and from time to time."""
        self.own = self._measure_resident()
        self.measure()
        logger.info(
            "the broker may use %d MiB of memory: %d MiB for requests, %d MiB for responses that "
            "are not read yet, %d MiB for records that are decompressed or converted",
            self.available >> 20,
            (self.budget.request_limit or UNLIMITED) >> 20,
            (self.budget.responses.limit + self.budget.metadata.limit) >> 20,
            self.budget.records.limit >> 20,
        )
        self._task = self._timer.schedule(INTERVAL_MS, self._look)

    def stop(self) -> None:
        """Leave the limits as they are."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def measure(self) -> None:
        """Set the limits by what the process may use now."""
        available = max(self._measure_available() // self._processes, 1)
        if self._memory_bytes > 0:
            available = min(available, self._memory_bytes)
        self.available = available
        shares = Shares(available, self.own)
        is_set = self._request_bytes > 0
        requests = self._request_bytes if is_set else shares.requests
        self.budget.limit(requests, shares.responses, shares.records)
        self.budget.max_frame_bytes = UNLIMITED if is_set else shares.frame

    def _look(self) -> None:
        try:
            used = self.budget.used
            self._used_max = max(self._used_max, used)
            is_idle = used < TRIM_BYTES
            if is_idle and self._used_max - used > TRIM_BYTES:
                self._used_max = used
                self.trims += 1
                with suppress(WorkerPoolClosed, RuntimeError):  # the broker is stopping
                    self._workers.post(self._trim)
            elif self._intervals % LIMIT_INTERVALS == 0:
                if is_idle:  # else garbage of a load would be taken for the broker's own
                    self.own = self._measure_resident()
                self.measure()
            self._intervals += 1
        finally:
            self._task = self._timer.schedule(INTERVAL_MS, self._look)


def trim_allocator() -> None:
    """Return the allocator's free memory to the system, in all its arenas. In a worker thread: the
    interpreter's lock is free meanwhile. Nothing happens without glibc."""
    from ctypes import CDLL

    with suppress(AttributeError, OSError):
        CDLL(None).malloc_trim(0)
