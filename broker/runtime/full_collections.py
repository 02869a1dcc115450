"""Holds back full runs of the garbage collector while work with very many objects is in progress.

A full run reads every object and holds the interpreter meanwhile: 25 to 45 ms with those of one
request of 50,000 elements. Short runs, of young objects, go on.
"""

import gc
from collections.abc import Callable
from time import monotonic

# Full runs are held back for this time at the most, so that garbage of others is found.
HOLD_SECONDS = 10.0
# After that they are not, for this time.
GAP_SECONDS = 1.0
# A number of young collections that is not reached.
_NEVER = 1_000_000


class FullCollections:
    """Counts those that hold full runs back. Loop thread only; one of them in a process."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._thresholds: tuple[int, int, int] | None = None  # while they are held back
        self._holders = 0
        self._changed_at = -GAP_SECONDS

    def hold(self) -> None:
        """Work begins; each call is followed by one of `release`."""
        self._holders += 1
        now = self._clock()
        if self._thresholds is None:
            if now - self._changed_at >= GAP_SECONDS:
                self._thresholds = gc.get_threshold()
                gc.set_threshold(self._thresholds[0], self._thresholds[1], _NEVER)
                self._changed_at = now
        elif now - self._changed_at > HOLD_SECONDS:
            self._allow()

    def release(self) -> None:
        """Work is done; after the last one full runs are possible at once."""
        self._holders -= 1
        if not self._holders:
            self._allow()
            self._changed_at = self._clock() - GAP_SECONDS

    def _allow(self) -> None:
        if self._thresholds is not None:
            gc.set_threshold(*self._thresholds)
            self._thresholds = None
            self._changed_at = self._clock()
