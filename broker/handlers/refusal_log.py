"""One line in words for each refused request, but no flood of lines.

A client in a loop must not fill the log: the same refusal is told once a minute, and there is a
limit for all of them together; what was left out is counted in the next line.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_REMEMBERED = 1_000  # refusals told lately; some 300 kB
SAME_AGAIN_MS = 60_000
MAX_LINES = 50  # in each span of time
SPAN_MS = 10_000
MAX_NAME = 200  # characters of an id shown; a client may send 32 kB


class RefusalLog:
    """The lines of one logger. Loop only."""

    def __init__(self, logger: logging.Logger, now_ms: Callable[[], int]) -> None:
        self._logger = logger
        self._now_ms = now_ms
        self._told: OrderedDict[Hashable, int] = OrderedDict()
        self._span_began_ms = 0
        self._lines = 0
        self._left_out = 0

    def is_new(self, what: Hashable) -> bool:
        """Whether this refusal was not told in the last minute; from now on it was."""
        now_ms = self._now_ms()
        last_ms = self._told.get(what)
        if last_ms is not None and now_ms - last_ms < SAME_AGAIN_MS:
            return False
        self._told[what] = now_ms
        self._told.move_to_end(what)
        if len(self._told) > MAX_REMEMBERED:
            self._told.popitem(last=False)
        return True

    def write(self, line: str) -> None:
        """The line, unless there were too many just now."""
        now_ms = self._now_ms()
        if now_ms - self._span_began_ms >= SPAN_MS:
            if self._left_out:
                self._logger.info("%d refusals of requests were not logged", self._left_out)
            self._span_began_ms, self._lines, self._left_out = now_ms, 0, 0
        if self._lines >= MAX_LINES:
            self._left_out += 1
            return
        self._lines += 1
        self._logger.info("%s", line)


def shortened(text: str) -> str:
    """As much of a name from outside as a line may hold."""
    return text if len(text) <= MAX_NAME else text[:MAX_NAME] + "..."
