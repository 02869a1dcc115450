"""An operation that is delayed until its condition is met or its delay has expired.

Mirrors Kafka's `DelayedOperation`. A subclass defines the condition (`try_complete`), the action
(`on_complete`), and what to do in addition after the delay has expired (`on_expiration`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.broker.purgatory.purgatory import Purgatory
    from ottla.broker.runtime.wheel import TimerTask


class DelayedOperation(ABC):
    """Completed exactly once, in one of two ways:

    A. `try_complete` finds the condition met and calls `force_complete`;
    B. the delay expires: `force_complete`, then `on_expiration`.

    Loop thread only. Nothing here awaits, so no other task runs between a check and the completion;
    only `on_complete` itself can call back.
    """

    __slots__ = ("_completed", "_purgatory", "_timer_task", "_watched_keys", "delay_ms")

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self._completed = False
        # Set by the purgatory while it watches the operation.
        self._purgatory: Purgatory[Any] | None = None
        self._timer_task: TimerTask | None = None
        self._watched_keys = 0

    @property
    def is_completed(self) -> bool:
        return self._completed

    def force_complete(self) -> bool:
        """Completes the operation regardless of the condition; True for the call that did it.

        It counts as completed before `on_complete` runs, so that calls from there cannot complete
        it again.
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

    def expire(self) -> None:
        """The delay has expired (case B); called by the timer."""
        purgatory = self._purgatory
        if self.force_complete():
            if purgatory is not None:
                purgatory.expired_total += 1
            self.on_expiration()

    @abstractmethod
    def try_complete(self) -> bool:
        """Checks the condition; if it is met, returns what `force_complete` returns, else False.

        Called before the operation is watched and whenever one of its keys is checked.
        """

    def try_complete_for(self, key: Hashable) -> bool:
        """As `try_complete`, when the state of `key` has changed since the last check.

        Every change is reported with its key, so an operation with many keys may look at one only.
        """
        return self.try_complete()

    @abstractmethod
    def on_complete(self) -> None:
        """The action of the operation. Called exactly once."""

    def on_expiration(self) -> None:  # noqa: B027 (optional)
        """The delay expired before the condition was met. Called after `on_complete`."""
