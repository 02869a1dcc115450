"""How well the event loop kept up lately: its last lag, and its longest blocked turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

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
