"""A simulated ZooKeeper: one tree, a session for each broker, with delays and lost connections.

Calls and watch events of a session keep their order. A broker that is cut off gets ConnectionLost
for its calls, with the outcome unknown, and its session ends when the session timeout is over.
Payloads above ZooKeeper's 1 MB limit are refused as there: the connection is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, TypeVar

from ottla.controller.tree import znodes
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
from tests.simulation.cluster.loop import Process, SimulatedLoop

SESSION_TIMEOUT_SECONDS = 6.0
CALL_TIMEOUT_SECONDS = 6.0
MAX_BYTES = 1 << 20
DELAY_SECONDS = (0.0003, 0.008)

Result = TypeVar("Result")


class Ensemble:
    """What all sessions share."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.loop = loop
        self.random = Random(f"zookeeper {seed}")
        self.tree = EmbeddedTree(lambda: 1_700_000_000_000 + int(loop.now * 1000))
        #: One in so many calls loses its connection; 0 for none.
        self.lost_one_in = 0
        self.sessions: list[Session] = []

    def session(self, process: Process) -> Session:
        session = Session(self, process)
        self.sessions.append(session)
        return session

    def session_of(self, process: Process) -> Session | None:
        found = [each for each in self.sessions if each.process is process]
        return found[-1] if found else None

    def has_topic(self, topic: str) -> bool:
        return znodes.topic_path(topic) in self.tree.nodes


class Session:
    """A `ZnodeStore` for one broker process."""

    def __init__(self, ensemble: Ensemble, process: Process) -> None:
        self._ensemble = ensemble
        self.process = process
        self.inner = EmbeddedStore(tree=ensemble.tree)
        # Events are put in order and delayed below, in the context of this broker.
        self.inner.call_soon = lambda callback, event: callback(event)  # type: ignore[method-assign]
        self._last_at = 0.0
        self.is_cut = self.refuses = False
        #: One in so many calls of this session loses its connection; 0 for as many as of all.
        self.lost_one_in = 0
        self._expired_unseen = False
        self._throttled_path = ""
        self._unreadable_path = ""
        self._after_write: tuple[str, Callable[[], None]] | None = None
        #: How many writes were refused since `throttle`.
        self.throttled = 0

    @property
    def session_id(self) -> int:
        return self.inner.session_id

    @property
    def session_timeout_ms(self) -> int:
        return int(SESSION_TIMEOUT_SECONDS * 1000)

    # Troubles

    def cut(self, *, refuses: bool = False, expires: bool = True) -> None:
        """The broker loses the ensemble; its session ends unless `heal` comes in time, or not at
        all without `expires`, as that of a server that stands still.

        Calls wait for the connection until their deadline, or fail at once with `refuses`.
        """
        if self.is_cut or self.process.dead:
            return
        self.is_cut, self.refuses = True, refuses
        session_id = self.inner.session_id
        loop = self._ensemble.loop

        def expire() -> None:
            if self.is_cut and not self.process.dead and self.inner.session_id == session_id:
                self.inner.lose_session()
                self._expired_unseen = True

        if expires:
            loop.call_later(SESSION_TIMEOUT_SECONDS, expire, context=Process("ensemble").context)

    def throttle(self, path: str) -> None:
        """ZooKeeper refuses the writes of one znode (ThrottledOp); of none for "".

        Of pipelined writes the others succeed.
        """
        self._throttled_path, self.throttled = path, 0

    def refuse_reads(self, path: str) -> None:
        """ZooKeeper refuses to read the znodes below a path (ThrottledOp); none for ""."""
        self._unreadable_path = path

    def after_write(self, path: str, callback: Callable[[], None]) -> None:
        """Calls back once, when a write of this znode is applied and its response not sent yet."""
        self._after_write = path, callback

    def _written(self, ops: Sequence[Op]) -> None:
        if self._after_write is None:
            return
        path, callback = self._after_write
        if any(getattr(op, "path", "") == path for op in ops):
            self._after_write = None
            callback()

    def _check_readable(self, paths: Sequence[str]) -> None:
        refused = self._unreadable_path
        if refused and any(each.startswith(f"{refused}/") for each in paths):
            raise StoreError(refused, "simulated: throttled")

    def heal(self) -> None:
        if self.is_cut:
            self.is_cut = False
            if self._expired_unseen:
                self._expired_unseen = False
                self.expire()

    def expire(self) -> None:
        """The session ends and the broker learns of it."""
        if not self.process.dead and self.inner.session_id:
            self.process.context.copy().run(self.inner.expire_session)

    def died(self, *, at_once: bool) -> None:
        """The process is gone: its session ends, at the latest with the session timeout."""
        session_id = self.inner.session_id
        if not session_id:
            return
        delay = 0.0 if at_once else self._ensemble.random.uniform(0.1, SESSION_TIMEOUT_SECONDS)
        tree = self._ensemble.tree
        self._ensemble.loop.call_later(
            delay, lambda: tree.end_session(session_id), context=Process("ensemble").context
        )

    # Calls

    async def _delay(self) -> None:
        loop = self._ensemble.loop
        at = max(self._last_at, loop.now + self._ensemble.random.uniform(*DELAY_SECONDS))
        self._last_at = at
        await asyncio.sleep(max(0.0, at - loop.now))

    async def _call(self, operation: Callable[[], Awaitable[Result]], *, write: bool) -> Result:
        ensemble = self._ensemble
        await self._delay()
        fate, lost_one_in = "", self.lost_one_in or ensemble.lost_one_in
        if lost_one_in and ensemble.random.randrange(lost_one_in) == 0:
            fate = ensemble.random.choice(["request", "response"])
        deadline = ensemble.loop.now + CALL_TIMEOUT_SECONDS
        while self.is_cut:
            if ensemble.loop.now > deadline or self.refuses:
                raise ConnectionLost("", "simulated: no connection to the ensemble")
            await asyncio.sleep(0.1)
        if fate == "request":
            raise ConnectionLost("", "simulated: the request was lost")
        result = await operation()
        await self._delay()
        if fate == "response" and write:
            raise ConnectionLost("", "simulated: the response was lost")
        return result

    async def connect(self) -> None:
        await self._delay()
        await self.inner.connect()

    async def close(self) -> None:
        await self.inner.close()

    async def get(self, path: str) -> tuple[bytes, Stat]:
        self._check_readable([path])
        return await self._call(lambda: self.inner.get(path), write=False)

    async def exists(self, path: str) -> Stat | None:
        return await self._call(lambda: self.inner.exists(path), write=False)

    async def children(self, path: str) -> list[str]:
        return await self._call(lambda: self.inner.children(path), write=False)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        if not paths:
            return []
        self._check_readable(paths)
        return await self._call(lambda: self.inner.get_many(paths), write=False)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        _check_size(data)
        return await self._call(lambda: self.inner.set(path, data, version), write=True)

    async def create(self, path: str, data: bytes = b"", **options: Any) -> str:
        _check_size(data)
        return await self._call(lambda: self.inner.create(path, data, **options), write=True)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        return await self._call(lambda: self.inner.delete(path, version), write=True)

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        _check_size(b"".join(getattr(op, "data", b"") for op in ops))

        async def apply() -> list[OpResult]:
            results = await self.inner.multi(ops)
            self._written(ops)
            return results

        return await self._call(apply, write=True)

    async def multi_many(
        self, batches: Sequence[Sequence[Op]]
    ) -> list[list[OpResult] | StoreError]:
        if not batches:
            return []
        for ops in batches:
            _check_size(b"".join(getattr(op, "data", b"") for op in ops))
        accepted = [ops for ops in batches if not self._is_throttled(ops)]

        async def apply() -> list[list[OpResult] | StoreError]:
            applied = await self.inner.multi_many(accepted)
            for ops in accepted:
                self._written(ops)
            return applied

        results = await self._call(apply, write=True)
        if len(accepted) == len(batches):
            return results
        self.throttled += len(batches) - len(accepted)
        found = iter(results)
        refusal = StoreError(self._throttled_path, "simulated: throttled")
        return [refusal if self._is_throttled(ops) else next(found) for ops in batches]

    def _is_throttled(self, ops: Sequence[Op]) -> bool:
        return bool(self._throttled_path) and any(
            getattr(op, "path", "") == self._throttled_path for op in ops
        )

    async def watch_data(self, path: str, callback: WatchCallback) -> WatchHandle:
        queued = self._queued(callback)
        return await self._call(lambda: self.inner.watch_data(path, queued), write=False)

    async def watch_data_many(
        self, watches: Sequence[tuple[str, WatchCallback]]
    ) -> list[WatchHandle]:
        if not watches:
            return []
        queued = [(path, self._queued(callback)) for path, callback in watches]
        return await self._call(lambda: self.inner.watch_data_many(queued), write=False)

    async def watch_children(self, path: str, callback: WatchCallback) -> WatchHandle:
        queued = self._queued(callback)
        return await self._call(lambda: self.inner.watch_children(path, queued), write=False)

    def on_session(self, callback: SessionCallback) -> WatchHandle:
        return self.inner.on_session(callback)

    def _queued(self, callback: WatchCallback) -> WatchCallback:
        """Events come after a delay, in order with everything else of this session."""

        def later(event: WatchEvent) -> None:
            loop = self._ensemble.loop
            at = max(self._last_at, loop.now + self._ensemble.random.uniform(*DELAY_SECONDS))
            self._last_at = at
            self._deliver(at, callback, event)

        return later

    def _deliver(self, at: float, callback: WatchCallback, event: WatchEvent) -> None:
        loop = self._ensemble.loop

        def run() -> None:
            if self.is_cut:
                self._deliver(loop.now + 0.1, callback, event)
            else:
                callback(event)

        loop.call_at(at, run, context=self.process.context)


def _check_size(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise ConnectionLost("", f"simulated: {len(data)} bytes are more than jute.maxbuffer")
