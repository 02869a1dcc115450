"""Persistent watches, built on those of ZooKeeper, which fire once.

When a watch fires it is set again before the callback runs: a read in the callback sees all changes
before that, and the new watch fires for all later ones. A lost connection removes all watches
(kazoo does not keep them); after the reconnection each is set again, and its callback runs only if
the znode has changed since.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.controller.tree.store import (
    CHANGED,
    CHILDREN,
    CREATED,
    DELETED,
    REARMED,
    WatchCallback,
    WatchEvent,
)
from ottla.controller.tree.zookeeper_errors import error_from, is_connection_loss

if TYPE_CHECKING:
    from kazoo.client import KazooClient

logger = logging.getLogger("ottla.zookeeper")

_KINDS = {"CREATED": CREATED, "DELETED": DELETED, "CHANGED": CHANGED, "CHILD": CHILDREN}

Done = Callable[[Any], None]
Arm = Callable[[Callable[[], Any], Done], None]
Seen = tuple[int, int] | None
"""(zxid of the last change, zxid of the creation) of the znode or its children, or None."""


class PersistentWatch:
    """`arm` starts a call of kazoo and runs a callback on the loop with its result."""

    def __init__(
        self,
        client: "Callable[[], KazooClient]",
        path: str,
        on_children: bool,
        callback: WatchCallback,
        arm: Arm,
        loop: asyncio.AbstractEventLoop,
        forget: "Callable[[PersistentWatch], None]",
    ) -> None:
        self.client = client
        self.path = path
        self.on_children = on_children
        self.callback = callback
        self._armed: asyncio.Future[None] = loop.create_future()
        self._arm = arm
        self._loop = loop
        self._forget = forget
        self._cancelled = False
        self._known = False
        self._seen: Seen = None
        self._round = 0

    def armed(self) -> "asyncio.Future[None]":
        """Done when the watch is set for the first time; fails if it could not be set."""
        return self._armed

    def cancel(self) -> None:
        self._cancelled = True
        if not self._armed.cancel() and not self._armed.cancelled():
            self._armed.exception()  # retrieved, as there may be no waiter
        self._forget(self)

    def rearm(self, event: WatchEvent | None = None) -> None:
        """Set the watch; then call back with `event`, or if it has changed since."""
        if self._cancelled:
            return
        self._round += 1
        this_round = self._round

        def fired(seen: Any) -> None:  # in a thread of kazoo
            kind = _KINDS.get(str(seen.type))
            if kind is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._on_fired, this_round, kind)

        self._request(fired, this_round, event, children=self.on_children)

    def _request(
        self,
        fired: Callable[[Any], None],
        this_round: int,
        event: WatchEvent | None,
        children: bool,
    ) -> None:
        client, path = self.client(), self.path
        if children:
            self._arm(
                lambda: client.get_children_async(path, watch=fired, include_data=True),
                lambda result: self._on_children(result, fired, this_round, event),
            )
        else:
            self._arm(
                lambda: client.exists_async(path, watch=fired),
                lambda result: self._on_node(result, this_round, event),
            )

    def _on_children(
        self, result: Any, fired: Callable[[Any], None], this_round: int, event: WatchEvent | None
    ) -> None:
        if self._is_old(this_round):
            return
        if result.exception is None:
            _, stat = result.value
            self._on_set((stat.pzxid, stat.czxid), event)
        elif type(result.exception).__name__ == "NoNodeError":
            # Watches its creation; the children are watched after that.
            self._request(fired, this_round, event, children=False)
        else:
            self._failed(result.exception)

    def _on_node(self, result: Any, this_round: int, event: WatchEvent | None) -> None:
        if self._is_old(this_round):
            return
        if result.exception is not None:
            self._failed(result.exception)
        elif result.value is None:
            self._on_set(None, event)
        elif self.on_children:  # created between the two requests
            self.rearm(event)
        else:
            self._on_set((result.value.mzxid, result.value.czxid), event)

    def _is_old(self, this_round: int) -> bool:
        return self._cancelled or this_round != self._round

    def _failed(self, error: BaseException) -> None:
        translated = error_from(error, self.path)
        if not self._armed.done():
            self._armed.set_exception(translated)
        elif not is_connection_loss(error):
            logger.error("Failed to set the watch on %s: %s", self.path, translated)
        # After a lost connection the session sets all watches again.

    def _on_set(self, seen: Seen, event: WatchEvent | None) -> None:
        changed = self._known and seen != self._seen
        self._known = True
        self._seen = seen
        if not self._armed.done():
            self._armed.set_result(None)
        if event is not None:
            self.callback(event)
        elif changed:
            self.callback(WatchEvent(REARMED, self.path))

    def _on_fired(self, this_round: int, kind: str) -> None:
        if not self._is_old(this_round):
            self.rearm(WatchEvent(kind, self.path))
