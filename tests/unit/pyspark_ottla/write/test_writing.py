"""Which partition the rows of a task go to, and what is refused."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
import pytest

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.sink_options import parse_sink_options
from pyspark_ottla.write.encode import Section
from pyspark_ottla.write.producing import TaskProducer
from pyspark_ottla.write.writing import TaskWriter


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
