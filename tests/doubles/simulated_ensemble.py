"""The ZooKeeper of the simulated cluster on a real event loop, for the stores' contract tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, cast

from ottla.controller.tree.store import ZnodeStore
from tests.simulation.cluster.loop import Process, SimulatedLoop
from tests.simulation.cluster.zookeeper import Ensemble, Session


class _LoopOfTest:
    """What sessions use of the simulated loop, on the loop that runs."""

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def call_at(
        self, when: float, callback: Callable[[], Any], *, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_at(when, callback, context=context)

    def call_later(
        self, delay: float, callback: Callable[[], Any], *, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay, callback, context=context)


class SimulatedEnsemble:
    """Sessions with delays, and events in ZooKeeper's order."""

    def __init__(self) -> None:
        self._ensemble = Ensemble(cast("SimulatedLoop", _LoopOfTest()), seed=1)
        self._opened: list[Session] = []

    async def open(self) -> ZnodeStore:
        session = self._ensemble.session(Process(f"session {len(self._opened)}"))
        self._opened.append(session)
        await session.connect()
        return session

    async def expire(self, store: ZnodeStore) -> None:
        assert isinstance(store, Session)
        store.expire()

    async def close(self) -> None:
        for session in self._opened:
            await session.close()
