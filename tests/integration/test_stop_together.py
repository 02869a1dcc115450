"""All brokers and ZooKeeper are stopped at once, as by a reboot or by `helm uninstall`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doubles.broker_cluster import BrokerCluster, start_cluster
from tests.doubles.cluster_view import view

pytestmark = pytest.mark.zookeeper

# What Kubernetes waits before it kills; Docker waits 10 s. Alone on a machine it takes 5.
GRACE_SECONDS = 30.0


def terminate(cluster: BrokerCluster) -> None:
    """ZooKeeper ends at once."""
    assert cluster.zookeeper.process is not None
    cluster.zookeeper.process.send_signal(signal.SIGTERM)


def pause(cluster: BrokerCluster) -> None:
    """Its machine is frozen, or its network is gone: connections stay open."""
    cluster.zookeeper.pause()


def leave(cluster: BrokerCluster) -> None:
    """Only the brokers are stopped."""


@pytest.mark.parametrize("zookeeper", [terminate, pause, leave])
def test_all_brokers_stop_cleanly(
    tmp_path: Path, zookeeper: Callable[[BrokerCluster], None]
) -> None:
    with start_cluster(tmp_path, zookeeper_session_timeout_ms=18_000) as cluster:
        with view(cluster) as seen:
            seen.create("orders", [1, 2, 3], [2, 3, 1], [3, 1, 2])
            seen.produce("orders", 30)
        zookeeper(cluster)
        begin = time.monotonic()
        for broker in cluster.brokers.values():
            broker.ask_to_stop()
        try:
            codes = [broker.wait_for_end() for broker in cluster.brokers.values()]
        finally:
            cluster.zookeeper.resume()
        assert codes == [0, 0, 0]
        assert time.monotonic() - begin < GRACE_SECONDS
        for broker in cluster.brokers.values():
            assert "stopped cleanly" in broker.log()
