"""Kafka's own tools for topics and client metrics, on a broker of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.broker.testing.embedded import Broker
from tests.doubles.apache_kafka import run_tool

pytestmark = pytest.mark.kafka

TOPICS = "org.apache.kafka.tools.TopicCommand"
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(ottla_metrics_address="127.0.0.1:0") as started:
        yield started


def test_topics_are_described_page_by_page(broker: Broker) -> None:
    """The tool sends DescribeTopicPartitions, since it is listed."""
    broker.create_topic("orders", 5)
    output = run_tool(
        TOPICS,
        *("--bootstrap-server", broker.bootstrap, "--describe", "--topic", "orders"),
        *("--partition-size-limit-per-response", "2"),
    )
    assert "PartitionCount: 5" in output
    for index in range(5):
        assert f"Topic: orders\tPartition: {index}\tLeader: 1001\tReplicas: 1001" in output
    statistics = broker.server.parts.request_channel.routes[75].statistics
    assert statistics.count >= 3


def test_client_metrics_are_set_up(broker: Broker) -> None:
    run_tool(
        CLIENT_METRICS,
        *("--bootstrap-server", broker.bootstrap, "--alter", "--name", "slow-ones"),
        *("--metrics", "org.apache.kafka.producer.", "--interval", "60000"),
        *("--match", "client_id=slow.*"),
    )
    output = run_tool(CLIENT_METRICS, "--bootstrap-server", broker.bootstrap, "--describe")
    assert "Client metrics configs for slow-ones are:" in output
    assert "interval.ms=60000" in output
    assert "match=client_id=slow.*" in output
    assert "metrics=org.apache.kafka.producer." in output
