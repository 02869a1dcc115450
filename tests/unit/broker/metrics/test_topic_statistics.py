from collections.abc import Iterable
from typing import cast

import pytest

from ottla.broker.metrics import topic_statistics
from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.broker.metrics.topic_statistics import BrokerTopicStatistics, add_topics

Rows = Iterable[tuple[tuple[str, ...], float]]


def test_a_topic_is_counted_while_it_has_a_replica() -> None:
    topics = BrokerTopicStatistics()
    first, second = topics.add_replica("a"), topics.add_replica("a")
    assert first is second is topics.get("a")
    first.received_bytes += 10
    topics.remove_replica(first)
    assert dict(topics.rows("received_bytes")) == {("a",): 10}
    topics.remove_replica(second)
    assert dict(topics.rows("received_bytes")) == {}
    assert len(topics) == 0


def test_topics_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_statistics, "MAX_TOPICS", 2)
    topics = BrokerTopicStatistics()
    for number in range(5):
        topics.add_replica(f"t{number}").sent_bytes += 1
    assert dict(topics.rows("sent_bytes")) == {("t0",): 1, ("t1",): 1, ("(other)",): 3}
    for number in (4, 0):
        topics.remove_replica(topics.get(f"t{number}"))
    assert dict(topics.rows("sent_bytes")) == {("t1",): 1, ("(other)",): 3}
    assert topics.add_replica("new").topic == "new"


def test_rows_outlive_a_change_between_two_of_them() -> None:
    topics = BrokerTopicStatistics()
    for name in ("a", "b"):
        topics.add_replica(name)
    rows = topics.rows("produces")
    assert next(rows) == (("a",), 0)
    topics.remove_replica(topics.get("a"))
    topics.add_replica("c")
    assert list(rows) == [(("b",), 0)]


def test_the_metrics() -> None:
    registry, topics = MetricsRegistry(), BrokerTopicStatistics()
    add_topics(registry, topics)
    topics.add_replica("a").received_messages = 7
    topics.replicated_out_bytes = 3
    topics.count_failed_append("a", 2)
    topics.count_down_conversion("a", 4, 0.5, 60)
    topics.add_replica("never converted")
    found = {metric.exposed_name: metric.read() for metric in registry.metrics}
    assert found["ottla_replication_sent_bytes_total"] == 3
    messages = found["ottla_topic_received_messages_total"]
    assert not isinstance(messages, float | int)
    assert dict(messages) == {("a",): 7, ("never converted",): 0}
    assert dict(cast(Rows, found["ottla_topic_fetch_message_conversions_total"])) == {("a",): 4}
    assert dict(cast(Rows, found["ottla_topic_produce_message_conversions_total"])) == {}
    assert found["ottla_fetch_conversion_seconds_total"] == 0.5
    assert found["ottla_fetch_conversion_bytes_total"] == 60
    assert found["ottla_produce_errors_total"] == {("CORRUPT_MESSAGE",): 1}
