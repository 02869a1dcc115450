"""Beside Spark's own Kafka connector: equal rows, and a checkpoint carried over and back.

Both read from our broker. Runs where the connector's jars are available (see `spark_kafka_jars`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, Row, SparkSession

from tests.doubles.broker_process import BrokerProcess
from tests.doubles.spark_kafka_jars import connector_jars
from tests.spark.streams import Job, wait_until
from tests.spark.support import Sent, create_topic, producer, send, write

NewTopicName = Callable[[str], str]


@pytest.fixture(scope="module", autouse=True)
def _needs_the_connector() -> None:
    jars = connector_jars()
    if isinstance(jars, str):
        pytest.skip(jars)


def batch(spark: SparkSession, kind: str, bootstrap: str, **options: str) -> DataFrame:
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap)
    return reader.options(**options).load()


def test_both_read_equal_rows(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("both")
    create_topic(broker.bootstrap, topic, 2)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        records = [
            Sent(
                None if n % 7 == 0 else b"value %d " % n * (n % 40),
                None if n % 5 == 0 else b"key %d" % n,
                n % 2,
                1_700_000_000_000 + n,
                [("a", b"%d" % n), ("b", None)] if n % 3 == 0 else None,
            )
            for n in range(200)
        ]
        write(broker.bootstrap, topic, records, compression_type=codec)
    client = producer(broker.bootstrap, transactional_id=topic)
    client.init_transactions(30)
    for number in range(4):
        client.begin_transaction()
        send(client, topic, [Sent(b"in a transaction %d" % number)])
        if number % 2:
            client.abort_transaction(30)
        else:
            client.commit_transaction(30)
    for options in (
        {"subscribe": topic},
        {"subscribe": topic, "includeHeaders": "true"},
        {"subscribePattern": f"{topic[:-1]}[0-9]", "kafka.isolation.level": "read_committed"},
        {"assign": f'{{"{topic}":[1]}}', "startingOffsets": f'{{"{topic}":{{"1":17}}}}'},
        {"subscribe": topic, "startingTimestamp": "1700000000150"},
    ):
        theirs = batch(spark, "kafka", broker.bootstrap, **options)
        ours = batch(spark, "ottla", broker.bootstrap, **options)
        assert ours.schema == theirs.schema
        by_place = ["partition", "offset"]
        rows = [frame.orderBy(*by_place).collect() for frame in (ours, theirs)]
        assert rows[0] == rows[1]
        assert rows[0]


def write_compacted(bootstrap: str, topic: str) -> None:
    """Ten keys, many times each, in many small segments."""
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": "2000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    }
    create_topic(bootstrap, topic, config=config)
    client = producer(bootstrap, batch_size=200)
    for turn in range(40):
        send(client, topic, [Sent(b"%d %d" % (turn, n), b"key %d" % n) for n in range(10)])


def write_aborted(bootstrap: str, topic: str) -> None:
    """The log ends with an aborted transaction; before it are aborted and committed ones."""
    create_topic(bootstrap, topic)
    client = producer(bootstrap, transactional_id=topic)
    client.init_transactions(30)
    for number in range(8):
        client.begin_transaction()
        send(client, topic, [Sent(b"%d %d" % (number, n)) for n in range(5)])
        if number in (1, 2, 5, 7):
            client.abort_transaction(30)
        else:
            client.commit_transaction(30)


def write_deleted(bootstrap: str, topic: str) -> None:
    """DeleteRecords in the middle of a batch, and of every range that begins before."""
    create_topic(bootstrap, topic)
    write(bootstrap, topic, [Sent(b"%d" % n) for n in range(100)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([Place(topic, 0, 37)]).values():
        future.result()


COMMITTED = {"kafka.isolation.level": "read_committed"}
LENIENT = {"failOnDataLoss": "false"}


@pytest.mark.parametrize(
    ("prepare", "common", "end"),
    [
        (write_compacted, {}, 123),
        (write_aborted, COMMITTED, 46),
        (write_aborted, {}, 46),
        (write_deleted, LENIENT, 70),
    ],
    ids=["compacted", "aborted-committed", "aborted-uncommitted", "deleted"],
)
def test_both_read_equal_rows_of_a_log_with_gaps(
    prepare: Callable[[str, str], None],
    common: dict[str, str],
    end: int,
    spark: SparkSession,
    broker: BrokerProcess,
    new_topic: NewTopicName,
) -> None:
    """Ranges that begin and end in gaps: tasks of a few offsets each."""
    topic = new_topic("gaps")
    prepare(broker.bootstrap, topic)

    def rows(kind: str, **options: str) -> list[Row]:
        frame = batch(spark, kind, broker.bootstrap, subscribe=topic, **common, **options)
        return frame.orderBy("offset").collect()

    if prepare is write_compacted:
        wait_until(lambda: len(rows("ottla")) < 200, "compaction to take most records away")
    middle = {
        "startingOffsets": f'{{"{topic}":{{"0":8}}}}',
        "endingOffsets": f'{{"{topic}":{{"0":{end}}}}}',
    }
    for options in ({"maxRecordsPerPartition": "67"}, middle):
        ours, theirs = (rows(kind, **options) for kind in ("ottla", "kafka"))
        while prepare is write_compacted and ours != theirs:
            before, ours = ours, rows("ottla", **options)
            assert before != ours, "rows differ, and compaction did not go on meanwhile"
            theirs = rows("kafka", **options)
        assert ours == theirs
        assert ours or options is middle, "compaction took all of the middle"


@pytest.mark.parametrize(
    ("kinds", "limit"),
    [
        # Three batches each: every kind of batch is the other's last one.
        (("kafka", "ottla", "ottla", "kafka", "ottla"), 4),
        # One batch each: the other continues after Ottla's first one, which has its own marks.
        (("ottla", "kafka", "ottla"), 1000),
    ],
    ids=["theirs-first", "ours-first"],
)
def test_a_checkpoint_goes_over_and_back(
    spark: SparkSession,
    broker: BrokerProcess,
    new_topic: NewTopicName,
    tmp_path: Path,
    kinds: tuple[str, ...],
    limit: int,
) -> None:
    topic = new_topic("moved")
    create_topic(broker.bootstrap, topic, 2)
    job = Job(spark, tmp_path)
    written = {}
    for turn, kind in enumerate(kinds):
        records = [Sent(b"%d" % n, b"%d" % turn, n % 2) for n in range(turn * 10, turn * 10 + 10)]
        written |= write(broker.bootstrap, topic, records)
        reader = spark.readStream.format(kind).option("kafka.bootstrap.servers", broker.bootstrap)
        options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
        frame = reader.options(**options).load()
        batches = job.run(frame)
        assert sum(found["numInputRows"] for found in batches) == 10, (turn, kind)
    assert job.rows() == written
    last = max((job.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    end = json.loads(last.read_text().splitlines()[-1])
    assert end.pop(topic) == {"0": 5 * len(kinds), "1": 5 * len(kinds)}
    assert not any(end.values()), "nothing but marks"
