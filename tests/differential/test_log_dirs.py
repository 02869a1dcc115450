"""Moving replicas between the log directories of a broker: two brokers with two each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch
from tests.differential.conftest import SETTINGS
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire

pytestmark = pytest.mark.kafka

TOPIC, LONG = "moved", "l" * 215
SECONDS = 30.0


class Side(NamedTuple):
    """One of the two brokers and its directories."""

    bootstrap: str
    directories: tuple[str, str]

    def move(self, topic: str, partition: int, directory: str, version: int) -> int:
        topics = [AlterReplicaLogDirTopic(topic, [partition])]
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(directory, topics)])
        with Wire(self.bootstrap) as wire:
            response = wire.ask(request, version)
        assert isinstance(response, AlterReplicaLogDirsResponse)
        ((row,),) = (result.partitions for result in response.results)
        assert (response.results[0].topic_name, row.partition_index) == (topic, partition)
        return row.error_code

    def where(self, topic: str) -> list[tuple[int, int, bool, int]]:
        """(partition, directory, whether it is a copy, lag) of a topic's replicas."""
        with Wire(self.bootstrap) as wire:
            response = wire.ask(DescribeLogDirsRequest(topics=None), 4)
        assert isinstance(response, DescribeLogDirsResponse)
        return sorted(
            (
                row.partition_index,
                self.directories.index(result.log_dir),
                row.is_future_key,
                row.offset_lag,
            )
            for result in response.results
            for found in result.topics
            for row in found.partitions
            if found.name == topic
        )

    def produce(self, topic: str, partition: int, count: int) -> None:
        batch = build_batch([(1_000, None, b"x" * 100, []) for _ in range(count)])
        data = [TopicProduceData(topic, [PartitionProduceData(partition, batch)])]
        with Wire(self.bootstrap) as wire:
            wire.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 9)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        rows = [DeleteRecordsPartition(partition, offset)]
        with Wire(self.bootstrap) as wire:
            wire.ask(DeleteRecordsRequest([DeleteRecordsTopic(topic, rows)], 10_000), 2)

    def bounds(self, topic: str, partition: int) -> list[int]:
        found = []
        for timestamp in (-2, -1):
            asked = ListOffsetsTopic(topic, [ListOffsetsPartition(partition, timestamp=timestamp)])
            with Wire(self.bootstrap) as wire:
                response = wire.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 5)
            assert isinstance(response, ListOffsetsResponse)
            found.append(response.topics[0].partitions[0].offset)
        return found


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    paths = [tmp_path_factory.mktemp(name) for name in ("kafka", "ottla")]
    kafka_dirs, ottla_dirs = (pair_in(path) for path in paths)
    with (
        start_kafka(paths[0], zookeeper=None, log_dirs=",".join(kafka_dirs), **SETTINGS) as kafka,
        start_broker(paths[1], log_dirs=",".join(ottla_dirs), **SETTINGS) as ottla,
    ):
        both = Side(kafka.bootstrap, kafka_dirs), Side(ottla.bootstrap, ottla_dirs)
        topics = [CreatableTopic(TOPIC, 3, 1), CreatableTopic(LONG, 1, 1)]
        for side in both:
            with Wire(side.bootstrap) as wire:
                wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=20_000), 7)
        yield both


def pair_in(path: Path) -> tuple[str, str]:
    return str(path / "first"), str(path / "second")


def same(sides: tuple[Side, Side], ask: Callable[[Side], object]) -> object:
    kafka, ottla = (ask(side) for side in sides)
    assert ottla == kafka
    return ottla


def move_away(side: Side, partition: int) -> int:
    """Moves a replica into the directory where it is not; waits until it is there."""
    ((source, _, _),) = (row[1:] for row in side.where(TOPIC) if row[0] == partition)
    code = side.move(TOPIC, partition, side.directories[1 - source], 2)
    eventually(
        lambda: (partition, 1 - source, False, 0) in side.where(TOPIC),
        lambda: side.where(TOPIC),
        seconds=SECONDS,
    )
    return code


REFUSED = [
    (TOPIC, 0, "/no/such/directory"),
    ("not-there", 0, "/no/such/directory"),
    (LONG, 0, "/no/such/directory"),
    ("not-there", 0, None),
    (TOPIC, 9, None),
    (LONG, 0, None),
]


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(("topic", "partition", "directory"), REFUSED)
def test_refusals(
    sides: tuple[Side, Side], topic: str, partition: int, directory: str | None, version: int
) -> None:
    def ask(side: Side) -> int:
        return side.move(topic, partition, directory or side.directories[1], version)

    assert same(sides, ask) != 0


def test_a_replica_moves_there_and_back(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.produce(TOPIC, 0, 1000)
    for _ in range(2):
        assert same(sides, lambda side: move_away(side, 0)) == 0
        assert same(sides, lambda side: side.bounds(TOPIC, 0)) == [0, 1000]


def test_to_where_it_is(sides: tuple[Side, Side]) -> None:
    def stay(side: Side) -> int:
        ((index, _, _),) = (row[1:] for row in side.where(TOPIC) if row[0] == 1)
        return side.move(TOPIC, 1, side.directories[index], 2)

    assert same(sides, stay) == 0


def test_deleted_records_stay_deleted(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.produce(TOPIC, 2, 1000)
        side.delete_before(TOPIC, 2, 400)
    assert same(sides, lambda side: move_away(side, 2)) == 0
    assert same(sides, lambda side: side.bounds(TOPIC, 2)) == [400, 1000]
