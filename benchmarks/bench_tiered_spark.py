"""`make bench-tiered-spark`: tiered history read by Spark straight from the store, and through the
broker.

One broker copies a topic of one partition to a folder and keeps little of it on its own disk. A
Spark session with two tasks then reads the topic to nowhere, in turns: through the broker, direct,
direct, through the broker, after one of each that is not counted. Printed are the medians, the
processor time of the broker, and the ratio.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.connections import cluster_of
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.remote.planning import EARLIEST_LOCAL, LATEST_TIERED, special_offset
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.tiered_topics import large_tiered_settings
from tests.spark.conftest import build_session, spark_environment
from tests.spark.support import create_topic, load

TOPIC = "history"
VALUE_BYTES = 1024
COPY_SECONDS = 600.0


@contextmanager
def tiered_broker(directory: Path, segment_bytes: int) -> Iterator[BrokerProcess]:
    store = directory / "store"
    store.mkdir()
    with start_broker(directory, **large_tiered_settings(store)) as broker:
        config = {
            "remote.storage.enable": "true",
            "segment.bytes": str(segment_bytes),
            "local.retention.bytes": str(segment_bytes),
        }
        create_topic(broker.bootstrap, TOPIC, config=config)
        yield broker


def write(bootstrap: str, megabytes: int) -> None:
    """Records of 1 KiB that do not compress; returns when all but the last segments are tiered."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1 << 18})
    values = [random.Random(seed).randbytes(VALUE_BYTES) for seed in range(64)]
    count = megabytes * 1024
    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, values[number % 64])
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(600) == 0
    options = parse_source_options({"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC})
    with cluster_of(options) as cluster:
        tp = TopicPartition(TOPIC, 0)

        def is_tiered() -> bool:
            local = special_offset(cluster, tp, EARLIEST_LOCAL)
            return local > count * 0.7 and special_offset(cluster, tp, LATEST_TIERED) >= local

        eventually(is_tiered, "the history was not copied", seconds=COPY_SECONDS)


def read(spark: SparkSession, bootstrap: str, store: Path, tasks: int, *, direct: bool) -> float:
    """Seconds."""
    prefix = "ottla_remote_rsm_config_storage"
    options: dict[str, object] = {"subscribe": TOPIC, "minPartitions": tasks}
    if direct:
        options |= {"ottla_remote_read": "direct", f"{prefix}_backend_class": "filesystem"}
        options[f"{prefix}_root"] = store
    frame = load(spark, bootstrap, "value binary, offset long", **options)
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def measure(arguments: argparse.Namespace, directory: Path) -> None:
    segment_bytes = arguments.segment_megabytes << 20
    os.environ.update(spark_environment(directory))
    with tiered_broker(directory, segment_bytes) as broker:
        write(broker.bootstrap, arguments.megabytes)
        spark = build_session(directory)
        process = psutil.Process(broker.pid)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        broker_seconds: dict[bool, list[float]] = {True: [], False: []}
        order = [False, True] + [False, True, True, False] * arguments.rounds
        for number, direct in enumerate(order):
            before = sum(process.cpu_times()[:2])
            store = directory / "store"
            taken = read(spark, broker.bootstrap, store, arguments.tasks, direct=direct)
            used = sum(process.cpu_times()[:2]) - before
            way = "direct" if direct else "through the broker"
            rate = arguments.megabytes / taken
            print(f"{way}: {taken:.1f} s, {rate:.0f} MiB/s, broker {used:.1f} s", flush=True)
            if number >= 2:
                seconds[direct].append(taken)
                broker_seconds[direct].append(used)
        spark.stop()
    medians = {direct: statistics.median(found) for direct, found in seconds.items()}
    for direct, way in ((False, "through the broker"), (True, "direct")):
        rate = arguments.megabytes / medians[direct]
        used = statistics.median(broker_seconds[direct])
        print(f"{way}: median {rate:.0f} MiB/s, processor time of the broker {used:.1f} s")
    print(f"direct is {medians[False] / medians[True]:.2f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--segment-megabytes", type=int, default=64)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tiered-spark") as directory:
        measure(arguments, Path(directory))


if __name__ == "__main__":
    main()
