"""`make tiered-large`: a topic of 10 GB of which the broker's disk has 256 MB, read as a whole.

One broker copies the segments to a folder and deletes them locally. The records are numbered. Then
a consumer reads the topic through the broker, and Spark reads it from the folder, as a batch and as
a stream with AvailableNow. Each has to find every record once, in order, with the bytes that were
written. In the end the topic is deleted, and the store has to be empty.

    python -m tests.spark.tiered_large [--megabytes 10240] [--local-megabytes 256]

The directory for temporary files (TMPDIR) needs room for the topic and the local part.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as Place
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ottla.protocol.topics import TopicPartition
from ottla.storage.remote.object_store import NAME as STORE_MARK
from pyspark_ottla.cluster.connections import cluster_of
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.remote.planning import EARLIEST_LOCAL, LATEST_TIERED, special_offset
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.tiered_topics import large_tiered_settings
from tests.spark.conftest import build_session, spark_environment
from tests.spark.streams import stream
from tests.spark.support import create_topic, delete_topic, load

TOPIC = "large"
RECORD_BYTES = 1024
NUMBER_BYTES = 8
SILENCE_SECONDS = 120.0


class Size(NamedTuple):
    """Of one run."""

    records: int
    partitions: int
    segment_bytes: int
    local_bytes: int

    @property
    def log_bytes(self) -> int:
        return self.records * RECORD_BYTES


class Found(NamedTuple):
    """What a reader found: record n is in partition n modulo the partitions."""

    records: int
    crc_sum: int
    #: Records that do not follow the one before, or have another number than their place.
    misplaced: int


@contextmanager
def large_broker(directory: Path, store: Path) -> Iterator[BrokerProcess]:
    settings = {
        **large_tiered_settings(store),
        "rsm_config_fetch_chunk_cache_prefetch_max_size": 8 << 20,
    }
    with start_broker(directory, **settings) as broker:
        yield broker


def write(broker: BrokerProcess, size: Size) -> int:
    """The sum of the CRCs of all values. Returns when the local disk has what it may keep."""
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": str(size.segment_bytes),
        "local.retention.bytes": str(size.local_bytes // size.partitions),
        "file.delete.delay.ms": "0",
    }
    create_topic(broker.bootstrap, TOPIC, size.partitions, config)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 20,
            "batch.size": min(1 << 18, size.segment_bytes // 4),
            "enable.idempotence": True,
        }
    )
    block = random.Random(1).randbytes(1 << 16)
    failed: list[object] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    crc_sum = 0
    for number in range(size.records):
        begin = number * 7 % (len(block) - RECORD_BYTES)
        value = number.to_bytes(NUMBER_BYTES) + block[begin : begin + RECORD_BYTES - NUMBER_BYTES]
        crc_sum += zlib.crc32(value)
        while True:
            try:
                producer.produce(
                    *(TOPIC, value),
                    partition=number % size.partitions,
                    on_delivery=on_delivery,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(600) == 0
    assert failed == []
    # What is closed and above the limit is deleted as soon as it is copied.
    limit = size.local_bytes + 2 * size.segment_bytes * size.partitions
    eventually(lambda: local_bytes(broker) <= limit, "the local log is too large", seconds=600)
    eventually(lambda: is_copied(broker, size), "closed segments are not copied", seconds=600)
    return crc_sum


def is_copied(broker: BrokerProcess, size: Size) -> bool:
    """All but the active segment of each partition: no copy runs any more."""
    active = [
        max(int(path.stem) for path in broker.data_directory.glob(f"{TOPIC}-{partition}/*.log"))
        for partition in range(size.partitions)
    ]
    return special_offsets(broker, size, LATEST_TIERED) == [offset - 1 for offset in active]


def local_bytes(broker: BrokerProcess) -> int:
    """Of the segments of the topic on the broker's disk."""
    found = 0
    for path in broker.data_directory.glob(f"{TOPIC}-*/*.log"):
        try:
            found += path.stat().st_size
        except FileNotFoundError:  # deleted since
            continue
    return found


def special_offsets(broker: BrokerProcess, size: Size, timestamp: int) -> list[int]:
    """By partition, of one of the timestamps that stand for the bounds of the tiered part."""
    options = parse_source_options(
        {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC}
    )
    with cluster_of(options) as cluster:
        return [
            special_offset(cluster, TopicPartition(TOPIC, partition), timestamp)
            for partition in range(size.partitions)
        ]


def read_through_broker(broker: BrokerProcess, size: Size) -> Found:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "large",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([Place(TOPIC, n, OFFSET_BEGINNING) for n in range(size.partitions)])
    records = crc_sum = misplaced = 0
    expected = [0] * size.partitions
    deadline = time.monotonic() + SILENCE_SECONDS
    try:
        while records < size.records and time.monotonic() < deadline:
            for message in consumer.consume(10_000, 1.0):
                assert message.error() is None, message.error()
                value, partition, offset = message.value(), message.partition(), message.offset()
                assert value is not None
                assert partition is not None
                number = int.from_bytes(value[:NUMBER_BYTES])
                is_next = offset == expected[partition]
                misplaced += not is_next or number != offset * size.partitions + partition
                expected[partition] = (offset or 0) + 1
                records += 1
                crc_sum += zlib.crc32(value)
                deadline = time.monotonic() + SILENCE_SECONDS
    finally:
        consumer.close()
    return Found(records, crc_sum, misplaced)


def direct(store: Path, **more: object) -> dict[str, object]:
    """Options: an object that cannot be read fails the query."""
    prefix = "ottla_remote_rsm_config_storage"
    return {
        "subscribe": TOPIC,
        "ottla_remote_read": "direct",
        "ottla_remote_onError": "fail",
        f"{prefix}_backend_class": "filesystem",
        f"{prefix}_root": store,
        **more,
    }


def checked(rows: DataFrame, partitions: int) -> Found:
    """One walk over rows with partition, offset and value."""
    # A task reads offsets of one partition, without gaps here: in order, the offset of each row and
    # its place in the task are always the same apart.
    ahead = f.col("offset") - f.monotonically_increasing_id()
    number = f.conv(f.hex(f.substring("value", 1, NUMBER_BYTES)), 16, 10).cast("long")
    is_wrong = number != f.col("offset") * partitions + f.col("partition")
    tasks = (
        rows.select(
            f.spark_partition_id().alias("task"),
            ahead.alias("ahead"),
            is_wrong.cast("long").alias("is_wrong"),
            f.crc32("value").alias("crc"),
        )
        .groupBy("task")
        .agg(
            f.count("*").alias("records"),
            f.sum("crc").alias("crc_sum"),
            f.sum("is_wrong").alias("wrong"),
            (f.max("ahead") - f.min("ahead")).alias("disorder"),
        )
        .collect()
    )
    return Found(
        sum(task["records"] for task in tasks),
        sum(task["crc_sum"] for task in tasks),
        sum(task["wrong"] + (task["disorder"] != 0) for task in tasks),
    )


def read_with_spark(spark: SparkSession, broker: BrokerProcess, store: Path, size: Size) -> Found:
    schema = "partition int, offset long, value binary"
    return checked(load(spark, broker.bootstrap, schema, **direct(store)), size.partitions)


def stream_with_spark(spark: SparkSession, broker: BrokerProcess, store: Path, size: Size) -> Found:
    """The same in four batches or more of a stream with AvailableNow."""
    options = direct(
        store, startingOffsets="earliest", maxOffsetsPerTrigger=max(1, size.records // 4)
    )
    batches: list[Found] = []
    query = (
        stream(spark, broker.bootstrap, **options)
        .writeStream.foreachBatch(lambda rows, _: batches.append(checked(rows, size.partitions)))
        .option("checkpointLocation", str(store.parent / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(batches) >= 4, batches
    return Found(*(sum(numbers) for numbers in zip(*batches, strict=True)))


def run(
    directory: Path,
    size: Size,
    session: Callable[[], SparkSession],
    report: Callable[[str], None],
    *,
    with_stream: bool,
) -> None:
    """All of it. Raises AssertionError with what is not as it was written."""
    store = directory / "store"
    store.mkdir()
    with large_broker(directory, store) as broker:
        begun = time.monotonic()
        crc_sum = write(broker, size)
        tiered = sum(special_offsets(broker, size, EARLIEST_LOCAL))
        report(
            f"{size.log_bytes / 1e6:.0f} MB written in {time.monotonic() - begun:.0f} s,"
            f" {local_bytes(broker) / 1e6:.0f} MB are on the local disk,"
            f" {tiered} of {size.records} records in the store only"
        )
        assert tiered > 0
        expected = Found(size.records, crc_sum, 0)
        spark = session()
        readers = {
            "a consumer through the broker": lambda: read_through_broker(broker, size),
            "Spark from the store": lambda: read_with_spark(spark, broker, store, size),
        }
        if with_stream:
            readers["a stream from the store"] = lambda: stream_with_spark(
                spark, broker, store, size
            )
        for name, read in readers.items():
            begun = time.monotonic()
            found = read()
            seconds = time.monotonic() - begun
            report(f"{name}: {found}, {size.log_bytes / 1e6 / seconds:.0f} MB/s")
            assert found == expected, f"{name} found {found}, expected {expected}"
        delete_topic(broker.bootstrap, TOPIC)
        eventually(
            lambda: (
                not any(
                    path.is_file() and not path.name.startswith(STORE_MARK)
                    for path in store.rglob("*")
                )
            ),
            "objects of the deleted topic are in the store",
            seconds=300,
        )
        report("the deleted topic left nothing in the store")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=10_240)
    parser.add_argument("--local-megabytes", type=int, default=256)
    parser.add_argument("--segment-megabytes", type=int, default=64)
    parser.add_argument("--partitions", type=int, default=1)
    arguments = parser.parse_args()
    needed = (arguments.megabytes + 2 * arguments.local_megabytes) << 20
    if shutil.disk_usage(tempfile.gettempdir()).free < 1.2 * needed:
        sys.exit(f"{tempfile.gettempdir()} has too little room: {1.2 * needed / 1e9:.0f} GB needed")
    size = Size(
        arguments.megabytes << 10,
        arguments.partitions,
        arguments.segment_megabytes << 20,
        arguments.local_megabytes << 20,
    )
    with tempfile.TemporaryDirectory(prefix="tiered-large") as name:
        directory = Path(name)
        os.environ.update(spark_environment(directory))
        run(
            *(directory, size, lambda: build_session(directory)),
            lambda text: print(text, flush=True),
            with_stream=True,
        )


if __name__ == "__main__":
    main()
