"""Exactly once when processes crash at any request, against Ottla and against Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.doubles.apache_kafka import ApacheKafka, start_kafka
from tests.doubles.broker_process import BrokerProcess
from tests.spark.crashing_writes import PARTITIONS, Spark, write_batches
from tests.spark.support import create_topic

NewTopicName = Callable[[str], str]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with start_kafka(tmp_path_factory.mktemp("kafka")) as process:
        yield process


def check(bootstrap: str, topic: str, seed: int, patch: pytest.MonkeyPatch) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    with patch.context() as patched:
        spark = Spark(bootstrap, topic, f"model-{topic}", seed, patched)
        sent = write_batches(spark, batches=4, rows=20)
        found = spark.visible()
    assert found == sent, f"seed {seed}, after crashes at {dict(spark.steps)}"


@pytest.mark.parametrize("seed", range(12))
def test_ottla(
    broker: BrokerProcess, new_topic: NewTopicName, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(broker.bootstrap, new_topic("crashed"), seed, monkeypatch)


@pytest.mark.kafka
@pytest.mark.parametrize("seed", range(100, 106))
def test_apache_kafka(
    kafka: ApacheKafka, new_topic: NewTopicName, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(kafka.bootstrap, new_topic("crashed"), seed, monkeypatch)
