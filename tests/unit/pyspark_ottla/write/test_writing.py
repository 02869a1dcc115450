"""Which partition the rows of a task go to, what is refused, and the transactions of tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.sink_options import SinkOptions, parse_sink_options
from pyspark_ottla.write import two_phase_commit, writing
from pyspark_ottla.write.decisions import TaskResult, Write
from pyspark_ottla.write.encode import Section
from pyspark_ottla.write.producing import TaskProducer
from pyspark_ottla.write.two_phase_commit import BatchCommit
from pyspark_ottla.write.writing import TaskWriter
from tests.doubles.scripted_coordinator import ScriptedCoordinator


class Sections:
    """Takes the place of the producer."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}

    def add(self, partition: TopicPartition, section: Section) -> None:
        self.rows.setdefault(partition.partition, []).extend(section.rows.tolist())


def write(partitions: list[int | None]) -> Sections:
    options = parse_sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
    sections = Sections()
    writer = TaskWriter(options, cast(TaskProducer, sections), lambda _: 3)
    values = pa.array([b"x"] * len(partitions), pa.binary())
    given = pa.array(partitions, pa.int32())
    writer.write(pa.RecordBatch.from_arrays([values, given], names=["value", "partition"]))
    return sections


def test_rows_go_to_the_partitions_that_they_name() -> None:
    assert write([2, 0, 2]).rows == {0: [1], 2: [0, 2]}
    assert sum(map(len, write([None, None]).rows.values())) == 2


@pytest.mark.parametrize("wrong", [3, -1, -(1 << 31)])
def test_a_partition_that_cannot_be_is_refused(wrong: int) -> None:
    with pytest.raises(ConnectorError, match=f"WRITE_FAILED.*Row 1 .* for partition {wrong} of"):
        write([0, wrong])


@pytest.mark.parametrize("name", ["", "bad topic!", "..", "a" * 250])
def test_a_topic_that_cannot_be_is_refused(name: str) -> None:
    options = parse_sink_options({"kafka.bootstrap.servers": "b:1"})
    writer = TaskWriter(options, cast(TaskProducer, Sections()), lambda _: 3)
    values = pa.array([b"x", b"y"], pa.binary())
    rows = pa.RecordBatch.from_arrays([values, pa.array(["t", name])], names=["value", "topic"])
    with pytest.raises(ConnectorError, match=r"INVALID_TOPIC.*The topic of row 1 of this task is"):
        writer.write(rows)


def test_a_header_without_a_key_is_refused() -> None:
    options = parse_sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
    writer = TaskWriter(options, cast(TaskProducer, Sections()), lambda _: 3)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([None, [{"key": "a", "value": None}], [{"key": None, "value": b"x"}]], kind)
    rows = pa.RecordBatch.from_arrays([pa.array([b"x"] * 3), headers], names=["value", "headers"])
    with pytest.raises(ConnectorError, match="header of row 2 of this task has no key"):
        writer.write(rows)


def write_nothing(
    options: SinkOptions, topics: object, producer: Any, batches: Iterator[Any]
) -> TaskResult:
    """Instead of `_write_all`: the transaction has a partition and no records."""
    producer._on_new_partitions([TopicPartition("t", 0)])
    producer.close()
    return TaskResult(1, 0, {})


def test_a_query_continues_after_a_change_of_its_bootstrap_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transactions of the last decision keep their ids until the next one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(writing, "_write_all", write_nothing)
    coordinator = ScriptedCoordinator()
    for number, servers in enumerate(["b:1", "b:1,c:1"]):
        two_phase_commit._known.clear()  # a new process of the driver
        options = parse_sink_options({"kafka.bootstrap.servers": servers, "topic": "t"})
        cluster = KafkaCluster(coordinator.as_client, options.client)
        write = Write("pyspark-ottla-q", number, str(number) * 32, str(number))
        result = writing._write_prepared(options, cluster, cluster, iter(()), write)
        assert result.prepared is not None
        assert result.target is not None
        assert BatchCommit(options, cluster, write, result.target).commit([result.prepared], 1)
    two_phase_commit._known.clear()
