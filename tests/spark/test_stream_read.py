"""Streaming reads through real Spark: limits, restarts, growing topics; none lost, none twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from tests.doubles.broker_process import BrokerProcess
from tests.spark.streams import Job, finish, started, stream, wait_until
from tests.spark.support import Sent, create_topic, delete_topic, recreate, write

NewTopicName = Callable[[str], str]


def numbers(begin: int, end: int, partition: int = 0) -> list[Sent]:
    return [Sent(b"%d" % number, partition=partition) for number in range(begin, end)]


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """The group's committed offsets, as any other client sees them."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        return {part.partition: part.offset for part in reader.committed(wanted, 30)}
    finally:
        reader.close()


def test_batches_are_limited_and_end_with_what_was_there(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("limited")
    create_topic(broker.bootstrap, topic, 2)
    written = write(broker.bootstrap, topic, numbers(0, 90) + numbers(0, 10, partition=1))
    frame = stream(
        spark,
        broker.bootstrap,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=40,
    )
    job = Job(spark, tmp_path)
    progress = job.run(frame)
    assert [batch["numInputRows"] for batch in progress] == [40, 40, 20]
    assert job.offset(0)[topic] == {"0": 36, "1": 4}
    assert job.rows() == written
    assert job.run(frame) == []
    written |= write(broker.bootstrap, topic, numbers(90, 95))
    [batch] = job.run(frame)
    assert batch["numInputRows"] == 5
    assert job.rows() == written
    assert job.positions(3) == {topic: {"0": 95, "1": 10}}


def test_a_new_query_starts_at_the_end(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("latest")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, numbers(0, 5))
    job = Job(spark, tmp_path)
    frame = stream(spark, broker.bootstrap, subscribe=topic)
    query = started(job.start(frame, processingTime="0 seconds"))
    try:
        wait_until((job.checkpoint / "commits" / "0").exists, "the first, empty batch")
        written = write(broker.bootstrap, topic, numbers(5, 12))
        query.processAllAvailable()
    finally:
        query.stop()
    assert job.rows() == written


def test_new_partitions_and_topics_are_read_from_their_beginning(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    first, second = new_topic("growing"), new_topic("growing")
    create_topic(broker.bootstrap, first)
    written = write(broker.bootstrap, first, numbers(0, 5))
    frame = stream(
        spark,
        broker.bootstrap,
        subscribePattern=f"{first}|{second}",
        startingOffsets="earliest",
        includeHeaders="false",
    )
    job = Job(spark, tmp_path)
    job.run(frame)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_partitions([NewPartitions(first, 3)]).values():
        future.result()
    written |= write(broker.bootstrap, first, numbers(5, 9, partition=2))
    job.run(frame)
    assert job.rows() == written
    create_topic(broker.bootstrap, second)
    write(broker.bootstrap, second, numbers(100, 103))
    [batch] = job.run(frame)
    assert batch["numInputRows"] == 3
    assert job.positions(2) == {first: {"0": 5, "1": 0, "2": 4}, second: {"0": 3}}


def test_few_records_wait_for_more_or_for_the_delay(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("minimum")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, numbers(0, 3))
    frame = stream(
        spark,
        broker.bootstrap,
        subscribe=topic,
        startingOffsets="earliest",
        minOffsetsPerTrigger=11,  # all that come, so that no trigger can take a part of them
        maxTriggerDelay="1h",
    )
    job = Job(spark, tmp_path)
    query = started(job.start(frame, processingTime="0 seconds"))
    try:
        wait_until((job.checkpoint / "commits" / "0").exists, "the first batch, never held back")
        write(broker.bootstrap, topic, numbers(3, 9))
        latest = f'"{topic}": {{"0": 9}}'
        wait_until(
            lambda: latest in ((query.lastProgress or {}) and query.lastProgress.json),
            "the progress to show records that wait",
        )
        assert not (job.checkpoint / "offsets" / "1").exists()
        write(broker.bootstrap, topic, numbers(9, 14))
        wait_until((job.checkpoint / "commits" / "1").exists, "enough records")
    finally:
        query.stop()
    assert len(job.rows()) == 14
    write(broker.bootstrap, topic, numbers(14, 16))
    job.run(frame)
    assert len(job.rows()) == 16, "AvailableNow takes what there is, however few"


def test_bytes_limit_a_batch(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("bytes")
    create_topic(broker.bootstrap, topic)
    written = write(broker.bootstrap, topic, [Sent(b"x" * 10_000) for _ in range(100)])
    frame = stream(
        spark,
        broker.bootstrap,
        subscribe=topic,
        startingOffsets="earliest",
        maxBytesPerTrigger=250_000,
    )
    job = Job(spark, tmp_path)
    sizes = [batch["numInputRows"] for batch in job.run(frame)]
    assert job.rows() == written
    assert len(sizes) in (4, 5)
    assert max(sizes) <= 26


def test_the_group_shows_the_position_and_a_new_query_can_start_from_it(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("group")
    create_topic(broker.bootstrap, topic, 2)
    write(broker.bootstrap, topic, numbers(0, 6) + numbers(0, 4, partition=1))
    options = {"subscribe": topic, "kafka_group_id": f"{topic}-readers", "commitOffsets": "true"}
    frame = stream(
        spark, broker.bootstrap, startingOffsets="earliest", maxOffsetsPerTrigger=3, **options
    )
    Job(spark, tmp_path / "one").run(frame)
    assert committed(broker.bootstrap, f"{topic}-readers", topic, 2) == {0: 6, 1: 4}
    new = write(broker.bootstrap, topic, numbers(6, 8))
    other = Job(spark, tmp_path / "two")
    other.run(stream(spark, broker.bootstrap, startingOffsets="committed", **options))
    assert other.rows() == new
    assert committed(broker.bootstrap, f"{topic}-readers", topic, 2) == {0: 8, 1: 4}


def test_lost_records_fail_a_query_or_are_skipped(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("lossy")
    create_topic(broker.bootstrap, topic)
    written = write(broker.bootstrap, topic, numbers(0, 4))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    job = Job(spark, tmp_path)
    job.run(stream(spark, broker.bootstrap, **options))
    late = write(broker.bootstrap, topic, numbers(4, 10))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 7)]).values():
        future.result()
    with pytest.raises(Exception, match=r"KAFKA_DATA_LOSS\.START_OFFSET_RESET.*3 offsets are gone"):
        job.run(stream(spark, broker.bootstrap, **options))
    job.run(stream(spark, broker.bootstrap, failOnDataLoss="false", **options))
    left = {place: record for place, record in late.items() if place[1] >= 7}
    assert job.rows() == written | left


def test_a_recreated_topic_is_detected_by_its_id(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("reborn")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, numbers(0, 3))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    job = Job(spark, tmp_path)
    job.run(stream(spark, broker.bootstrap, **options))
    delete_topic(broker.bootstrap, topic)
    recreate(broker.bootstrap, topic)
    write(broker.bootstrap, topic, numbers(10, 16))
    with pytest.raises(Exception, match=r"KAFKA_DATA_LOSS\.TOPIC_RECREATED"):
        job.run(stream(spark, broker.bootstrap, **options))
    [batch] = job.run(stream(spark, broker.bootstrap, failOnDataLoss="warn", **options))
    assert batch["numInputRows"] == 6, "all of the new topic, though the old one was read to 3"


def test_deleted_topics_fail_a_query_or_are_skipped(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    """One of two topics is deleted. One tolerant run takes it out of the checkpoint; when it is
    there again it is a new topic."""
    kept, gone = new_topic("kept"), new_topic("gone")
    for topic in (kept, gone):
        create_topic(broker.bootstrap, topic)
        write(broker.bootstrap, topic, numbers(0, 4))
    options = {"subscribe": f"{kept},{gone}", "startingOffsets": "earliest"}
    strict = stream(spark, broker.bootstrap, **options)
    tolerant = stream(spark, broker.bootstrap, failOnDataLoss="false", **options)
    job = Job(spark, tmp_path)
    job.run(strict)
    delete_topic(broker.bootstrap, gone)
    write(broker.bootstrap, kept, numbers(4, 6))
    with pytest.raises(Exception, match=rf"KAFKA_DATA_LOSS\.PARTITIONS_DELETED.*{gone}"):
        job.run(strict)
    [batch] = job.run(tolerant)
    assert batch["numInputRows"] == 2
    recreate(broker.bootstrap, gone)
    write(broker.bootstrap, gone, numbers(0, 1))
    job.run(strict)
    write(broker.bootstrap, gone, numbers(1, 4))
    job.run(strict)
    rows = spark.read.parquet(str(job.output)).collect()
    found = sorted((row["topic"], int(row["value"])) for row in rows)
    expected = [(kept, n) for n in range(6)] + [(gone, n) for n in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert found == sorted(expected)


def test_available_now_ends_while_records_keep_coming(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("busy")
    create_topic(broker.bootstrap, topic)
    written = write(broker.bootstrap, topic, numbers(0, 50))
    frame = stream(
        spark,
        broker.bootstrap,
        subscribe=topic,
        startingOffsets="earliest",
    )
    stopped = threading.Event()
    more: dict[tuple[int, int], Sent] = {}

    def keep_writing() -> None:
        number = 50
        while not stopped.wait(0.05):
            more.update(write(broker.bootstrap, topic, numbers(number, number + 1)))
            number += 1

    job = Job(spark, tmp_path)
    thread = threading.Thread(target=keep_writing)
    thread.start()
    try:
        job.run(frame)
    finally:
        stopped.set()
        thread.join()
    first = job.rows()
    assert len(first) >= 50
    assert sorted(first) == [(0, offset) for offset in range(len(first))]
    job.run(frame)
    assert job.rows() == written | more


def test_two_sources_in_one_query(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topics = [new_topic("left"), new_topic("right")]
    for topic in topics:
        create_topic(broker.bootstrap, topic)
        write(broker.bootstrap, topic, numbers(0, 4))
    left, right = (
        stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest")
        for topic in topics
    )
    writer = (
        left.union(right)
        .writeStream.format("memory")
        .queryName("both_sources")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    finish(writer.start())
    rows = spark.table("both_sources").groupBy("topic").count().collect()
    assert sorted(tuple(row) for row in rows) == [(topic, 4) for topic in sorted(topics)]


def test_trigger_once_takes_everything(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("once")
    create_topic(broker.bootstrap, topic)
    written = write(broker.bootstrap, topic, numbers(0, 30))
    frame = stream(
        spark,
        broker.bootstrap,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=10,
        minOffsetsPerTrigger=5,
    )
    job = Job(spark, tmp_path)
    [batch] = job.run(frame, once=True)
    assert batch["numInputRows"] == 30
    assert job.rows() == written
