"""Listeners that follow the settings; tests/integration/test_dynamic_listeners.py has clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.workers import WorkerPlace
from ottla.broker.net.server import NetworkServer
from ottla.broker.requests.request_channel import RequestChannel
from ottla.broker.runtime.tasks import WorkerPool, running_tasks
from ottla.broker.runtime.timer import Timer
from ottla.broker.security.tls.late_tls import LateTls
from ottla.broker.server.open_listeners import OpenListeners
from ottla.broker.server.quota_limits import build_quotas
from ottla.controller.model import BrokerInfo
from ottla.controller.registration import BrokerRegistration, create_persistent_paths
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import Stat, StoreError, ZnodeStore
from tests.doubles.eventually import eventually_async
from tests.doubles.interrupted_store import AFTER, BEFORE, CANCEL, InterruptedStore

PLAIN = "PLAINTEXT://127.0.0.1:0"
MAP = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTER:PLAINTEXT"}


class Scene:
    """Broker 1 with one listener, registered."""

    async def start(self) -> Scene:
        self.config = BrokerConfig({"listeners": PLAIN, **MAP})
        self.store = EmbeddedStore()
        await self.store.connect()
        await create_persistent_paths(self.store)
        self.timer, self.workers = Timer(), WorkerPool(threads=1)
        channel = RequestChannel([], cast("Any", None))
        self.server = NetworkServer(channel, self.timer, self.workers)
        self.faults = InterruptedStore(self.store)
        store = cast("ZnodeStore", self.faults)
        self.registration = BrokerRegistration(store, BrokerInfo(1, (), None), lambda: 0)
        self.endpoints = SimpleNamespace(wildcard_listeners=frozenset(), container=None)
        self.listeners = OpenListeners(
            self.config,
            1,
            self.timer,
            LateTls(self.config),
            build_quotas(self.config),
            self.server,
            cast("Any", self.endpoints),
            self.registration,
            lambda: pytest.fail("there is no SASL listener"),
        )
        self.listeners.open_all()
        await self.registration.register()
        self.server.start()
        return self

    def change(self, **settings: str) -> None:
        given = {name.replace("_", "."): text for name, text in settings.items()}
        self.config.update_dynamic({}, given)
        self.listeners.changed()

    async def applied(self) -> None:
        """Returns when no change is being applied."""
        for task in running_tasks():
            if task.get_name() == "listeners":
                await asyncio.gather(task, return_exceptions=True)

    async def registered(self) -> dict[str, int]:
        data, _ = await self.store.get(znodes.broker_path(1))
        found = znodes.decode_broker(1, data, 0)
        return {each.listener_name: each.port for each in found.endpoints}

    async def stop(self) -> None:
        self.listeners.stop()
        self.server.close()
        self.timer.close()
        await self.workers.close()
        await self.store.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = await Scene().start()
    yield made
    await made.stop()


async def test_changes_that_come_together_end_with_the_last(scene: Scene) -> None:
    first = scene.listeners.ports["PLAINTEXT"]
    scene.change(listeners=f"{PLAIN},OUTER://127.0.0.1:0")
    scene.change(listeners=PLAIN)
    scene.change(listeners=f"{PLAIN},OUTER://:0")
    await eventually_async(lambda: "OUTER" in scene.listeners.ports)
    await eventually_async(lambda: len(scene.registration.info.endpoints) == 2)
    assert scene.listeners.ports["PLAINTEXT"] == first
    assert scene.endpoints.wildcard_listeners == {"OUTER"}
    assert await scene.registered() == scene.listeners.ports


async def test_a_listener_that_cannot_be_opened_does_not_hold_the_others(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """It was checked when it was set, but another process was faster."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        first = scene.listeners.ports["PLAINTEXT"]
        scene.change(
            listeners=f"{PLAIN},OUTER://127.0.0.1:{port}",
            advertised_listeners=f"PLAINTEXT://example.com:{first},OUTER://example.com:0",
        )
        await eventually_async(
            lambda: [each.host for each in scene.registration.info.endpoints] == ["example.com"]
        )
    assert "Cannot add the listener OUTER" in caplog.text
    assert await scene.registered() == {"PLAINTEXT": first}


async def test_a_listener_without_its_bootstrap_port_is_not_open(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    first = scene.listeners.ports["PLAINTEXT"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        scene.config.worker = WorkerPlace(0, 1, "machine", "/nowhere", {"OUTER": port}, None)
        scene.change(listeners=f"{PLAIN},OUTER://127.0.0.1:0")
        await scene.applied()
    assert "Cannot add the listener OUTER" in caplog.text
    assert await scene.registered() == scene.listeners.ports == {"PLAINTEXT": first}
    scene.listeners.changed()  # the port is free now
    await eventually_async(lambda: set(scene.listeners.ports) == {"PLAINTEXT", "OUTER"})
    await scene.applied()
    assert await scene.registered() == scene.listeners.ports


async def test_an_address_of_another_broker_is_not_registered(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    other = BrokerInfo(2, scene.registration.info.endpoints, None)
    await BrokerRegistration(scene.store, other, lambda: 0).register()
    before = await scene.registered()
    port = scene.listeners.ports["PLAINTEXT"]
    scene.change(advertised_listeners=f"PLAINTEXT://example.com:{port}")
    await eventually_async(lambda: scene.registration.info.endpoints[0].host == "example.com")
    scene.change()  # back to the address that both have now
    await eventually_async(lambda: "advertised listeners stay as they were" in caplog.text)
    assert await scene.registered() == before


async def test_a_registration_is_repeated_when_zookeeper_is_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.broker.server.open_listeners._RETRY_MS", 1)
    update, failures = scene.registration.update, [StoreError("away"), StoreError("away")]

    async def fail_twice(info: BrokerInfo) -> None:
        if failures:
            raise failures.pop()
        await update(info)

    monkeypatch.setattr(scene.registration, "update", fail_twice)
    scene.change(listeners=f"{PLAIN},OUTER://127.0.0.1:0")
    await eventually_async(lambda: len(scene.registration.info.endpoints) == 2)
    assert caplog.text.count("Cannot register the changed listeners") == 2
    assert await scene.registered() == scene.listeners.ports


async def interrupted(scene: Scene, at: int, how: str) -> bool:
    """A listener is added, with the call of ZooKeeper number `at` interrupted; False if there is no
    such call."""
    scene.faults.interrupt(at, how)
    scene.change(listeners=f"{PLAIN},OUTER://127.0.0.1:0")
    await scene.applied()
    was_interrupted = scene.faults.is_past
    if how == CANCEL:
        scene.listeners.changed()  # nothing else repeats what was cancelled
    registration = scene.registration
    await eventually_async(
        lambda: len(registration.info.endpoints) == 2 and registration.is_written
    )
    await scene.applied()
    assert set(scene.listeners.ports) == {"PLAINTEXT", "OUTER"}
    assert await scene.registered() == scene.listeners.ports, f"interrupted at call {at}"
    return was_interrupted


@pytest.mark.parametrize("how", [BEFORE, AFTER, CANCEL])
async def test_changed_listeners_that_are_interrupted_anywhere_are_registered(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.server.open_listeners._RETRY_MS", 1)
    at, was_interrupted = 0, True
    while was_interrupted:
        at += 1
        scene = await Scene().start()
        was_interrupted = await interrupted(scene, at, how)
        await scene.stop()
    assert at > 3, "the brokers are read, and the znode is written"


async def test_listeners_that_change_while_the_broker_registers_are_registered(
    scene: Scene,
) -> None:
    """Its session has expired; the znode of the old one is there for a while."""
    other = EmbeddedStore(tree=scene.store.tree)
    await other.connect()
    scene.store.expire_session()
    before = scene.registration.info
    await BrokerRegistration(other, before, lambda: 0).register()
    resolve = scene.registration._resolve_existing_registration

    async def changes(path: str) -> Stat | None:
        changed = before._replace(endpoints=(before.endpoints[0]._replace(host="other"),))
        found = await resolve(path)
        await scene.registration.update(changed)
        return found

    scene.registration._resolve_existing_registration = changes  # type: ignore[method-assign]
    await scene.registration.register()
    data, _ = await scene.store.get(znodes.broker_path(1))
    assert znodes.decode_broker(1, data, 0).endpoints[0].host == "other"
    await other.close()
