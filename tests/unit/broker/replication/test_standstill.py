from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.broker.replication.standstill import StandstillGuard
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.embedded_tree import EmbeddedTree
from ottla.controller.tree.store import ConnectionLost, Stat, make_paths
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.manual_timer import ManualClock, ManualTimer

PATH = znodes.broker_path(1)
SESSION_TIMEOUT_MS = 9_000
# A session may have ended after two thirds of its timeout, and not after a quarter.
LONG_MS, SHORT_MS = SESSION_TIMEOUT_MS * 2 // 3, SESSION_TIMEOUT_MS // 4
# Longer than the wait between two questions.
ASKED_SECONDS = 0.25


class Store(EmbeddedStore):
    """A session of ZooKeeper, whose connection can be lost."""

    is_away = False

    @property
    def session_timeout_ms(self) -> int:
        return SESSION_TIMEOUT_MS

    async def exists(self, path: str) -> Stat | None:
        if self.is_away:
            raise ConnectionLost(path, "away")
        return await super().exists(path)


class Scene:
    """A broker that is registered and serves writes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.timer = ManualTimer(ManualClock())
        self.guard = StandstillGuard(
            store, 1, self.timer, lambda: int(self.timer.clock.monotonic() * 1000)
        )

    async def create_znode(self) -> int:
        """The broker epoch of a registration, which is not known to the broker yet."""
        await self.store.create(PATH, b"{}", ephemeral=True)
        return await self.broker_epoch()

    async def broker_epoch(self) -> int:
        stat = await self.store.exists(PATH)
        assert stat is not None
        return stat.czxid

    async def register(self) -> int:
        broker_epoch = await self.create_znode()
        self.guard.registered(broker_epoch)
        return broker_epoch

    def stand_still(self, milliseconds: int) -> None:
        """Time passes, and no callback runs."""
        self.timer.clock.advance(milliseconds)

    def refuses(self) -> bool:
        try:
            self.guard.check()
        except KafkaError as error:
            return error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        return False


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    store = Store(tree=EmbeddedTree(lambda: 0))
    await store.connect()
    await make_paths(store, znodes.PERSISTENT_PATHS)
    scene = Scene(store)
    await scene.register()
    scene.guard.start()
    yield scene
    scene.guard.stop()
    await store.close()


async def test_a_broker_that_runs_serves_writes(scene: Scene) -> None:
    for _ in range(100):
        scene.timer.advance(SESSION_TIMEOUT_MS // 3)
        assert not scene.refuses()
        scene.stand_still(SHORT_MS)
        assert not scene.refuses()


async def test_a_request_after_a_standstill_waits_for_the_session(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.stand_still(LONG_MS)
    assert scene.refuses()
    assert "stood still for 6.0 s" in caplog.text
    await asyncio.sleep(0)
    assert not scene.refuses()


async def test_a_timer_that_is_first_after_a_standstill_refuses_too(scene: Scene) -> None:
    scene.timer.advance(1)
    scene.stand_still(LONG_MS)
    scene.timer.advance(0)
    assert scene.refuses()


async def test_until_zookeeper_is_back_nothing_is_known(scene: Scene) -> None:
    scene.store.is_away = True
    scene.stand_still(LONG_MS)
    assert scene.refuses()
    await asyncio.sleep(ASKED_SECONDS)
    assert scene.refuses()
    scene.store.is_away = False
    await asyncio.sleep(ASKED_SECONDS)
    assert not scene.refuses()


async def test_after_the_session_the_controller_is_waited_for(scene: Scene) -> None:
    before = await scene.broker_epoch()
    scene.store.lose_session()
    scene.stand_still(LONG_MS)
    assert scene.refuses()
    scene.store.expire_session()
    scene.guard.told(before)
    await asyncio.sleep(ASKED_SECONDS)
    assert scene.refuses()
    broker_epoch = await scene.register()
    await asyncio.sleep(ASKED_SECONDS)
    assert scene.refuses()
    scene.guard.told(broker_epoch)
    assert not scene.refuses()


async def test_the_end_of_the_session_may_be_heard_of_first(scene: Scene) -> None:
    scene.stand_still(LONG_MS)
    scene.store.expire_session()
    assert scene.refuses()
    broker_epoch = await scene.register()
    assert scene.refuses()
    scene.guard.told(broker_epoch)
    assert not scene.refuses()


async def test_the_controller_may_know_of_the_registration_first(scene: Scene) -> None:
    """The response to the registration was lost; the controller does not send its request again."""
    scene.stand_still(LONG_MS)
    scene.store.expire_session()
    broker_epoch = await scene.create_znode()
    scene.guard.told(broker_epoch)
    assert scene.refuses()
    scene.guard.registered(broker_epoch)
    assert not scene.refuses()


async def test_a_second_standstill_while_the_controller_is_waited_for(scene: Scene) -> None:
    scene.stand_still(LONG_MS)
    scene.store.expire_session()
    broker_epoch = await scene.register()
    scene.store.lose_session()
    scene.stand_still(LONG_MS)
    scene.timer.advance(0)
    scene.guard.told(broker_epoch)  # the request waited in a socket
    assert scene.refuses()
    await asyncio.sleep(ASKED_SECONDS)
    assert scene.refuses()
    scene.store.expire_session()
    scene.guard.told(await scene.register())
    assert not scene.refuses()


async def test_a_session_that_ends_without_a_standstill_is_nothing_new(scene: Scene) -> None:
    scene.store.expire_session()
    assert not scene.refuses()


async def test_a_twin_has_the_id(scene: Scene) -> None:
    twin = EmbeddedStore(tree=scene.store.tree)
    await twin.connect()
    scene.store.lose_session()
    await twin.create(PATH, b"{}", ephemeral=True)
    scene.stand_still(LONG_MS)
    assert scene.refuses()
    await asyncio.sleep(ASKED_SECONDS)
    assert scene.refuses()
    await twin.close()


async def test_a_second_standstill_while_zookeeper_is_asked(scene: Scene) -> None:
    scene.stand_still(LONG_MS)
    assert scene.refuses()
    scene.store.is_away = True
    await asyncio.sleep(0)
    scene.stand_still(LONG_MS)
    scene.store.is_away = False
    assert scene.refuses()
    await asyncio.sleep(ASKED_SECONDS)
    assert not scene.refuses()


async def test_without_zookeeper_there_is_no_session_that_ends() -> None:
    store = EmbeddedStore(tree=EmbeddedTree(lambda: 0))
    await store.connect()
    timer = ManualTimer(ManualClock())
    guard = StandstillGuard(store, 1, timer, lambda: int(timer.clock.monotonic() * 1000))
    guard.start()
    timer.clock.advance(10 * SESSION_TIMEOUT_MS)
    guard.check()
    assert timer.advance(0) == 0
    guard.stop()
    await store.close()
