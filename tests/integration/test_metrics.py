"""What /metrics says about the traffic of real clients."""

from __future__ import annotations

import urllib.request

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from ottla.broker.metrics import topic_statistics
from ottla.broker.metrics.statistics import STAGES
from ottla.broker.testing.embedded import Broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually

DEADLINE_S = 60.0

Samples = dict[tuple[str, ...], float]


def scrape(broker: Broker) -> Samples:
    """The value of each series by its name and the values of its labels."""
    url = f"http://127.0.0.1:{broker.server.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
        text = response.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def produce(broker: Broker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
    for _ in range(count):
        producer.produce(topic, b"v" * 100)
    assert producer.flush(DEADLINE_S) == 0


def consume(broker: Broker, topic: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        assert len(consumer.consume(count, DEADLINE_S)) == count
    finally:
        consumer.close()


def free_bytes(broker: Broker) -> float:
    """Of the first log directory; they are measured once a second."""
    found = scrape(broker).items()
    return next((value for key, value in found if key[0] == "ottla_log_directory_free_bytes"), 0)


def test_traffic_by_topic_and_time_by_stage() -> None:
    with Broker(ottla_metrics_address="127.0.0.1:0") as broker:
        produce(broker, "orders", 10)
        consume(broker, "orders", 10)
        found = scrape(broker)
        assert found["ottla_topic_received_messages_total", "orders"] == 10
        received = found["ottla_topic_received_bytes_total", "orders"]
        assert received > 1000
        assert found["ottla_topic_sent_bytes_total", "orders"] == received
        assert found["ottla_topic_produce_requests_total", "orders"] >= 1
        assert found["ottla_topic_failed_produce_requests_total", "orders"] == 0
        count = found["ottla_request_seconds_count", "Produce"]
        assert count >= 1
        sums = 0.0
        for stage in STAGES:
            assert found["ottla_request_stage_seconds_count", "Produce", stage] == count
            sums += found["ottla_request_stage_seconds_sum", "Produce", stage]
        assert sums == pytest.approx(found["ottla_request_seconds_sum", "Produce"])
        assert found["ottla_controller_topics",] >= 1
        assert found["ottla_zookeeper_session_state", "connected"] == 1
        eventually(lambda: free_bytes(broker) > 0)

        CommandLine(broker.bootstrap).done("topics", "delete", "orders", "--yes")
        assert ("ottla_topic_received_bytes_total", "orders") not in scrape(broker)


def test_topics_beyond_the_bound_share_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_statistics, "MAX_TOPICS", 1)
    with Broker(ottla_metrics_address="127.0.0.1:0") as broker:
        for topic in ("one", "two", "three"):
            produce(broker, topic, 1)
        found = scrape(broker)
    assert found["ottla_topic_received_messages_total", "one"] == 1
    assert found["ottla_topic_received_messages_total", "(other)"] == 2


def test_partitions_whose_load_fails_are_counted_for_each_coordinator() -> None:
    protocols = "classic,consumer,share"
    settings = {"group_coordinator_rebalance_protocols": protocols}
    with Broker(ottla_metrics_address="127.0.0.1:0", **settings) as broker:
        coordinators = broker.server.parts.coordinators
        found = {each.topic: each for each in coordinators.partitions()}
        assert set(found) == {"__consumer_offsets", "__transaction_state", "__share_group_state"}
        for topic, partitions in found.items():
            assert scrape(broker)["ottla_coordinator_load_failures", topic] == 0
            partitions._retry_delays_ms[3] = 1000
            assert scrape(broker)["ottla_coordinator_load_failures", topic] == 1
