"""The watches of all clients, with the rules of ZooKeeper's WatchManager.

`getData` and `exists` set a data watch, `getChildren` a child watch; both fire once. A
persistent watch is both and stays; a recursive one also sees the data of all znodes below.

============  ====================================  =========================
change        watches on the znode                  child watches of its parent
============  ====================================  =========================
created       data: NodeCreated                     NodeChildrenChanged
changed       data: NodeDataChanged                 none
deleted       data and child: NodeDeleted, once     NodeChildrenChanged
============  ====================================  =========================
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Generic, TypeVar

from ottla.controller.tree.store import CHANGED, CREATED, parent_of


class EventType(IntEnum):
    NODE_CREATED = 1
    NODE_DELETED = 2
    NODE_DATA_CHANGED = 3
    NODE_CHILDREN_CHANGED = 4


class WatchKind(IntEnum):
    DATA = 0
    CHILDREN = 1
    PERSISTENT = 2
    RECURSIVE = 3


ONE_SHOT = (WatchKind.DATA, WatchKind.CHILDREN)

Watcher = TypeVar("Watcher")


class WatchTable(Generic[Watcher]):
    """`deliver(watcher, event type, path)` is called once per watcher and event."""

    def __init__(self, deliver: Callable[[Watcher, EventType, str], None]) -> None:
        self._deliver = deliver
        # Watchers in the order in which they came.
        self._by_path: dict[WatchKind, dict[str, dict[Watcher, None]]] = {
            kind: {} for kind in WatchKind
        }
        self._of_watcher: dict[Watcher, dict[tuple[WatchKind, str], None]] = {}

    def add(self, kind: WatchKind, path: str, watcher: Watcher) -> None:
        self._by_path[kind].setdefault(path, {})[watcher] = None
        self._of_watcher.setdefault(watcher, {})[kind, path] = None

    def has(self, kinds: Iterable[WatchKind], path: str, watcher: Watcher) -> bool:
        return any(watcher in self._by_path[kind].get(path, ()) for kind in kinds)

    def remove(self, kinds: Iterable[WatchKind], path: str, watcher: Watcher) -> bool:
        """False if there was none."""
        found = False
        for kind in kinds:
            if watcher in self._by_path[kind].get(path, ()):
                self._discard(kind, path, watcher)
                found = True
        return found

    def _discard(self, kind: WatchKind, path: str, watcher: Watcher) -> None:
        watchers = self._by_path[kind][path]
        del watchers[watcher]
        if not watchers:
            del self._by_path[kind][path]
        own = self._of_watcher[watcher]
        del own[kind, path]
        if not own:
            del self._of_watcher[watcher]

    def drop(self, watcher: Watcher) -> None:
        """The connection has ended."""
        for kind, path in list(self._of_watcher.get(watcher, ())):
            self._discard(kind, path, watcher)

    def count(self) -> int:
        return sum(len(own) for own in self._of_watcher.values())

    def paths(self) -> dict[str, list[Watcher]]:
        """The watchers of each watched path, for the four-letter words wchp and wchc."""
        found: dict[str, dict[Watcher, None]] = {}
        for by_path in self._by_path.values():
            for path, watchers in by_path.items():
                found.setdefault(path, {}).update(watchers)
        return {path: list(watchers) for path, watchers in sorted(found.items())}

    def publish(self, events: Sequence[tuple[str, str]]) -> None:
        """Deliver the events of one change, in its order."""
        for kind, path in events:
            if kind == CHANGED:
                self._fire(EventType.NODE_DATA_CHANGED, path, (WatchKind.DATA,))
                continue
            if kind == CREATED:
                self._fire(EventType.NODE_CREATED, path, (WatchKind.DATA,))
            else:
                self._fire(EventType.NODE_DELETED, path, ONE_SHOT)
            if path != "/":
                self._fire_children(parent_of(path))

    def _fire(self, event: EventType, path: str, one_shot: Sequence[WatchKind]) -> None:
        watchers: dict[Watcher, None] = {}
        for kind in one_shot:
            found = self._by_path[kind].get(path, {})
            watchers.update(found)
            for watcher in list(found):
                self._discard(kind, path, watcher)
        watchers.update(self._by_path[WatchKind.PERSISTENT].get(path, {}))
        if self._by_path[WatchKind.RECURSIVE]:
            above = path
            while True:
                watchers.update(self._by_path[WatchKind.RECURSIVE].get(above, {}))
                if above == "/":
                    break
                above = parent_of(above)
        for watcher in watchers:
            self._deliver(watcher, event, path)

    def _fire_children(self, path: str) -> None:
        watchers = dict(self._by_path[WatchKind.CHILDREN].get(path, {}))
        for watcher in list(watchers):
            self._discard(WatchKind.CHILDREN, path, watcher)
        watchers.update(self._by_path[WatchKind.PERSISTENT].get(path, {}))
        for watcher in watchers:
            self._deliver(watcher, EventType.NODE_CHILDREN_CHANGED, path)
