"""Exactly-once writes through real Spark: repeated batches, several writes in one batch, ids."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_ottla.write.writer import QUERY_ID_PROPERTY
from tests.doubles.broker_process import BrokerProcess
from tests.spark.streams import finish, stream
from tests.spark.support import (
    Sent,
    create_topic,
    delete_topic,
    load,
    recreate,
    rows_by_place,
    write,
)
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


def copied(copy: Copy, name: str) -> Copy:
    """The same query from a copy of its checkpoint."""
    other = Copy(*copy.parts, copy.source, copy.target, copy.checkpoint.parent / name)
    shutil.copytree(copy.checkpoint, other.checkpoint)
    return other


def add_rows(copy: Copy, numbers: range) -> None:
    write(copy.parts[1], copy.source, [Sent(b"%d" % n, b"k", n % 2) for n in numbers])


@pytest.mark.parametrize("behind", [True, False])
def test_a_checkpoint_copied_for_another_topic_needs_a_write_id(
    copy: Copy, new_topic: NewTopicName, behind: bool
) -> None:
    """The next batch of the copy has the number of one that was written to the first topic, or
    follows it."""
    copy.run(delivery="exactly-once")
    other = copied(copy, "second")
    other.target = new_topic("second")
    create_topic(copy.parts[1], other.target, 2)
    add_rows(copy, range(30, 40))
    if behind:
        copy.run(delivery="exactly-once")
    with pytest.raises(Exception, match=rf"WRITE_ID_NEEDED.*to the topic {copy.target}, not to"):
        other.run(delivery="exactly-once")
    assert other.values() == []
    other.run(delivery="exactly-once", writeId="second")
    copy.run(delivery="exactly-once")
    add_rows(copy, range(40, 50))
    for query, options in ((copy, {}), (other, {"writeId": "second"})):
        query.run(delivery="exactly-once", **options)
    assert copy.values() == list(range(50))
    assert other.values() == list(range(30, 50))


def test_a_checkpoint_restored_from_a_backup_drops_no_rows(copy: Copy) -> None:
    """The batch that is planned again has the number of the last one, and more rows."""
    copy.run(delivery="exactly-once")
    backup = copied(copy, "backup")
    add_rows(copy, range(30, 34))
    copy.run(delivery="exactly-once")
    add_rows(copy, range(34, 38))
    with pytest.raises(Exception, match=r"BATCH_NUMBERS_RESTARTED.*restored from a backup"):
        backup.run(delivery="exactly-once")
    copy.run(delivery="exactly-once")
    assert copy.values() == list(range(38))


def test_a_renamed_checkpoint_continues(copy: Copy) -> None:
    copy.run(delivery="exactly-once")
    copy.forget_end_of(2)
    copy.checkpoint = copy.checkpoint.rename(copy.checkpoint.with_name("renamed"))
    add_rows(copy, range(30, 40))
    copy.run(delivery="exactly-once")
    assert copy.values() == list(range(40))


def test_a_topic_that_was_created_again_drops_no_rows(copy: Copy) -> None:
    """Brokers delete the decision with the topic; if they have not yet, the query names it."""
    copy.run(delivery="exactly-once")
    copy.forget_end_of(2)
    delete_topic(copy.parts[1], copy.target)
    recreate(copy.parts[1], copy.target)
    add_rows(copy, range(30, 40))
    try:
        copy.run(delivery="exactly-once")
    except Exception as error:  # Spark wraps it
        if "WRITE_ID_NEEDED" not in str(error):
            raise
        copy.run(delivery="exactly-once", writeId="again")
    # Those of the batch that is repeated, and the new ones.
    assert copy.values() == list(range(20, 40))


def test_a_write_id_of_another_topic_is_refused(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    first, second = new_topic("first"), new_topic("second")
    for topic in (first, second):
        create_topic(broker.bootstrap, topic)
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    once(frame, broker.bootstrap, first, writeId=f"load-{first}")
    with pytest.raises(Exception, match=rf"WRITE_ID_NEEDED.*to the topic {first}, not to {second}"):
        once(frame, broker.bootstrap, second, writeId=f"load-{first}")
    assert values(spark, broker.bootstrap, second) == []
