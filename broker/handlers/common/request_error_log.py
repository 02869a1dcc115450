"""Rate-limited log lines about failed requests.

A client that repeats a request in a loop must not fill the log: the same failure is logged once a
minute, and a limit holds for all of them together. The next line counts those that were suppressed.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_REMEMBERED = 1_000  # failures logged lately; some 300 kB
REPEAT_INTERVAL_MS = 60_000
MAX_LINES = 50  # per window
WINDOW_MS = 10_000
MAX_NAME = 200  # characters of an id in a line; a client may send 32 kB


class RequestErrorLog:
    """The lines of one logger. Loop only."""

    def __init__(self, logger: logging.Logger, now_ms: Callable[[], int]) -> None:
        self._logger = logger
        self._now_ms = now_ms
        self._logged_ms: OrderedDict[Hashable, int] = OrderedDict()
        self._window_start_ms = 0
        self._lines = 0
        self._suppressed = 0

    def is_new(self, failure: Hashable) -> bool:
        """Whether this failure was not logged in the last minute; records it as logged now."""
        now_ms = self._now_ms()
        last_ms = self._logged_ms.get(failure)
        if last_ms is not None and now_ms - last_ms < REPEAT_INTERVAL_MS:
            return False
        self._logged_ms[failure] = now_ms
        self._logged_ms.move_to_end(failure)
        if len(self._logged_ms) > MAX_REMEMBERED:
            self._logged_ms.popitem(last=False)
        return True

    def write(self, line: str) -> None:
        """Logs the line, unless the window has MAX_LINES already."""
        now_ms = self._now_ms()
        if now_ms - self._window_start_ms >= WINDOW_MS:
            if self._suppressed:
                self._logger.info("Suppressed %d log lines about failed requests", self._suppressed)
            self._window_start_ms, self._lines, self._suppressed = now_ms, 0, 0
        if self._lines >= MAX_LINES:
            self._suppressed += 1
            return
        self._lines += 1
        self._logger.info("%s", line)


def shortened(text: str) -> str:
    """A name from a client, cut to what a log line may hold."""
    return text if len(text) <= MAX_NAME else text[:MAX_NAME] + "..."
