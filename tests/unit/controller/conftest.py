"""Stores for the tests of the controller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.doubles.controller_cluster import Cluster
from tests.doubles.simulated_ensemble import SimulatedEnsemble
from tests.doubles.znode_ensembles import EmbeddedEnsemble, Ensemble, ZooKeeperEnsemble
from tests.doubles.zookeeper_process import (
    ZooKeeperProcess,
    start_ottla_zookeeper,
    start_zookeeper,
)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """One server for the whole run: it takes seconds to start."""
    with start_zookeeper(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


@pytest.fixture(scope="session")
def ottla_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """`ottla zookeeper`, one for the whole run."""
    with start_ottla_zookeeper(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


@pytest.fixture(
    params=[
        "memory",
        "file",
        "simulated",
        "ottla zookeeper",
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
    ]
)
async def ensemble(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ensemble]:
    made: Ensemble
    if request.param == "memory":
        made = EmbeddedEnsemble()
    elif request.param == "file":
        made = EmbeddedEnsemble(tmp_path / "znodes.db")
    elif request.param == "simulated":
        made = SimulatedEnsemble()
    elif request.param == "ottla zookeeper":
        made = ZooKeeperEnsemble(request.getfixturevalue("ottla_zookeeper"))
    else:
        made = ZooKeeperEnsemble(request.getfixturevalue("zookeeper"))
    yield made
    await made.close()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Three brokers, the first of them the controller."""
    made = Cluster()
    await made.start()
    yield made
    await made.stop()
