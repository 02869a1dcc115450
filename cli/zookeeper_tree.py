"""The znode tree as a ZooKeeper consumer of Kafka 0.8 uses it, implemented with kazoo."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from ottla.cli.output import Failure

if TYPE_CHECKING:
    from kazoo.client import KazooClient

CONNECT_TIMEOUT_SECONDS = 10.0
REQUEST_TIMEOUT_SECONDS = 10.0
_PAUSE_SECONDS = 0.1


class Tree(Protocol):
    """The operations of a consumer. Watches stay until the tree is closed. They are called from any
    thread; callbacks only set a flag."""

    def get(self, path: str) -> bytes | None:
        """The data of a node, None if it does not exist."""
        ...

    def children(self, path: str) -> list[str]:
        """The names of the children of a node; none if it does not exist."""
        ...

    def set(self, path: str, data: bytes) -> None:
        """Writes a persistent node, and creates missing parents."""
        ...

    def claim(self, path: str, data: bytes) -> bool:
        """Creates an ephemeral node; false if another session has created it."""
        ...

    def delete(self, path: str) -> None:
        """Deletes a node if it exists."""
        ...

    def watch(self, path: str, on_change: Callable[[], None]) -> None:
        """Calls `on_change` whenever the data or the children of a node change."""
        ...

    def on_new_session(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when a new session replaces an expired one."""
        ...

    def close(self) -> None: ...


class KazooTree:
    """A ZooKeeper ensemble. `hosts` is a connect string, with an optional chroot."""

    def __init__(self, hosts: str, session_timeout_ms: int = 6_000) -> None:
        from kazoo.client import KazooClient

        self._hosts = hosts
        self._client: KazooClient = KazooClient(hosts, timeout=session_timeout_ms / 1000)
        self._was_lost = False
        self._callbacks: list[Callable[[], None]] = []
        self._client.add_listener(self._on_state)
        try:
            self._client.start(CONNECT_TIMEOUT_SECONDS)
        except Exception as problem:
            self._client.stop()
            self._client.close()
            raise Failure(f"ZooKeeper at {hosts} does not respond: {problem}") from None

    def _on_state(self, state: str) -> None:
        if state == "LOST":
            self._was_lost = True
        elif state == "CONNECTED" and self._was_lost:
            self._was_lost = False
            for callback in self._callbacks:
                callback()

    def _call(self, operation: str, *arguments: object, **options: object) -> Any:
        """Waits for a new connection if there is none; raises Failure after
        REQUEST_TIMEOUT_SECONDS, where kazoo waits without end."""
        from kazoo.exceptions import ConnectionLoss, OperationTimeoutError, SessionExpiredError

        timeout: type[Exception] = self._client.handler.timeout_exception
        deadline = time.monotonic() + REQUEST_TIMEOUT_SECONDS
        while True:
            request = getattr(self._client, f"{operation}_async")(*arguments, **options)
            try:
                return request.get(timeout=max(0.0, deadline - time.monotonic()))
            except (ConnectionLoss, OperationTimeoutError, SessionExpiredError, timeout):
                if time.monotonic() >= deadline:
                    raise Failure(f"ZooKeeper at {self._hosts} does not respond.") from None
            time.sleep(_PAUSE_SECONDS)

    def get(self, path: str) -> bytes | None:
        from kazoo.exceptions import NoNodeError

        try:
            data: bytes = self._call("get", path)[0]
        except NoNodeError:
            return None
        return data

    def children(self, path: str) -> list[str]:
        from kazoo.exceptions import NoNodeError

        try:
            return list(self._call("get_children", path))
        except NoNodeError:
            return []

    def set(self, path: str, data: bytes) -> None:
        from kazoo.exceptions import NoNodeError

        try:
            self._call("set", path, data)
        except NoNodeError:
            self._call("create", path, data, makepath=True)

    def claim(self, path: str, data: bytes) -> bool:
        from kazoo.exceptions import NodeExistsError

        try:
            self._call("create", path, data, ephemeral=True, makepath=True)
        except NodeExistsError:
            return self.get(path) == data  # created by a request whose response was lost
        return True

    def delete(self, path: str) -> None:
        from kazoo.exceptions import NoNodeError

        with suppress(NoNodeError):
            self._call("delete", path)

    def watch(self, path: str, on_change: Callable[[], None]) -> None:
        def changed(*_: object) -> None:
            on_change()

        self._client.DataWatch(path, changed)
        if self._call("exists", path):
            self._client.ChildrenWatch(path, changed)

    def on_new_session(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        self._client.stop()
        self._client.close()
