"""Tasks with `kafka.client.rack`, on two brokers in two racks: Ottla's and Apache Kafka's.

The leader returns the id of the near replica instead of records (KIP-392).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.messages.fetch import PartitionData
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.cluster.connections import cluster_of
from pyspark_ottla.cluster.fetch_source import LEADER, FetchSource
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.options.options import SourceOptions, parse_source_options
from pyspark_ottla.read.schema import row_schema
from pyspark_ottla.read.task import read_range
from tests.doubles.apache_kafka import start_kafka, start_zookeeper
from tests.doubles.broker_cluster import start_cluster
from tests.doubles.eventually import eventually
from tests.spark.support import Sent, write

TP = TopicPartition("near", 0)
COUNT = 5000
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RACKS = {1: "a", 2: "b"}


class TwoRacks(NamedTuple):
    """Broker 1 in rack a leads the topic, broker 2 in rack b follows."""

    bootstrap: str
    kill_follower: Callable[[], None]


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)], scope="module")
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoRacks]:
    directory = tmp_path_factory.mktemp("racks")
    with ExitStack() as stack:
        if request.param == "ottla":
            cluster = stack.enter_context(
                start_cluster(
                    directory,
                    2,
                    lambda broker_id: {"broker.rack": RACKS[broker_id]},
                    replica_selector_class=SELECTOR,
                )
            )
            racks = TwoRacks(cluster.bootstrap, cluster[2].kill)
        else:
            zookeeper = stack.enter_context(start_zookeeper(directory))
            kafkas = [
                stack.enter_context(
                    start_kafka(
                        directory / f"broker-{broker_id}",
                        zookeeper=zookeeper,
                        broker_id=broker_id,
                        broker_rack=rack,
                        replica_selector_class=SELECTOR,
                    )
                )
                for broker_id, rack in RACKS.items()
            ]
            bootstrap = ",".join(kafka.bootstrap for kafka in kafkas)
            racks = TwoRacks(bootstrap, kafkas[1].kill)
        admin = AdminClient({"bootstrap.servers": racks.bootstrap})
        eventually(lambda: len(admin.list_topics(timeout=30).brokers) == 2, "one broker is missing")
        topic = NewTopic(TP.topic, 1, replica_assignment=[[1, 2]], config={"retention.ms": "-1"})
        admin.create_topics([topic])[TP.topic].result()
        write(racks.bootstrap, TP.topic, sent(), acks="all", batch_size=10_000)
        yield racks


def sent() -> list[Sent]:
    return [Sent(b"%d" % n * 20) for n in range(COUNT)]


@pytest.fixture
def fetched_from(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The broker of each fetch that brought records; None is the leader."""
    found: list[int | None] = []
    fetch = KafkaCluster.fetch

    def recorded(
        self: KafkaCluster,
        partition: TopicPartition,
        offset: int,
        bytes_max: int,
        timeout_ms: int,
        source: FetchSource = LEADER,
    ) -> tuple[PartitionData, int]:
        response = fetch(self, partition, offset, bytes_max, timeout_ms, source)
        if response[0].records:
            found.append(source.node_id)
        return response

    monkeypatch.setattr(KafkaCluster, "fetch", recorded)
    return found


def options(bootstrap: str, **more: str) -> SourceOptions:
    given = {name.replace("_", "."): value for name, value in more.items()}
    base = {"kafka.bootstrap.servers": bootstrap, "subscribe": TP.topic, "fetchMaxBytes": "20000"}
    return parse_source_options(base | given)


def batches(chosen: SourceOptions) -> Iterator[Any]:
    return read_range(chosen, row_schema(chosen), OffsetRange(TP, 0, COUNT))


def values(found: Iterator[Any]) -> list[bytes]:
    return [value for batch in found for value in batch.column("value").to_pylist()]


def test_the_near_replica_is_read_and_left_when_it_dies(
    brokers: TwoRacks, fetched_from: list[int | None]
) -> None:
    expected = [record.value for record in sent()]
    for rack, node_id in {"": None, "a": None, "elsewhere": None, "b": 2}.items():
        fetched_from.clear()
        assert values(batches(options(brokers.bootstrap, kafka_client_rack=rack))) == expected, rack
        # The last records may come from the leader: a follower learns of its high watermark late.
        assert fetched_from[0] == node_id, rack
        assert len(fetched_from) > 2
    near = options(brokers.bootstrap, kafka_client_rack="b", prefetch="0")
    with cluster_of(near) as cluster:
        size = cluster.bytes_per_offset(TP, 0)
        assert size is not None, "a byte limit needs to see records, too"
        assert size > 20
        assert cluster.local_log_start(TP) == 0
    fetched_from.clear()
    reading = batches(near)
    found = next(reading).column("value").to_pylist()
    brokers.kill_follower()
    assert found + values(reading) == expected
    assert fetched_from[0] == 2
    assert fetched_from[-1] is None
