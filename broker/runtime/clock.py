"""Time, as the broker sees it.

Two clocks with two purposes. The wall clock stamps records, commits and znodes; it may jump when
an operator or NTP sets it. The monotonic clock measures delays and never goes back. Code that
waits takes a `Clock`, so that a test can drive it by hand.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The time. Both methods are cheap and never block."""

    def now_ms(self) -> int:
        """Wall clock: milliseconds since 1970-01-01 UTC. May jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is advanced. For tests and simulations."""

    __slots__ = ("_elapsed_ms", "_wall_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def advance(self, milliseconds: int) -> None:
        """Move both clocks forward."""
        if milliseconds < 0:
            raise ValueError("a clock only goes forward; set_wall_ms moves the wall clock back")
        self._wall_ms += milliseconds
        self._elapsed_ms += milliseconds

    def set_wall_ms(self, now_ms: int) -> None:
        """Jump the wall clock, as an operator or NTP may; the monotonic clock stays."""
        self._wall_ms = now_ms
