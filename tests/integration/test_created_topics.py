"""`ottla.create.topics`: topics that a broker creates after its start."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from ottla.testing import Broker, Cluster
from tests.doubles.eventually import eventually

#: Of wurstmeister's image.
TOPICS = "orders:3:1, users:1:1:compact"


def partitions(bootstrap: str) -> dict[str, int]:
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    return {name: len(topic.partitions) for name, topic in topics.items()}


def test_topics_are_there_after_the_start_and_after_the_next_one() -> None:
    with Broker(ottla_create_topics=TOPICS) as broker:
        for _ in range(2):
            eventually(lambda: partitions(broker.bootstrap) == {"orders": 3, "users": 1})
            broker.restart()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        resource = ConfigResource("topic", "users")
        rows = admin.describe_configs([resource])[resource].result(10)
        assert rows["cleanup.policy"].value == "compact"


def test_each_broker_of_a_cluster_may_name_them() -> None:
    with Cluster(brokers=2, ottla_create_topics="orders:2:2") as cluster:
        eventually(lambda: partitions(cluster.bootstrap).get("orders") == 2)


def test_a_topic_that_needs_more_brokers_waits_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ottla.topics")
    with Broker(ottla_create_topics="orders:1:3,users:1:1") as broker:
        eventually(lambda: "users" in partitions(broker.bootstrap))
        assert "orders" not in partitions(broker.bootstrap)
        assert "Cannot create the topics orders" in caplog.text
        assert "INVALID_REPLICATION_FACTOR" in caplog.text
