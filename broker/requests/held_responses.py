"""Small responses that are held back for a moment and then sent one right after the other.

If the broker computes between two sends, the kernel wakes the client once per response. Sent
together, they wake it once: with 50 connections both processes take less time a request.
"""

from __future__ import annotations

from collections.abc import Callable

# Responses that are sent at once; more gain little.
MAX_HELD = 16
# The longest wait of the first one, beside the request that is being handled then.
MAX_HELD_SECONDS = 0.0005

Flush = Callable[[], None]


class HeldResponses:
    """Responses may be held while `is_open`, which a turn sets, until `end`. Loop thread only."""

    __slots__ = ("_since", "expects_more", "flushes", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        #: Another response probably follows before `end`, so that this one may be held.
        self.expects_more = False
        self.flushes: list[Flush] = []
        self._since = 0.0

    def add(self, flush: Flush, now: float) -> None:
        """Call `flush` at the end, or when the caller finds that it is due; `now` is in monotonic
        seconds."""
        flushes = self.flushes
        if not flushes:
            self._since = now
        flushes.append(flush)

    def is_due(self, now: float) -> bool:
        """Whether there are enough, or the first one has waited long enough."""
        count = len(self.flushes)
        return count >= MAX_HELD or (count > 0 and now - self._since > MAX_HELD_SECONDS)

    def end(self) -> None:
        """Hold no more, and send those that are held."""
        self.is_open = self.expects_more = False
        if self.flushes:
            self.flush()

    def flush(self) -> None:
        """Send what is held now."""
        flushes, self.flushes = self.flushes, []
        for flush in flushes:
            flush()

    def run(self, work: Callable[[], None]) -> None:
        """Run a function that sends several responses."""
        if self.is_open:
            work()
            return
        self.is_open = self.expects_more = True
        try:
            work()
        finally:
            self.end()
