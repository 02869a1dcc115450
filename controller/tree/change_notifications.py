"""Change notifications: sequential znodes that make all brokers read something again.

A change of a configuration or an ACL creates a znode under a parent that all brokers watch; its
data says what to read again. The znodes stay for a while, for brokers that are disconnected; each
listener deletes the old ones. Mirrors Kafka's `ZkNodeChangeNotificationListener`.

A broker that was disconnected for longer has missed some: the count of children ever created under
the parent shows it, and the broker reads everything. (In Kafka it keeps the old state.)
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache

from ottla.controller.runtime import Cancellable, Runtime
from ottla.controller.tree.store import (
    NoNode,
    Stat,
    StoreError,
    WatchEvent,
    WatchHandle,
    ZnodeStore,
    children_or_empty,
)

logger = logging.getLogger("ottla.controller")

CHANGE_EXPIRATION_MS = 15 * 60 * 1000
"""After this time change notifications are deleted, as in Kafka."""
RETRY_MS = 1_000
"""From a failure of the store to the next attempt to read the changes."""

Announced = list[tuple[str, bytes]]
"""Path and data of new notifications, in the order of their creation."""


class ChangeNotifications:
    """Calls `handle` with the new znodes under each parent, in order, one batch at a time; or
    `read_all`, if some of them were deleted before.

    `start` skips older notifications: read the state after it.
    """

    def __init__(
        self,
        store: ZnodeStore,
        runtime: Runtime,
        parents: Sequence[str],
        handle: Callable[[Announced], Awaitable[None]],
        read_all: Callable[[], Awaitable[None]],
        *,
        name: str,
    ) -> None:
        """`name` is the name of the task and in log lines, such as "config-changes"."""
        self._store = store
        self._runtime = runtime
        self._handle = handle
        self._read_all = read_all
        self._name = name
        self._last = dict.fromkeys(parents, -1)
        # The children that were ever created, up to the last one.
        self._created = dict.fromkeys(parents, 0)
        self._watches: list[WatchHandle] = []
        self._processing: Cancellable | None = None
        self._again = False
        self._stopped = False

    async def start(self) -> None:
        for parent in self._last:
            self._watches.append(await self._store.watch_children(parent, self._on_event))
            created = _created_children(await self._store.exists(parent))
            self._skip(parent, await children_or_empty(self._store, parent), created)

    def stop(self) -> None:
        """Nothing is handled after this, not even what is being read now."""
        self._stopped = True
        for watch in self._watches:
            watch.cancel()
        if self._processing is not None:
            self._processing.cancel()

    def _on_event(self, event: WatchEvent) -> None:
        self._read_again()

    def _read_again(self) -> None:
        self._again = True
        if self._processing is None and not self._stopped:
            self._processing = self._runtime.spawn(self._process_pending(), name=self._name)

    async def _process_pending(self) -> None:
        """One at a time, so that changes stay in order."""
        try:
            while self._again and not self._stopped:
                self._again = False
                for parent in self._last:
                    await self._process_parent(parent)
        except StoreError as error:
            # The watch is set again after a reconnection, but fires for further changes only.
            logger.warning("Failed to read %s, retrying: %s", self._name, error)
            self._runtime.call_later(RETRY_MS, self._read_again)
        finally:
            self._processing = None

    async def _process_parent(self, parent: str) -> None:
        created = _created_children(await self._store.exists(parent))
        names = sorted(await children_or_empty(self._store, parent), key=_number)
        new = [name for name in names if _number(name) > self._last[parent]]
        paths = [f"{parent}/{name}" for name in new]
        nodes = await self._store.get_many(paths)
        # With the count of before the names: later ones are among the new.
        is_complete = 0 <= created - self._created[parent] <= len(new) and None not in nodes
        if is_complete:
            await self._handle(
                [(path, node[0]) for path, node in zip(paths, nodes, strict=True) if node]
            )
            self._created[parent] += len(new)
            if new:
                self._last[parent] = _number(new[-1])
        else:
            # Also if the tree is a restored one, where the numbers start again.
            logger.info("Reading everything: some of %s were deleted unread", self._name)
            await self._read_all()
            self._skip(parent, names, created)
        await self._purge(parent, names)

    def _skip(self, parent: str, names: Sequence[str], created: int) -> None:
        self._last[parent] = max((_number(name) for name in names), default=-1)
        self._created[parent] = created

    async def _purge(self, parent: str, names: list[str]) -> None:
        """Delete the expired notifications."""
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


def _created_children(parent: Stat | None) -> int:
    """`cversion` counts the creations and the deletions of children."""
    return 0 if parent is None else (parent.cversion + parent.children_count) // 2


# Each change reads the names of those before it, of a quarter of an hour.
@lru_cache(maxsize=1 << 14)
def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
