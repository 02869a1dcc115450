"""What a streaming query outlives: brokers that are away, and a Python that starts slowly."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import pyspark_ottla
from tests.doubles.broker_process import BrokerProcess, start_broker
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
