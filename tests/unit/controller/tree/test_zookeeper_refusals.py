"""Calls that kazoo refuses before it sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ottla.controller.tree.store import CreateOp, InvalidPath
from ottla.controller.tree.zookeeper_store import ZooKeeperStore
from tests.doubles.znode_ensembles import ZooKeeperEnsemble
from tests.doubles.zookeeper_process import ZooKeeperProcess


@pytest.fixture
async def store(ottla_zookeeper: ZooKeeperProcess) -> AsyncIterator[ZooKeeperStore]:
    ensemble = ZooKeeperEnsemble(ottla_zookeeper)
    opened = await ensemble.open()
    assert isinstance(opened, ZooKeeperStore)
    yield opened
    await ensemble.close()


async def test_a_path_that_is_none_costs_no_place_in_the_window(store: ZooKeeperStore) -> None:
    """Clients name groups, users and the resources of ACLs, also ``.`` and ``..``."""
    path = "/consumers/../offsets"
    for call in (
        lambda: store.get(path),
        lambda: store.create(path),
        lambda: store.multi([CreateOp(path)]),
        lambda: store.watch_data(path, lambda _: None),
    ):
        with pytest.raises(InvalidPath):
            await call()
    assert await store.get_many([path]) == [None]  # as for one that does not exist
    [error] = await store.multi_many([[CreateOp(path)]])
    assert isinstance(error, InvalidPath)
    assert error.path == path
    assert store.session._in_flight == 0
    assert await store.exists("/") is not None
