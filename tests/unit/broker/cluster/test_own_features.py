"""`transaction.version` as the brokers find it out: by the registrations and a znode."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from ottla.broker.cluster.features import FeatureCache
from ottla.broker.runtime.tasks import spawn
from ottla.controller.admin.own_features import TRANSACTION_VERSION, own_features
from ottla.controller.model import BrokerInfo
from ottla.controller.runtime import LoopRuntime
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import make_paths, set_or_create
from ottla.controller.tree.znodes_admin import encode_features, encode_own_levels
from tests.doubles.eventually import eventually_async

OTTLA = own_features("3.9")


class Scene:
    """A tree with a broker of Ottla, and the features that it has found out."""

    def __init__(self) -> None:
        self.store = EmbeddedStore()
        self.features = FeatureCache(self.store, LoopRuntime(spawn), OTTLA)
        self.lowered: list[tuple[str, int]] = []
        self.features.on_lowered = lambda name, level: self.lowered.append((name, level))

    async def start(self) -> None:
        await self.store.connect()
        await make_paths(self.store, [znodes.BROKER_IDS, "/ottla"])
        await self.store.create(znodes.FEATURE, encode_features({}, enabled=True))
        await self.register(1, OTTLA)
        await self.features.start()

    async def register(self, broker_id: int, features: dict[str, tuple[int, int]]) -> None:
        info = BrokerInfo(broker_id, (), features=features)
        await self.store.create(znodes.broker_path(broker_id), znodes.encode_broker(info, 1))

    async def set_level(self, level: int) -> None:
        data = encode_own_levels({TRANSACTION_VERSION: level})
        await set_or_create(self.store, znodes.OWN_LEVELS, data)

    async def becomes(self, level: int) -> int:
        """Wait for a level; the epoch that came with it."""
        await eventually_async(lambda: self.features.transaction_version() == level)
        return self.features.epoch


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    await made.start()
    yield made
    made.features.stop()
    await made.store.close()


async def test_on_where_all_brokers_support_it(scene: Scene) -> None:
    assert scene.features.finalized == {TRANSACTION_VERSION: 2}
    await scene.register(2, OTTLA)
    await scene.register(3, {TRANSACTION_VERSION: (1, 1)})  # an Ottla that has less
    epoch = await scene.becomes(1)
    await scene.store.delete(znodes.broker_path(3))
    assert await scene.becomes(2) > epoch


async def test_off_with_a_broker_of_kafka_and_on_without_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = scene.features.epoch
    await scene.register(7, {})
    off = await scene.becomes(0)
    assert caplog.messages[-1] == (
        "Feature transaction.version is off: broker 7 does not support level 1; it is on again"
        " when all registered brokers do"
    )
    assert scene.lowered == [(TRANSACTION_VERSION, 0)]
    await scene.store.delete(znodes.broker_path(7))
    assert first < off < await scene.becomes(2)
    assert caplog.messages[-1] == "Feature transaction.version is finalized at level 2"
    await scene.store.create(znodes.broker_path(8), b"no JSON")
    await scene.becomes(0)


async def test_the_level_that_is_set(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    epoch = scene.features.epoch
    for level, in_effect in ((1, 1), (0, 0), (2, 2)):
        await scene.set_level(level)
        higher = await scene.becomes(in_effect)
        assert higher > epoch
        epoch = higher
    await scene.set_level(7)  # by hand, or by an Ottla that has it
    await scene.becomes(0)
    assert caplog.messages[-1] == (
        "Feature transaction.version is off: its level in /ottla/features is 7, this broker has 1"
        " to 2; set one of them with UpdateFeatures"
    )
    await scene.set_level(1)
    await scene.becomes(1)
    await scene.store.set(znodes.OWN_LEVELS, b"{")
    await scene.becomes(0)
    assert any("set their levels again" in line for line in caplog.messages)
    await scene.register(2, {TRANSACTION_VERSION: (1, 1)})
    await scene.set_level(2)  # which broker 2 does not have
    await eventually_async(lambda: "broker 2 does not" in caplog.messages[-1])
    assert scene.features.transaction_version() == 0


async def test_feature_versioning_that_is_disabled_disables_it(scene: Scene) -> None:
    await scene.store.set(znodes.FEATURE, encode_features({}, enabled=False))
    await scene.becomes(0)
    assert scene.features.epoch == -1
    levels = {TRANSACTION_VERSION: 1, "other": 3}
    await scene.store.set(znodes.FEATURE, encode_features(levels, enabled=True))
    await scene.becomes(2)  # not what is in the wrong place
    assert scene.features.finalized == {"other": 3, TRANSACTION_VERSION: 2}


@pytest.mark.parametrize(
    ("protocol", "found"), [("3.9", OTTLA), ("3.9-IV0", OTTLA), ("3.8", {}), ("2.6", {})]
)
def test_an_older_protocol_between_brokers_has_none(
    protocol: str, found: dict[str, tuple[int, int]]
) -> None:
    assert own_features(protocol) == found
