"""The znode tree as a ZooKeeper consumer of Kafka 0.8 uses it, and kazoo behind it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ottla.cli.output import Failure

if TYPE_CHECKING:
    from kazoo.client import KazooClient

CONNECT_TIMEOUT_SECONDS = 10.0


class Tree(Protocol):
    """What a consumer needs. Watches stay until the tree is closed; they may come from any
    thread, and must do no more than take note."""

    def get(self, path: str) -> bytes | None:
        """The data of a node, None when there is none."""
        ...

    def children(self, path: str) -> list[str]:
        """The names below a node; none when it is not there."""
        ...

    def set(self, path: str, data: bytes) -> None:
        """Write a node that stays, with whatever is missing above it."""
        ...

    def claim(self, path: str, data: bytes) -> bool:
        """Make a node that goes away with this session; false when somebody has made it."""
        ...

    def delete(self, path: str) -> None:
        """Remove a node; it may be gone already."""
        ...

    def watch(self, path: str, on_change: Callable[[], None]) -> None:
        """Call whenever the data or the children of a node change, come or go."""
        ...

    def on_new_session(self, callback: Callable[[], None]) -> None:
        """Call when the session was lost with all its nodes, and there is a new one."""
        ...

    def close(self) -> None: ...


class KazooTree:
    """A real ZooKeeper. `hosts` is a connect string, with a chroot if there is one."""

    def __init__(self, hosts: str, session_timeout_ms: int = 6_000) -> None:
        from kazoo.client import KazooClient

        self._client: KazooClient = KazooClient(hosts, timeout=session_timeout_ms / 1000)
        self._was_lost = False
        self._callbacks: list[Callable[[], None]] = []
        self._client.add_listener(self._on_state)
        try:
            self._client.start(CONNECT_TIMEOUT_SECONDS)
        except Exception as problem:
            self._client.stop()
            self._client.close()
            raise Failure(f"ZooKeeper at {hosts} does not answer: {problem}") from None

    def _on_state(self, state: str) -> None:
        if state == "LOST":
            self._was_lost = True
        elif state == "CONNECTED" and self._was_lost:
            self._was_lost = False
            for callback in self._callbacks:
                callback()

    def get(self, path: str) -> bytes | None:
        from kazoo.exceptions import NoNodeError

        try:
            data: bytes = self._client.retry(self._client.get, path)[0]
        except NoNodeError:
            return None
        return data

    def children(self, path: str) -> list[str]:
        from kazoo.exceptions import NoNodeError

        try:
            return list(self._client.retry(self._client.get_children, path))
        except NoNodeError:
            return []

    def set(self, path: str, data: bytes) -> None:
        from kazoo.exceptions import NoNodeError

        try:
            self._client.retry(self._client.set, path, data)
        except NoNodeError:
            self._client.retry(self._client.create, path, data, makepath=True)

    def claim(self, path: str, data: bytes) -> bool:
        from kazoo.exceptions import NodeExistsError

        try:
            self._client.retry(self._client.create, path, data, ephemeral=True, makepath=True)
        except NodeExistsError:
            return self.get(path) == data  # ours, when the first answer was lost
        return True

    def delete(self, path: str) -> None:
        from kazoo.exceptions import NoNodeError

        with suppress(NoNodeError):
            self._client.retry(self._client.delete, path)

    def watch(self, path: str, on_change: Callable[[], None]) -> None:
        def changed(*_: object) -> None:
            on_change()

        self._client.DataWatch(path, changed)
        if self._client.exists(path):
            self._client.ChildrenWatch(path, changed)

    def on_new_session(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        self._client.stop()
        self._client.close()
