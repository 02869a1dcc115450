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
