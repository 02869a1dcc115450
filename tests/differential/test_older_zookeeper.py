"""ZooKeeper is restored from a copy that is older than some elections, beside Kafka.

The leader epochs of the brokers are ahead of the tree then. In Kafka a follower refuses its leader
for good and never rejoins the ISR. Here the controller elects in an epoch above those of all
replicas. No record leaves the disks in either.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.cli.zookeeper_server import free_port
from tests.doubles.broker_cluster import start_cluster
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.cluster_view import view
from tests.doubles.kafka_process import KafkaBrokerProcess

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

TOPIC = "orders"
BOTH = {1, 2}
# A follower that may join does so within a second or two.
JOINED_SECONDS = 12


class Seen(NamedTuple):
    """Of the cluster that was started with the older copy."""

    is_in_sync: bool
    keeps_records: bool


def restored(directory: Path, kind: type[BrokerProcess]) -> Seen:
    """Play the story with brokers of a kind."""
    ports = {broker_id: free_port() for broker_id in sorted(BOTH)}
    with start_cluster(
        directory,
        2,
        lambda broker_id: {"listeners": f"PLAINTEXT://127.0.0.1:{ports[broker_id]}"},
        kind,
        auto_leader_rebalance_enable="false",
        auto_create_topics_enable="false",
        offsets_topic_replication_factor=1,
    ) as cluster:
        for broker_id, port in ports.items():
            cluster[broker_id].port = port
        with view(cluster) as seen:
            seen.create(TOPIC, [1, 2])
            seen.produce(TOPIC, 20)
            cluster.stop_all()
            cluster.copy_zookeeper(directory / "older")
            cluster.start_all()
            for broker_id in (1, 2, 1, 2):
                seen.wait_for_isr(TOPIC, BOTH)
                cluster[broker_id].stop()
                seen.produce(TOPIC, 10)
                cluster[broker_id].start()
            seen.wait_for_isr(TOPIC, BOTH)
            cluster.stop_all()
            before = {each: seen.log_bytes(each, TOPIC) for each in BOTH}
        cluster.exchange_zookeeper(directory / "older", directory / "right")
        cluster.start_all()
        with view(cluster) as seen:
            deadline = time.monotonic() + JOINED_SECONDS
            while set(seen.state(TOPIC)["isr"]) != BOTH and time.monotonic() < deadline:
                time.sleep(0.2)
            return Seen(
                set(seen.state(TOPIC)["isr"]) == BOTH,
                all(seen.log_bytes(each, TOPIC).startswith(before[each]) for each in BOTH),
            )


def test_followers_rejoin_here_and_no_record_is_lost(tmp_path: Path) -> None:
    assert restored(tmp_path / "kafka", KafkaBrokerProcess) == Seen(False, True)
    assert restored(tmp_path / "ottla", BrokerProcess) == Seen(True, True)
