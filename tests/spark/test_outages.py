"""What a streaming query outlives: brokers that are away, and a Python that starts slowly."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import pyspark_ottla
from pyspark_ottla.early_connection import HOST_VARIABLE
from tests.doubles.broker_cluster import start_cluster
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.cluster_view import view
from tests.doubles.spark_kafka_jars import connector_jars
from tests.spark.streams import run_to_end, stream, wait_until
from tests.spark.support import Sent, create_topic, write

NewTopicName = Callable[[str], str]
# Python's start as it is on a machine that has no time for it; Spark waits for ten seconds.
SLOW = """
import sys, time
if any("python_streaming_source_runner" in part for part in sys.orig_argv):
    time.sleep(12)
"""


def test_python_may_start_slowly(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("slow")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"x")] * 3)
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW)
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment["PYTHONPATH"] = str(slow)
    try:
        pyspark_ottla.register(spark)
        frame = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest")
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = run_to_end(writer.start())
        assert sum(progress.numInputRows for progress in query.recentProgress) == 3
    finally:
        environment.clear()
        environment.update(before)
        pyspark_ottla.register(spark)


def test_a_later_query_forks_the_process_of_its_source(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = "forked"
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"%d" % number) for number in range(3)])
    pyspark_ottla.register(spark)
    hosts = Path(spark.sparkContext.environment[HOST_VARIABLE])
    known: set[Path] = set()
    for name in ("first", "second", "third"):
        frame = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest")
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = run_to_end(writer.option("checkpointLocation", str(tmp_path / name)).start())
        assert rows(query) == 3
        found = set(hosts.iterdir())
        assert found >= known, "the host of the first query has ended"
        assert found
        known = found


def rows(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


@pytest.mark.parametrize("kind", ["ottla", "kafka"])
def test_a_query_waits_for_its_brokers(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Longer than one look-up may take, and shorter than all of them; then the same without
    repetitions."""
    if kind == "kafka" and isinstance(jars := connector_jars(), str):
        pytest.skip(jars)
    with start_broker(tmp_path) as broker:
        create_topic(broker.bootstrap, "outage")
        write(broker.bootstrap, "outage", [Sent(b"x")])

        def start(retries: int) -> StreamingQuery:
            reader = (
                spark.readStream.format(kind)
                .option("subscribe", "outage")
                .options(
                    **{
                        "kafka.bootstrap.servers": broker.bootstrap,
                        "startingOffsets": "earliest",
                        "kafka.request.timeout.ms": "2000",
                        "kafka.default.api.timeout.ms": "2500",
                        "fetchOffset.numRetries": str(retries),
                    }
                )
            )
            writer = reader.load().writeStream.format("noop").trigger(processingTime="0 seconds")
            location = str(tmp_path / f"checkpoint-{retries}")
            return writer.option("checkpointLocation", location).start()

        patient, hasty = start(60), start(1)
        try:
            for query in (patient, hasty):
                wait_until(lambda query=query: rows(query) == 1, "the first row")
            broker.kill()
            wait_until(lambda: not hasty.isActive, "the query without repetitions has failed")
            time.sleep(6)
            broker.start()
            write(broker.bootstrap, "outage", [Sent(b"y")])
            wait_until(lambda: rows(patient) == 2 or not patient.isActive, "the second row")
            assert patient.exception() is None
            assert rows(patient) == 2
        finally:
            patient.stop()
            hasty.stop()


@pytest.mark.parametrize("kind", ["ottla", "kafka"])
def test_brokers_restart_one_after_the_other_and_move(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """In the end no address of the bootstrap list is one of a broker any more. A query that is
    started again has another list, in a source that its checkpoint knows by the topics."""
    if kind == "kafka" and isinstance(jars := connector_jars(), str):
        pytest.skip(jars)

    with start_cluster(tmp_path / "cluster") as cluster, view(cluster) as seen:
        seen.create("moved", [1, 2, 3], [2, 3, 1], [3, 1, 2])

        def start(bootstrap: str) -> StreamingQuery:
            reader = spark.readStream.format(kind).option("subscribe", "moved")
            reader = reader.option("kafka.bootstrap.servers", bootstrap)
            reader = reader.option("startingOffsets", "earliest")
            writer = reader.load().writeStream.format("noop").trigger(processingTime="0 seconds")
            return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

        query = start(cluster.bootstrap)
        try:
            for count, broker in enumerate(cluster.brokers.values()):
                write(cluster.bootstrap, "moved", [Sent(b"x", partition=n) for n in range(3)])
                wanted = 3 * (count + 1)
                wait_until(lambda n=wanted: rows(query) >= n or not query.isActive, "the rows")
                broker.stop()
                broker.port = 0  # any that is free
                broker.start()
                for index in range(3):
                    seen.wait_for_isr("moved", {1, 2, 3}, index)
            write(cluster.bootstrap, "moved", [Sent(b"y", partition=n) for n in range(3)])
            wait_until(lambda: rows(query) >= 12 or not query.isActive, "the last rows")
            assert (query.exception(), rows(query)) == (None, 12)
        finally:
            query.stop()
        write(cluster.bootstrap, "moved", [Sent(b"z", partition=n) for n in range(3)])
        query = start(cluster.bootstrap)
        try:
            wait_until(lambda: rows(query) >= 3 or not query.isActive, "the rows after it")
            assert (query.exception(), rows(query)) == (None, 3)
        finally:
            query.stop()
