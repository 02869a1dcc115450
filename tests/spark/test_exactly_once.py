"""Exactly-once writes through real Spark: repeated batches, several writes in one batch, ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_ottla.write.writer import QUERY_ID_PROPERTY
from tests.doubles.broker_process import BrokerProcess
from tests.spark.streams import finish, stream
from tests.spark.support import create_topic, load, rows_by_place
from tests.spark.test_sink import Copy, make_copy, save

NewTopicName = Callable[[str], str]


@pytest.fixture
def copy(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> Copy:
    return make_copy(spark, broker.bootstrap, new_topic("from"), new_topic("to"), tmp_path)


def values(spark: SparkSession, bootstrap: str, topic: str) -> list[str]:
    """The records that read_committed readers get."""
    frame = load(spark, bootstrap, subscribe=topic, kafka_isolation_level="read_committed")
    return sorted((record.value or b"").decode() for record in rows_by_place(frame).values())


def run_foreach_batch(
    spark: SparkSession, bootstrap: str, copy: Copy, function: Callable[[DataFrame, int], None]
) -> None:
    frame = stream(spark, bootstrap, subscribe=copy.source, startingOffsets="earliest")
    writer = frame.writeStream.foreachBatch(function)
    writer = writer.option("checkpointLocation", str(copy.checkpoint))
    finish(writer.trigger(availableNow=True).start())


def once(frame: DataFrame, bootstrap: str, topic: str, **options: object) -> None:
    save(frame, bootstrap, topic=topic, delivery="exactly-once", **options)


def test_a_repeated_batch_with_other_tasks(copy: Copy) -> None:
    """Neither the number of tasks nor their rows are the same in the repetition."""
    copy.run(delivery="exactly-once")
    copy.forget_end_of(2)
    copy.run("rand() >= 0", tasks=3, delivery="exactly-once")
    assert copy.values() == list(range(30))


def test_batch_numbers_that_start_over_are_refused(copy: Copy) -> None:
    copy.run(delivery="exactly-once")
    for folder in ("offsets", "commits"):
        for file in (copy.checkpoint / folder).iterdir():
            file.unlink()
    with pytest.raises(Exception, match=r"BATCH_NUMBERS_RESTARTED.*batch 0 .*batch 2 has been"):
        copy.run(delivery="exactly-once")
    assert copy.values() == list(range(30))


def test_a_batch_job_needs_a_write_id(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("batch-once")
    create_topic(broker.bootstrap, topic, 2)
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(Exception, match=r"WRITE_ID_NEEDED.*Set the option writeId"):
        once(frame, broker.bootstrap, topic)
    for _ in range(2):  # the second time nothing is written
        once(frame, broker.bootstrap, topic, writeId=f"load-{topic}")
    assert len(values(spark, broker.bootstrap, topic)) == 100
    with pytest.raises(Exception, match=r"WRITE_ID_REUSED.*100 rows.*this job has 7"):
        once(frame.limit(7), broker.bootstrap, topic, writeId=f"load-{topic}")
    assert len(values(spark, broker.bootstrap, topic)) == 100


def test_two_writes_of_one_batch_count_each(
    spark: SparkSession, broker: BrokerProcess, copy: Copy
) -> None:
    def write_batch(batch: DataFrame, number: int) -> None:
        for name in ("inserts", "deletes"):
            changed = batch.selectExpr(f"concat('{name} ', CAST(value AS STRING)) AS value")
            once(changed, broker.bootstrap, copy.target, writeId=name)

    wanted = sorted(f"{name} {n}" for name in ("inserts", "deletes") for n in range(30))
    for _ in range(2):
        run_foreach_batch(spark, broker.bootstrap, copy, write_batch)
        assert values(spark, broker.bootstrap, copy.target) == wanted
        copy.forget_end_of(0)


def test_two_writes_without_an_id_are_refused(
    spark: SparkSession, broker: BrokerProcess, copy: Copy
) -> None:
    def write_batch(batch: DataFrame, number: int) -> None:
        once(batch.select("value"), broker.bootstrap, copy.target)
        once(batch.selectExpr("upper('b') AS value"), broker.bootstrap, copy.target)

    with pytest.raises(Exception, match=r"WRITE_ID_NEEDED.*second write to the same topic"):
        run_foreach_batch(spark, broker.bootstrap, copy, write_batch)
    assert copy.values() == list(range(30))


def test_a_write_that_spark_gives_no_batch_needs_its_number(
    spark: SparkSession, broker: BrokerProcess, copy: Copy
) -> None:
    """As in a thread of foreachBatch and in Spark Connect: tasks do not learn the batch."""
    name = f"thread-{copy.target}"
    options: dict[str, object] = {}

    def write_batch(batch: DataFrame, number: int) -> None:
        context = batch.sparkSession.sparkContext
        query_id = context.getLocalProperty(QUERY_ID_PROPERTY)
        context.setLocalProperty(QUERY_ID_PROPERTY, None)
        if options:
            options["batchId"] = number
        try:
            once(batch.select("value"), broker.bootstrap, copy.target, **options)
        finally:
            context.setLocalProperty(QUERY_ID_PROPERTY, query_id)

    with pytest.raises(Exception, match=r"WRITE_ID_NEEDED.*also set batchId"):
        run_foreach_batch(spark, broker.bootstrap, copy, write_batch)
    options["writeId"] = name
    for _ in range(2):
        run_foreach_batch(spark, broker.bootstrap, copy, write_batch)
        assert copy.values() == list(range(30))
        copy.forget_end_of(0)


def test_complete_mode_appends_the_whole_result_each_time(
    spark: SparkSession, broker: BrokerProcess, copy: Copy
) -> None:
    frame = stream(
        spark,
        broker.bootstrap,
        subscribe=copy.source,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=20,
    )
    counts = frame.groupBy("key").count().selectExpr("CAST(count AS STRING) AS value")
    writer = counts.writeStream.format("ottla").outputMode("complete")
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
    writer = writer.option("topic", copy.target).option("delivery", "exactly-once")
    finish(
        writer.option("checkpointLocation", str(copy.checkpoint)).trigger(availableNow=True).start()
    )
    assert copy.values() == [20, 30]
