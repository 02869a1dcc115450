"""A limit of bytes a second for copies to the remote storage, shared by all threads that copy."""

from __future__ import annotations

import threading
from collections.abc import Callable


class RateLimit:
    """`clock` returns seconds that only grow, `sleep` waits for a number of seconds. Storage has no
    clock of its own."""

    def __init__(
        self, bytes_per_second: int, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    def acquire(self, size: int) -> None:
        """Returns when the bytes before these have had their time. The first part is free, so a
        part of a copy waits for at most its share of the limit."""
        with self._lock:
            now = self._clock()
            wait_seconds = max(0.0, self._free_at - now)
            self._free_at = max(self._free_at, now) + size / self._bytes_per_second
        if wait_seconds > 0:
            self._sleep(wait_seconds)
