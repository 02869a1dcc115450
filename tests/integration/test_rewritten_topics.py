"""What people and their tools do to the znodes of a cluster: no record leaves service for it.

Three real brokers on a real ZooKeeper. Tools from before Kafka 2.8 write the znode of a topic
without its topic id; ZooKeeper is restored from an older copy, or a broker is started against one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.broker_cluster import BrokerCluster, start_cluster
from tests.doubles.cluster_view import ClusterView, view
from tests.doubles.eventually import eventually

pytestmark = pytest.mark.zookeeper

ALL = (1, 2, 3)


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[ClusterView]:
    with (
        start_cluster(
            tmp_path,
            auto_leader_rebalance_enable="false",
            auto_create_topics_enable="false",
            default_replication_factor=3,
            offsets_topic_replication_factor=3,
        ) as cluster,
        view(cluster) as found,
    ):
        yield found


def rewrite(seen: ClusterView, topic: str, **added: list[int]) -> str:
    """As an old tool does it, which knows partitions and nothing else. Returns the topic id."""
    path = f"/brokers/topics/{topic}"
    node = seen.znode(path)
    partitions = {**node["partitions"], **added}
    seen.tree.set(path, json.dumps({"version": 1, "partitions": partitions}).encode())
    return str(node["topic_id"])


def topic_id(seen: ClusterView, topic: str) -> str | None:
    found = seen.znode(f"/brokers/topics/{topic}").get("topic_id")
    return None if found is None else str(found)


def set_aside(cluster: BrokerCluster) -> list[str]:
    return [
        path.name
        for broker in cluster.brokers.values()
        for path in broker.data_directory.rglob("*-stray")
    ]


def test_a_topic_whose_id_a_tool_has_dropped_keeps_its_records(seen: ClusterView) -> None:
    seen.create("orders", [1, 2, 3], [3, 2, 1])
    seen.produce("orders", 50)
    known_id = rewrite(seen, "orders", **{"2": [2, 3, 1]})
    eventually(lambda: topic_id(seen, "orders") == known_id, "the topic id is not written back")
    seen.wait_for_leaders("orders", [1, 3, 2])

    # Nobody sees it being written: the next controller has to ask the brokers.
    seen.cluster.stop_all()
    before = seen.log_bytes(2, "orders")
    assert before
    rewrite(seen, "orders")
    for broker_id in ALL:
        seen.cluster[broker_id].start()
    eventually(lambda: topic_id(seen, "orders") == known_id, "the topic id is not learned")
    seen.wait_for_isr("orders", set(ALL))
    seen.produce("orders", 10)
    seen.wait_for_same_data("orders", *ALL)
    assert seen.log_bytes(1, "orders").startswith(before)

    for broker_id in ALL:
        seen.cluster[broker_id].stop()
        rewrite(seen, "orders")
        seen.cluster[broker_id].start()
        eventually(lambda: topic_id(seen, "orders") == known_id, "the topic id is lost")
        seen.wait_for_isr("orders", set(ALL))
    seen.wait_for_same_data("orders", *ALL)
    assert seen.log_bytes(1, "orders").startswith(before)
    assert set_aside(seen.cluster) == []


def test_an_id_that_was_made_up_is_replaced_by_that_of_the_logs(seen: ClusterView) -> None:
    """As a controller of Kafka does it. Every broker refuses it then."""
    seen.create("orders", [1, 2, 3])
    seen.produce("orders", 20)
    seen.cluster.stop_all()
    before = seen.log_bytes(1, "orders")
    node = seen.znode("/brokers/topics/orders")
    made_up = {**node, "topic_id": "AAAAAAAAAAAAAAAAAAAABA"}
    seen.tree.set("/brokers/topics/orders", json.dumps(made_up).encode())
    for broker_id in ALL:
        seen.cluster[broker_id].start()
    eventually(lambda: topic_id(seen, "orders") == node["topic_id"], "the id stays made up")
    seen.wait_for_isr("orders", set(ALL))
    seen.produce("orders", 5)
    seen.wait_for_same_data("orders", *ALL)
    assert seen.log_bytes(3, "orders").startswith(before)
    assert set_aside(seen.cluster) == []


def test_brokers_that_were_started_against_an_older_zookeeper(tmp_path: Path) -> None:
    with start_cluster(tmp_path, auto_create_topics_enable="false") as cluster:
        with view(cluster) as seen:
            seen.cluster.stop_all()
            cluster.copy_zookeeper(tmp_path / "older")
            cluster.start_all()
            seen.create("orders", [1, 2, 3], [2, 3, 1])
            seen.produce("orders", 50)
            seen.wait_for_same_data("orders", *ALL)
            before = seen.log_bytes(1, "orders")
            seen.cluster.stop_all()
        cluster.exchange_zookeeper(tmp_path / "older", tmp_path / "right")
        cluster.start_all()
        for broker in cluster.brokers.values():
            assert "Keeping log" in broker.log()
            broker.stop()
        assert set_aside(cluster) == []
        cluster.exchange_zookeeper(tmp_path / "right", tmp_path / "wrong")
        cluster.start_all()
        with view(cluster) as seen:
            seen.wait_for_isr("orders", set(ALL))
            assert seen.log_bytes(1, "orders") == before
            seen.produce("orders", 5)
            seen.wait_for_same_data("orders", *ALL)
            assert seen.log_bytes(2, "orders").startswith(before)


def test_a_zookeeper_that_is_older_than_some_elections(tmp_path: Path) -> None:
    """Its leader is not the one with the newest records."""
    with start_cluster(
        tmp_path, auto_leader_rebalance_enable="false", auto_create_topics_enable="false"
    ) as cluster:
        with view(cluster) as seen:
            seen.create("orders", [1, 2, 3])
            seen.produce("orders", 20)
            seen.cluster.stop_all()
            cluster.copy_zookeeper(tmp_path / "older")
            cluster.start_all()
            for broker_id in (1, 2, 3, 1):
                seen.wait_for_isr("orders", set(ALL))
                cluster[broker_id].stop()
                seen.produce("orders", 10)
                cluster[broker_id].start()
            seen.wait_for_isr("orders", set(ALL))
            cluster[1].stop()
            seen.produce("orders", 10)
            cluster[1].start()
            seen.wait_for_isr("orders", set(ALL))
            seen.wait_for_same_data("orders", *ALL)
            newest = seen.state("orders")["leader_epoch"]
            seen.cluster.stop_all()
            before = seen.log_bytes(2, "orders")
        cluster.exchange_zookeeper(tmp_path / "older", tmp_path / "right")
        cluster.start_all()
        with view(cluster) as seen:
            seen.wait_for_isr("orders", set(ALL))
            assert seen.state("orders")["leader_epoch"] > newest
            seen.produce("orders", 5)
            seen.wait_for_same_data("orders", *ALL)
            assert seen.log_bytes(3, "orders").startswith(before)
        assert set_aside(cluster) == []


def test_a_topic_that_was_removed_and_written_again_by_hand(seen: ClusterView) -> None:
    """With its id: the replica with the newest records leads, not the first one."""
    seen.create("orders", [1, 2, 3])
    seen.produce("orders", 20)
    seen.cluster[1].stop()
    seen.produce("orders", 10)
    before = seen.log_bytes(2, "orders")
    node = seen.znode("/brokers/topics/orders")
    seen.cluster[1].start()
    seen.wait_for_isr("orders", set(ALL))
    seen.tree.delete("/brokers/topics/orders", recursive=True)
    seen.tree.create("/brokers/topics/orders", json.dumps(node).encode())
    eventually(
        lambda: (seen.state("orders") or {"leader_epoch": 0})["leader_epoch"] > 1000,
        "no replica is elected by its records",
    )
    seen.wait_for_isr("orders", set(ALL))
    seen.produce("orders", 5)
    seen.wait_for_same_data("orders", *ALL)
    assert seen.log_bytes(1, "orders").startswith(before)
    assert set_aside(seen.cluster) == []
