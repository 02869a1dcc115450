"""A znode tree in memory for consumers of Kafka 0.8: sessions, ephemeral nodes and watches."""

from __future__ import annotations

from collections.abc import Callable


class MemoryZooKeeper:
    """What all sessions share."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.owners: dict[str, MemoryTree] = {}
        self.watches: list[tuple[str, MemoryTree, Callable[[], None]]] = []

    def session(self) -> MemoryTree:
        return MemoryTree(self)

    def put(self, path: str, data: bytes) -> None:
        """An administrator writes a node."""
        self.nodes[path] = data
        self.changed(path)

    def remove(self, path: str) -> None:
        self.nodes.pop(path, None)
        self.owners.pop(path, None)
        self.changed(path)

    def changed(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        for watched, session, callback in list(self.watches):
            if watched in (path, parent) and not session.is_closed:
                callback()


class MemoryTree:
    """One session; satisfies `ottla.cli.zookeeper_tree.Tree`."""

    def __init__(self, zookeeper: MemoryZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._on_new_session: list[Callable[[], None]] = []
        self.is_closed = False

    def get(self, path: str) -> bytes | None:
        return self._zookeeper.nodes.get(path)

    def children(self, path: str) -> list[str]:
        prefix = path + "/"
        return sorted(
            {
                name[len(prefix) :].partition("/")[0]
                for name in self._zookeeper.nodes
                if name.startswith(prefix)
            }
        )

    def set(self, path: str, data: bytes) -> None:
        self._zookeeper.put(path, data)

    def claim(self, path: str, data: bytes) -> bool:
        if path in self._zookeeper.nodes:
            return False
        self._zookeeper.owners[path] = self
        self._zookeeper.put(path, data)
        return True

    def delete(self, path: str) -> None:
        if path in self._zookeeper.nodes:
            self._zookeeper.remove(path)

    def watch(self, path: str, on_change: Callable[[], None]) -> None:
        self._zookeeper.watches.append((path, self, on_change))

    def on_new_session(self, callback: Callable[[], None]) -> None:
        self._on_new_session.append(callback)

    def expire(self) -> None:
        """The session is lost, and a new one begins."""
        for path in [p for p, owner in self._zookeeper.owners.items() if owner is self]:
            self._zookeeper.remove(path)
        for callback in self._on_new_session:
            callback()

    def close(self) -> None:
        """The process is gone."""
        self._on_new_session.clear()
        self.expire()
        self.is_closed = True
