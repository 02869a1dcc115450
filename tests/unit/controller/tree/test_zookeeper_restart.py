"""Calls that wait while a client of kazoo's that died is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.controller.tree import zookeeper_session
from ottla.controller.tree.store import SESSION_CONNECTED, SESSION_EXPIRED, CreateOp
from ottla.controller.tree.zookeeper_store import ZooKeeperStore
from tests.doubles.eventually import eventually_async
from tests.doubles.znode_ensembles import ZooKeeperEnsemble
from tests.doubles.zookeeper_process import ZooKeeperProcess

Call = Callable[[ZooKeeperStore], Awaitable[object]]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("/a"),
        lambda store: store.exists("/a"),
        lambda store: store.children("/"),
        lambda store: store.get_many(["/a"]),
        lambda store: store.get_many(["/a", "/a"]),
        lambda store: store.set("/a", b"x"),
        lambda store: store.create("/b"),
        lambda store: store.delete("/a"),
        lambda store: store.multi([CreateOp("/b")]),
        lambda store: store.watch_data("/a", lambda _: None),
    ],
)
async def test_a_call_that_waited_uses_the_new_client(
    ottla_zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """The one that died responds to a call with a lost connection, as if the new one had lost it:
    then no call would be sent any more."""
    monkeypatch.setattr(zookeeper_session, "RESTART_DELAY_SECONDS", 0.1)
    ensemble = ZooKeeperEnsemble(ottla_zookeeper)
    store = await ensemble.open()
    assert isinstance(store, ZooKeeperStore)
    await store.create("/a")
    await store.get_many(["/a", "/a"])  # now it is known whether the server reads many at once
    monkeypatch.setattr(store.session, "_call_timeout_ms", 60_000)
    notified: list[str] = []
    store.on_session(notified.append)
    await asyncio.to_thread(store.session.kazoo().stop)  # as it ends when its thread fails
    await eventually_async(lambda: notified == [SESSION_EXPIRED])
    await call(store)
    assert notified == [SESSION_EXPIRED, SESSION_CONNECTED]
    assert await store.exists("/") is not None
    await ensemble.close()
