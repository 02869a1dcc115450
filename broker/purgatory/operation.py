"""An operation that waits: for a condition or for its time to run out, whichever is first.

Mirrors Kafka's `DelayedOperation`. A subclass says when it can be done (`try_complete`), what to
do then (`on_complete`), and what to note when it ran out of time (`on_expiration`).
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.broker.runtime.wheel import TimerTask


class WatchingPurgatory(Protocol):
    """What an operation uses of the purgatory that it waits in."""

    expired_total: int

    def leave(self, operation: "DelayedOperation") -> None:
        """The operation is complete and no longer watched."""


class DelayedOperation(ABC):
    """Completes exactly once, by one of two ways:

    A. `try_complete` finds the condition met and calls `force_complete`;
    B. the time is up: `force_complete`, then `on_expiration`.

    Loop thread only. All of it runs without awaiting, so between a check and what follows from it
    nothing else can happen, except what `on_complete` itself sets off.
    """

    __slots__ = ("_completed", "_purgatory", "_timer_task", "_watched_keys", "delay_ms")

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self._completed = False
        # Set by the purgatory while the operation waits in it.
        self._purgatory: WatchingPurgatory | None = None
        self._timer_task: TimerTask | None = None
        self._watched_keys = 0

    @property
    def is_completed(self) -> bool:
        return self._completed

    def force_complete(self) -> bool:
        """Complete now, whatever the condition. Returns True for the one call that did it.

        The operation counts as completed before `on_complete` runs, so that whatever that sets
        off cannot complete it again.
        """
        if self._completed:
            return False
        self._completed = True
        purgatory = self._purgatory
        if purgatory is not None:
            self._purgatory = None
            purgatory.leave(self)
        self.on_complete()
        return True

    def run_out_of_time(self) -> None:
        """Case B. The timer calls it."""
        purgatory = self._purgatory
        if self.force_complete():
            if purgatory is not None:
                purgatory.expired_total += 1
            self.on_expiration()

    @abstractmethod
    def try_complete(self) -> bool:
        """Check the condition; if it is met, return what `force_complete` returns, else False.

        Called when the operation is first offered and whenever one of its keys is checked.
        """

    @abstractmethod
    def on_complete(self) -> None:
        """Do what was waited for. Called exactly once."""

    def on_expiration(self) -> None:  # noqa: B027 (not every operation cares)
        """The time ran out before the condition was met. Called after `on_complete`."""
