"""Each broker follows what the cluster has finalized."""

from __future__ import annotations

from typing import NoReturn, cast

import pytest

from ottla.broker.cluster.features import NO_EPOCH, RETRY_MS, FeatureCache
from ottla.broker.runtime.tasks import spawn
from ottla.controller.runtime import LoopRuntime
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import ConnectionLost, ZnodeStore
from ottla.controller.tree.znodes_admin import encode_features
from tests.doubles.controller_cluster import settle
from tests.doubles.controller_runtime import ManualRuntime
from tests.doubles.eventually import eventually_async
from tests.doubles.interrupted_store import BEFORE, InterruptedStore


async def test_the_znode_is_followed() -> None:
    store = EmbeddedStore()
    await store.connect()
    features = FeatureCache(store, LoopRuntime(spawn), {})
    await features.start()
    assert (features.finalized, features.epoch) == ({}, NO_EPOCH)
    await store.create(znodes.FEATURE, encode_features({}, enabled=True))
    await eventually_async(lambda: features.epoch == 0)
    await store.set(znodes.FEATURE, encode_features({"f": 2}, enabled=True))
    await eventually_async(lambda: (features.finalized, features.epoch) == ({"f": 2}, 1))
    for ignored in (encode_features({"f": 2}, enabled=False), b"no JSON"):
        await store.set(znodes.FEATURE, ignored)
        await eventually_async(lambda: (features.finalized, features.epoch) == ({}, NO_EPOCH))
        await store.set(znodes.FEATURE, encode_features({"f": 3}, enabled=True))
        await eventually_async(lambda: features.finalized == {"f": 3})
    features.stop()
    await store.set(znodes.FEATURE, encode_features({"f": 4}, enabled=True))
    again = FeatureCache(store, LoopRuntime(spawn), {})
    await again.start()
    assert (again.finalized, features.finalized) == ({"f": 4}, {"f": 3})
    again.stop()
    await store.close()


async def test_nothing_is_logged_after_the_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ZooKeeper may be stopping, too."""
    store = EmbeddedStore()
    await store.connect()
    features = FeatureCache(store, ManualRuntime(), {})
    await features.start()

    async def get(path: str) -> NoReturn:
        features.stop()
        raise ConnectionLost(path, "the session is over")

    monkeypatch.setattr(store, "get", get)
    features._read_again()
    await settle()
    await store.close()
    assert caplog.messages == []


async def test_a_change_that_could_not_be_read_is_read_again() -> None:
    """The watch has fired, and does not fire again: nothing else changes."""
    inner, runtime = EmbeddedStore(), ManualRuntime()
    await inner.connect()
    store = InterruptedStore(inner)
    features = FeatureCache(cast("ZnodeStore", store), runtime, {})
    await features.start()
    store.interrupt(1, BEFORE)
    await inner.create(znodes.FEATURE, encode_features({"f": 2}, enabled=True))
    await settle()
    assert features.epoch == NO_EPOCH
    runtime.advance(RETRY_MS)
    await settle()
    assert (features.finalized, features.epoch) == ({"f": 2}, 0)
    features.stop()
    await inner.close()
