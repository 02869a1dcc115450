"""A znode store whose every call waits for the scheduler, and may lose its connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.embedded_tree import EmbeddedTree
from ottla.controller.tree.store import (
    ANY_VERSION,
    ConnectionLost,
    Op,
    OpResult,
    SessionCallback,
    Stat,
    StoreError,
    WatchCallback,
    WatchEvent,
    WatchHandle,
)


class PendingCall:
    """``release`` lets the call continue; with "lost request" it fails before it is applied, with
    "lost response" after."""

    def __init__(self, is_write: bool) -> None:
        self.is_write = is_write
        self.future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def release(self, fate: str = "") -> None:
        if not self.future.done():
            self.future.set_result(fate)


class SimulatedStore:
    """One broker's session on the shared tree; calls and watch events keep their order."""

    def __init__(self, tree: EmbeddedTree) -> None:
        self.inner = EmbeddedStore(tree=tree)
        self.calls: deque[PendingCall] = deque()
        self.events: deque[tuple[WatchCallback, WatchEvent]] = deque()

    @property
    def session_id(self) -> int:
        return self.inner.session_id

    @property
    def session_timeout_ms(self) -> int:
        return self.inner.session_timeout_ms

    async def _turn(self, *, is_write: bool) -> str:
        call = PendingCall(is_write)
        self.calls.append(call)
        fate = await call.future
        if fate == "lost request":
            raise ConnectionLost("", "simulated: the request was lost")
        return fate

    @staticmethod
    def _response(fate: str) -> None:
        if fate == "lost response":
            raise ConnectionLost("", "simulated: the response was lost")

    async def connect(self) -> None:
        await self.inner.connect()

    async def close(self) -> None:
        await self.inner.close()

    async def get(self, path: str) -> tuple[bytes, Stat]:
        await self._turn(is_write=False)
        return await self.inner.get(path)

    async def exists(self, path: str) -> Stat | None:
        await self._turn(is_write=False)
        return await self.inner.exists(path)

    async def children(self, path: str) -> list[str]:
        await self._turn(is_write=False)
        return await self.inner.children(path)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        if not paths:
            return []
        await self._turn(is_write=False)
        return await self.inner.get_many(paths)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        fate = await self._turn(is_write=True)
        result = await self.inner.set(path, data, version)
        self._response(fate)
        return result

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        fate = await self._turn(is_write=True)
        result = await self.inner.create(
            path, data, ephemeral=ephemeral, sequential=sequential, make_parents=make_parents
        )
        self._response(fate)
        return result

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        fate = await self._turn(is_write=True)
        await self.inner.delete(path, version)
        self._response(fate)

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        fate = await self._turn(is_write=True)
        result = await self.inner.multi(ops)
        self._response(fate)
        return result

    async def multi_many(
        self, batches: Sequence[Sequence[Op]]
    ) -> list[list[OpResult] | StoreError]:
        if not batches:
            return []
        fate = await self._turn(is_write=True)
        result = await self.inner.multi_many(batches)
        self._response(fate)
        return result

    async def watch_data(self, path: str, callback: WatchCallback) -> WatchHandle:
        await self._turn(is_write=False)
        return await self.inner.watch_data(path, self._queued(callback))

    async def watch_data_many(
        self, watches: Sequence[tuple[str, WatchCallback]]
    ) -> list[WatchHandle]:
        if not watches:
            return []
        await self._turn(is_write=False)
        return await self.inner.watch_data_many(
            [(path, self._queued(callback)) for path, callback in watches]
        )

    async def watch_children(self, path: str, callback: WatchCallback) -> WatchHandle:
        await self._turn(is_write=False)
        return await self.inner.watch_children(path, self._queued(callback))

    def _queued(self, callback: WatchCallback) -> WatchCallback:
        return lambda event: self.events.append((callback, event))

    def on_session(self, callback: SessionCallback) -> WatchHandle:
        return self.inner.on_session(callback)
