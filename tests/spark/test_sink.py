"""Writing through real Spark: what a standard client and Spark itself then find in the topics."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ottla.protocol.partitioner import partition_for_key
from tests.doubles.broker_process import BrokerProcess
from tests.spark.streams import finish, stream
from tests.spark.support import Sent, create_topic, load, rows_by_place, write

NewTopicName = Callable[[str], str]


def save(frame: DataFrame, bootstrap: str, **options: object) -> None:
    writer = frame.write.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        writer = writer.option(name.replace("_", "."), str(value))
    writer.mode("append").save()


def consume(bootstrap: str, topic: str, partitions: int, count: int) -> list[Message]:
    """Everything in a topic as librdkafka sees it; it verifies the batches' checksums."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "check.crcs": True, "log_level": 3}
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[Message] = []
        while len(found) < count:
            some = consumer.consume(count, 30)
            assert some, f"only {len(found)} of {count} records came"
            found += some
        return found
    finally:
        consumer.close()


def test_a_standard_client_reads_what_was_written(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("written")
    create_topic(broker.bootstrap, topic, 3)
    frame = spark.range(1000).select(
        F.expr("CASE WHEN id % 10 = 0 THEN NULL ELSE concat('key-', id % 50) END").alias("key"),
        F.expr("CASE WHEN id % 7 = 0 THEN NULL ELSE repeat('x', id % 300) END").alias("value"),
        F.expr("timestamp_millis(1600000000000 + id)").alias("timestamp"),
        F.expr(
            "CASE WHEN id % 3 = 0 THEN array(named_struct('key', 'n', 'value', "
            "CAST(CAST(id AS STRING) AS BINARY)), named_struct('key', 'e', 'value', X'')) END"
        ).alias("headers"),
        F.lit("ignored").alias("another column"),
    )
    save(frame, broker.bootstrap, topic=topic, writeTimestamp=True)
    expected = sorted(
        (
            1600000000000 + n,
            None if n % 10 == 0 else f"key-{n % 50}".encode(),
            None if n % 7 == 0 else b"x" * (n % 300),
            [("n", b"%d" % n), ("e", b"")] if n % 3 == 0 else None,
        )
        for n in range(1000)
    )
    messages = consume(broker.bootstrap, topic, 3, 1000)
    assert sorted((m.timestamp()[1], m.key(), m.value(), m.headers()) for m in messages) == expected
    keyed = [message for message in messages if message.key() is not None]
    assert all(m.partition() == partition_for_key(m.key(), 3) for m in keyed)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, codec: str
) -> None:
    topic = new_topic(f"written-{codec}")
    create_topic(broker.bootstrap, topic)
    frame = spark.range(500, numPartitions=1).selectExpr("repeat(CAST(id AS STRING), 50) AS value")
    save(frame, broker.bootstrap, topic=topic, kafka_compression_type=codec)
    messages = consume(broker.bootstrap, topic, 1, 500)
    assert [m.value() for m in messages] == [str(n).encode() * 50 for n in range(500)]


def test_topic_and_partition_columns(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topics = [new_topic("column"), new_topic("column")]
    for topic in topics:
        create_topic(broker.bootstrap, topic, 4)
    frame = spark.range(40).selectExpr(
        f"CASE WHEN id < 30 THEN '{topics[0]}' ELSE '{topics[1]}' END AS topic",
        "CAST(id % 4 AS INT) AS partition",
        "CAST(CAST(id AS STRING) AS BINARY) AS value",
    )
    save(frame, broker.bootstrap)
    for topic, numbers in zip(topics, (range(30), range(30, 40)), strict=True):
        found = load(spark, broker.bootstrap, subscribe=topic).collect()
        assert sorted((row["partition"], int(row["value"])) for row in found) == sorted(
            (number % 4, number) for number in numbers
        )
    save(frame.limit(3), broker.bootstrap, topic=topics[1])
    assert load(spark, broker.bootstrap, subscribe=topics[1]).count() == 13


def test_rows_without_keys_reach_every_partition(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("keyless")
    create_topic(broker.bootstrap, topic, 4)
    save(
        spark.range(1000, numPartitions=1).selectExpr("repeat('x', 100) AS value"),
        broker.bootstrap,
        topic=topic,
        kafka_batch_size=1000,
    )
    counts = load(spark, broker.bootstrap, subscribe=topic).groupBy("partition").count().collect()
    assert len(counts) == 4
    assert sum(row["count"] for row in counts) == 1000


TEXT = "CAST(id AS STRING) AS value"
ERRORS: list[tuple[list[str], dict[str, str], str]] = [
    (["CAST(id AS STRING) AS text"], {"topic": "t"}, "have no column value, only text"),
    (["id AS value"], {"topic": "t"}, "column value to write has the type bigint"),
    ([TEXT], {}, "option topic is not set"),
    ([TEXT], {"topic": "a b"}, "option topic has the value 'a b'"),
    ([TEXT], {"topics": "t"}, "There is no option 'topics'"),
    ([TEXT, "CAST(NULL AS STRING) AS topic"], {}, "KAFKA_NULL_TOPIC_IN_DATA"),
    (
        [TEXT, "7 AS partition"],
        {"topic": "sink-errors"},
        "partition 7 of the topic sink-errors, which has 2",
    ),
    (
        ["repeat('x', 3000) AS value"],
        {"topic": "sink-errors"},
        "refused row 0 of this task for sink-errors-[01] .MESSAGE_TOO_LARGE",
    ),
]


@pytest.fixture(scope="module")
def small_topic(broker: BrokerProcess) -> str:
    create_topic(broker.bootstrap, "sink-errors", 2, {"max.message.bytes": "2000"})
    return "sink-errors"


@pytest.mark.parametrize(("columns", "options", "text"), ERRORS)
def test_what_cannot_be_written_is_said(
    spark: SparkSession,
    broker: BrokerProcess,
    small_topic: str,
    columns: list[str],
    options: dict[str, str],
    text: str,
) -> None:
    frame = spark.range(1).selectExpr(*columns)
    with pytest.raises(Exception, match=text):
        save(frame, broker.bootstrap, **options)


def test_only_appending_is_possible(
    spark: SparkSession, broker: BrokerProcess, small_topic: str
) -> None:
    writer = (
        spark.range(1)
        .selectExpr("'x' AS value")
        .write.format("ottla")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("topic", small_topic)
    )
    with pytest.raises(Exception, match=r"UNSUPPORTED_SAVE_MODE.*Use \.mode"):
        writer.mode("overwrite").save()


class Copy:
    """A query that copies a topic to another, to be run again and again on one checkpoint."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, source: str, target: str, directory: Path
    ) -> None:
        self.parts = self._spark, self._bootstrap = spark, bootstrap
        self.source = source
        self.target = target
        self.checkpoint = directory / "checkpoint"

    def run(self, condition: str = "true", tasks: int | None = None, **options: str) -> None:
        frame = stream(
            self._spark,
            self._bootstrap,
            subscribe=self.source,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=10,
        )
        rows = frame.where(condition).select("key", "value")
        writer = (
            (rows if tasks is None else rows.repartition(tasks))
            .writeStream.format("ottla")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("topic", self.target)
            .option("checkpointLocation", str(self.checkpoint))
        )
        finish(writer.options(**options).trigger(availableNow=True).start())

    def forget_end_of(self, batch: int) -> None:
        """As if Spark had died after the sink's tasks and before it noted the batch's end."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)

    def values(self) -> list[int]:
        frame = load(
            self._spark,
            self._bootstrap,
            subscribe=self.target,
            kafka_isolation_level="read_committed",
        )
        return sorted(int(record.value or b"") for record in rows_by_place(frame).values())


def make_copy(
    spark: SparkSession, bootstrap: str, source: str, target: str, directory: Path
) -> Copy:
    for topic in (source, target):
        create_topic(bootstrap, topic, 2)
    write(bootstrap, source, [Sent(b"%d" % n, b"k", n % 2) for n in range(30)])
    return Copy(spark, bootstrap, source, target, directory)


@pytest.fixture
def copy(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> Copy:
    return make_copy(spark, broker.bootstrap, new_topic("from"), new_topic("to"), tmp_path)


def test_a_stream_is_written_at_least_once(copy: Copy) -> None:
    copy.run()
    assert copy.values() == list(range(30))
    copy.forget_end_of(2)
    copy.run()
    assert sorted(set(copy.values())) == list(range(30))
    assert len(copy.values()) == 40, "the last batch of ten came twice, as at least once allows"


def test_a_repeated_batch_is_written_exactly_once(copy: Copy) -> None:
    copy.run(delivery="exactly-once")
    copy.forget_end_of(2)
    copy.run(delivery="exactly-once")
    assert copy.values() == list(range(30))


def test_rows_without_a_timestamp_get_the_time_of_now(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("now")
    create_topic(broker.bootstrap, topic)
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(milliseconds=1)
    save(spark.range(1).selectExpr("'x' AS value"), broker.bootstrap, topic=topic)
    after = datetime.datetime.now(datetime.UTC)
    [row] = load(spark, broker.bootstrap, subscribe=topic).collect()
    moment: Any = row["timestamp"].astimezone(datetime.UTC)
    assert before <= moment <= after


def test_a_repeated_batch_in_foreach_batch_is_written_exactly_once(
    spark: SparkSession, broker: BrokerProcess, copy: Copy
) -> None:
    def run() -> None:
        def write_batch(batch: DataFrame, number: int) -> None:
            save(
                batch.select("value"), broker.bootstrap, topic=copy.target, delivery="exactly-once"
            )

        frame = stream(spark, broker.bootstrap, subscribe=copy.source, startingOffsets="earliest")
        writer = frame.writeStream.foreachBatch(write_batch)
        finish(
            writer.option("checkpointLocation", str(copy.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    run()
    copy.forget_end_of(0)
    run()
    assert copy.values() == list(range(30))
