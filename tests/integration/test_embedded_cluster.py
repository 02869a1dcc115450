"""`ottla.testing.Cluster`: several brokers of one process on a ZooKeeper without Java."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from ottla.testing import Cluster, ConfigError, KafkaError
from tests.doubles.eventually import eventually

SECONDS = 60.0


# These come first: the brokers of the fixture, which runs from its first use on, start threads when
# they have work for them.


def test_nothing_is_left_of_a_cluster() -> None:
    before = set(threading.enumerate())
    cluster = Cluster(brokers=2)
    with cluster:
        directories = [broker.directory for broker in cluster.brokers]
        assert all(directory.exists() for directory in directories)
    assert not any(directory.exists() for directory in directories)
    eventually(
        lambda: set(threading.enumerate()) <= before,
        lambda: f"left: {set(threading.enumerate()) - before}",
    )


def test_a_wrong_setting_leaves_nothing_running() -> None:
    before = set(threading.enumerate())
    cluster = Cluster(brokers=2, log_segment_bytes="many")
    with pytest.raises(ConfigError, match=r"log\.segment\.bytes"):
        cluster.start()
    eventually(lambda: set(threading.enumerate()) <= before, "a thread is left")


def test_it_is_iterated_as_its_brokers() -> None:
    cluster = Cluster(brokers=2)
    assert len(cluster) == 2
    assert not cluster.is_running
    for use in (lambda: list(cluster), lambda: cluster.zookeeper, lambda: cluster.leader_of("t")):
        with pytest.raises(RuntimeError, match="the cluster is not running"):
            use()
    with cluster:
        assert cluster.is_running
        assert list(cluster) == [cluster[1], cluster[2]] == cluster.brokers
        wrong: Any
        for wrong in ("1", slice(1, 2), True):
            with pytest.raises(TypeError, match="expected the id of a broker"):
                cluster[wrong]
        with pytest.raises(KeyError, match="the ids are 1 to 2"):
            cluster[0]


def test_a_start_starts_the_brokers_that_are_stopped() -> None:
    with Cluster(brokers=2) as cluster:
        with pytest.raises(RuntimeError, match="the cluster is running"):
            cluster.start()
        cluster.create_topic("t")
        for broker in cluster:
            broker.pause()
        with pytest.raises(RuntimeError, match="no broker of the cluster is running: call start"):
            cluster.end_offset("t")
        cluster.start()
        assert all(broker.is_running for broker in cluster)
        assert cluster.end_offset("t") == 0


async def test_in_a_coroutine() -> None:
    async with Cluster(brokers=1) as cluster:
        await asyncio.to_thread(cluster.create_topic, "t")
        assert await asyncio.to_thread(cluster.end_offset, "t") == 0
    assert not cluster.brokers


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as made:
        yield made


def test_a_topic_is_deleted_by_the_controller(cluster: Cluster) -> None:
    cluster.create_topic("gone", retention_ms=1000)
    codes = []
    for broker in cluster:
        try:
            broker.delete_topic("gone")
        except KafkaError as error:
            codes.append(error.name)
    assert codes.count("NOT_CONTROLLER") == 2
    cluster.create_topic("gone")
    cluster.delete_topic("gone")
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.delete_topic("gone")


def test_the_leader_of_a_partition_is_a_broker(cluster: Cluster) -> None:
    cluster.create_topic("led", partitions=3)
    leaders = {cluster.leader_of("led", partition).bootstrap for partition in range(3)}
    assert leaders == {broker.bootstrap for broker in cluster}


def test_the_leader_after_a_crash_is_waited_for() -> None:
    with Cluster(2, zookeeper_session_timeout_ms=2000) as cluster:
        cluster.create_topic("led")
        cluster.create_topic("lost", partitions=2, replication_factor=1)
        first = cluster.leader_of("led")
        first.crash()
        second = cluster.leader_of("led")
        assert second is not first
        assert second.is_running
        errors = []
        for partition in range(2):
            try:
                assert cluster.leader_of("lost", partition) is second
            except KafkaError as error:
                errors.append(str(error))
        assert len(errors) == 1  # the brokers lead one partition each
        assert "has no leader that runs" in errors[0]


def test_topics_are_replicated_and_led_by_all(cluster: Cluster) -> None:
    cluster.create_topic("spread", partitions=6)
    topic = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics("spread", SECONDS)
    partitions = topic.topics["spread"].partitions.values()
    assert {each.leader for each in partitions} == {1, 2, 3}
    assert all(sorted(each.replicas) == [1, 2, 3] for each in partitions)


def test_records_survive_the_loss_of_a_leader(cluster: Cluster) -> None:
    cluster.create_topic("kept", partitions=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(100):
        producer.produce("kept", b"%d" % number)
    assert producer.flush(SECONDS) == 0
    assert sum(cluster.end_offset("kept", number) for number in range(3)) == 100
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.end_offset("kept", 3)
    cluster[1].pause()
    for number in range(100, 200):
        producer.produce("kept", b"%d" % number)
    assert producer.flush(SECONDS) == 0
    cluster[1].start()
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["kept"])
    values: list[bytes] = []

    def all_read() -> bool:
        values.extend(
            message.value() for message in consumer.consume(200, 0.2) if not message.error()
        )
        return len(values) >= 200

    eventually(all_read, lambda: f"{len(values)} of 200 records", seconds=SECONDS)
    consumer.close()
    assert sorted(values) == sorted(b"%d" % number for number in range(200))


def test_a_cluster_has_brokers() -> None:
    with pytest.raises(ValueError, match="at least one broker"):
        Cluster(brokers=0)
