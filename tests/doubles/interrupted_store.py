"""A znode store that fails at one of its calls, chosen by number, or at none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import ConnectionLost

BEFORE, AFTER, CANCEL = "not done", "done", "cancel"
CALLS = (
    *("get", "exists", "set", "create", "delete", "children", "get_many", "multi"),
    *("watch_data", "watch_children"),
)


class InterruptedStore:
    """A session on the tree of `inner`.

    The call with the number `at` (from 1) loses its connection, after it was applied or without.
    With `CANCEL` it is applied, and the task that waits for it is cancelled.
    """

    def __init__(self, inner: EmbeddedStore) -> None:
        self.inner = inner
        self.at = 0
        self.how = BEFORE
        self.calls = 0

    def interrupt(self, at: int, how: str) -> None:
        self.at, self.how, self.calls = at, how, 0

    @property
    def is_past(self) -> bool:
        """Whether there was such a call."""
        return 0 < self.at <= self.calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._interrupted(found) if name in CALLS else found

    def _interrupted(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Any]:
        async def interrupted(*given: Any, **options: Any) -> object:
            self.calls += 1
            is_now = self.calls == self.at
            if is_now and self.how == BEFORE:
                raise ConnectionLost("", "not done")
            result = await call(*given, **options)
            if is_now and self.how == CANCEL:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            if is_now and self.how == AFTER:
                raise ConnectionLost("", "done")
            return result

        return interrupted
