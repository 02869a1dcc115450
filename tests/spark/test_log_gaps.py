"""A log whose last offsets have no records, on Ottla's broker and on Apache Kafka's.

Compaction leaves such a log where the last segment is empty and the one before it lost its last
batches. The test makes it from files: a broker does it at a time of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.records.reader import iterate_entries
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.connections import cluster_of
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import LATEST, OffsetRange
from pyspark_ottla.options.options import SourceOptions, parse_source_options
from pyspark_ottla.read.schema import row_schema
from pyspark_ottla.read.task import read_range
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually
from tests.spark.support import Sent, create_topic, producer, send

TP = TopicPartition("gap", 0)
COUNT, KEPT = 10, 6
BROKERS = ["ottla", pytest.param("kafka", marks=pytest.mark.kafka)]


@contextmanager
def running_ottla(directory: Path) -> Iterator[tuple[str, Path]]:
    broker = BrokerProcess(directory, {})
    broker.start()
    try:
        yield broker.bootstrap, broker.data_directory
    finally:
        broker.stop()


@contextmanager
def running_kafka(directory: Path) -> Iterator[tuple[str, Path]]:
    with start_kafka(directory, controlled_shutdown_enable="true") as kafka:
        yield kafka.bootstrap, kafka.log_directories[0]


def options(bootstrap: str, timeout: str) -> SourceOptions:
    return parse_source_options(
        {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": TP.topic,
            "kafkaConsumer.pollTimeoutMs": timeout,
            "kafka.fetch.max.wait.ms": "50",
        }
    )


def offsets(chosen: SourceOptions, start: int, end: int) -> list[int]:
    batches = read_range(chosen, row_schema(chosen), OffsetRange(TP, start, end))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def remove_last_batches(data: Path) -> None:
    """The segment keeps KEPT batches of one record, and an empty one follows."""
    [segment] = (data / "gap-0").glob("*.log")
    content = memoryview(segment.read_bytes())
    ends = [at + header.size_in_bytes for at, header in iterate_entries(content)]
    assert len(ends) == COUNT
    segment.write_bytes(content[: ends[KEPT - 1]])
    for index in (data / "gap-0").glob("*index"):
        index.unlink()
    (data / "gap-0" / f"{COUNT:020}.log").touch()


@pytest.mark.parametrize("kind", BROKERS)
def test_the_end_of_a_log_without_records(kind: str, tmp_path: Path) -> None:
    run: Callable[..., Any] = {"ottla": running_ottla, "kafka": running_kafka}[kind]
    with run(tmp_path) as (bootstrap, data):
        create_topic(bootstrap, TP.topic)
        client = producer(bootstrap, batch_num_messages=1)
        send(client, TP.topic, [Sent(b"%d" % n) for n in range(COUNT)])
    remove_last_batches(data)
    with run(tmp_path) as (bootstrap, _):
        patient = options(bootstrap, "60s")
        with cluster_of(patient) as cluster:
            eventually(lambda: cluster.offsets_at({TP: LATEST}) == {TP: COUNT}, "no such log")
            assert cluster.local_log_start(TP) == 0
        assert offsets(patient, 0, COUNT) == list(range(KEPT))
        assert offsets(patient, 7, 9) == []
        # Offset 10 may still be written: that is no gap.
        with pytest.raises(ConnectorError, match=r"FETCH_TIMEOUT\] No record of gap-0 from offset"):
            offsets(options(bootstrap, "200ms"), 0, COUNT + 1)
        send(producer(bootstrap), TP.topic, [Sent(b"more")])
        assert offsets(patient, 0, COUNT + 1) == [*range(KEPT), COUNT]
