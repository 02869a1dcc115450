"""Sequential nodes that announce a change to every broker, and how they are followed.

Whoever changes a configuration or an ACL makes a node under a parent that all brokers watch; its
data says what to read again. Nodes stay for a while, so that brokers that are away for a moment
find them, and whoever follows them removes the old ones. Mirrors Kafka's
`ZkNodeChangeNotificationListener`.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

from ottla.controller.runtime import Runtime
from ottla.controller.tree.store import (
    NoNode,
    StoreError,
    WatchEvent,
    WatchHandle,
    ZnodeStore,
    children_or_empty,
)

logger = logging.getLogger("ottla.controller")

CHANGE_EXPIRATION_MS = 15 * 60 * 1000
"""How long change notifications stay; as Kafka."""

Announced = list[tuple[str, bytes]]
"""Path and data of new notifications, in the order they were made."""


class ChangeNotifications:
    """Hands the new nodes under each parent to ``handle``, in order, one batch at a time.

    ``start`` does not replay what happened before: read the state after it.
    """

    def __init__(
        self,
        store: ZnodeStore,
        runtime: Runtime,
        parents: Sequence[str],
        handle: Callable[[Announced], Awaitable[None]],
        *,
        name: str,
    ) -> None:
        """``name`` is that of the task, as people find it in logs: "config-changes"."""
        self._store = store
        self._runtime = runtime
        self._handle = handle
        self._name = name
        self._last = dict.fromkeys(parents, -1)
        self._watches: list[WatchHandle] = []
        self._busy = False
        self._again = False
        self._stopped = False

    async def start(self) -> None:
        for parent in self._last:
            self._watches.append(await self._store.watch_children(parent, self._on_event))
            names = await children_or_empty(self._store, parent)
            self._last[parent] = max((_number(name) for name in names), default=-1)

    def stop(self) -> None:
        self._stopped = True
        for watch in self._watches:
            watch.cancel()

    def _on_event(self, event: WatchEvent) -> None:
        self._again = True
        if not self._busy and not self._stopped:
            self._busy = True
            self._runtime.spawn(self._drain(), name=self._name)

    async def _drain(self) -> None:
        """At most one at a time, so that changes keep their order."""
        try:
            while self._again and not self._stopped:
                self._again = False
                for parent in self._last:
                    await self._follow(parent)
        except StoreError as error:
            # The watch is set again with the next session and fires then.
            logger.warning("%s cannot be read now: %s", self._name, error)
        finally:
            self._busy = False

    async def _follow(self, parent: str) -> None:
        names = sorted(await children_or_empty(self._store, parent), key=_number)
        fresh = [name for name in names if _number(name) > self._last[parent]]
        paths = [f"{parent}/{name}" for name in fresh]
        nodes = await self._store.get_many(paths)
        await self._handle(
            [(path, node[0]) for path, node in zip(paths, nodes, strict=True) if node is not None]
        )
        if fresh:
            self._last[parent] = _number(fresh[-1])
        await self._purge(parent, names)

    async def _purge(self, parent: str, names: list[str]) -> None:
        """Removes notifications that are old enough for everybody to have seen them."""
        horizon = self._runtime.now_ms() - CHANGE_EXPIRATION_MS
        for name in names:
            path = f"{parent}/{name}"
            stat = await self._store.exists(path)
            if stat is None:
                continue
            if stat.ctime_ms > horizon:
                return
            try:
                await self._store.delete(path)
            except NoNode:
                continue


def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
