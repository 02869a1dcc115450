"""All brokers and ZooKeeper are stopped at once, as by a reboot or by `helm uninstall`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.storage.files.layout import CLEAN_SHUTDOWN_FILE
from tests.doubles.broker_cluster import BrokerCluster, start_cluster
from tests.doubles.cluster_view import view

pytestmark = pytest.mark.zookeeper

# What Kubernetes waits before it kills. Alone on a machine it takes 2 to 6 s; that it is less than
# the 10 s of Docker is shown in the time of the simulation (`all_at_once`).
GRACE_SECONDS = 30.0
MANY = 500
"""Partitions, each with a replica on each broker."""


def terminate(cluster: BrokerCluster) -> None:
    """ZooKeeper ends at once."""
    assert cluster.zookeeper.process is not None
    cluster.zookeeper.process.send_signal(signal.SIGTERM)


def kill(cluster: BrokerCluster) -> None:
    """ZooKeeper was killed, and the brokers have noticed."""
    cluster.zookeeper.stop()
    for broker in cluster.brokers.values():
        broker.wait_for_log("Fault zookeeper-disconnected")


def pause(cluster: BrokerCluster) -> None:
    """Its machine is frozen, or its network is gone: connections stay open."""
    cluster.zookeeper.pause()


def leave(cluster: BrokerCluster) -> None:
    """Only the brokers are stopped."""


def create_many(cluster: BrokerCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (created,) = admin.create_topics([NewTopic("many", MANY, 3)]).values()
    created.result(60)


def stop_all(cluster: BrokerCluster) -> None:
    """SIGTERM to all brokers. Each has to be down in time, and clean."""
    begin = time.monotonic()
    for broker in cluster.brokers.values():
        broker.ask_to_stop()
    codes = [broker.wait_for_end() for broker in cluster.brokers.values()]
    assert time.monotonic() - begin < GRACE_SECONDS
    assert codes == [0, 0, 0]
    for broker in cluster.brokers.values():
        assert (broker.data_directory / CLEAN_SHUTDOWN_FILE).exists(), broker.log()


@pytest.mark.parametrize(
    ("zookeeper", "prepare"),
    [(terminate, None), (kill, None), (kill, create_many), (pause, None), (leave, None)],
)
def test_all_brokers_stop_cleanly(
    tmp_path: Path,
    zookeeper: Callable[[BrokerCluster], None],
    prepare: Callable[[BrokerCluster], None] | None,
) -> None:
    with start_cluster(tmp_path, zookeeper_session_timeout_ms=18_000) as cluster:
        with view(cluster) as seen:
            seen.create("orders", [1, 2, 3], [2, 3, 1], [3, 1, 2])
            if prepare is not None:
                prepare(cluster)
            seen.produce("orders", 30)
        zookeeper(cluster)
        try:
            stop_all(cluster)
        finally:
            if zookeeper is pause:
                cluster.zookeeper.resume()
