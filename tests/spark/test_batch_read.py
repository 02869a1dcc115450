"""Batch reads through real Spark: every record as it was written, once."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from pyspark_ottla.lag import task_metrics
from tests.doubles.broker_process import BrokerProcess
from tests.spark.streams import Job, stream, wait_until
from tests.spark.support import Sent, create_topic, load, producer, rows_by_place, send, write

NewTopicName = Callable[[str], str]


def test_every_column_of_every_kind_of_record(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("kinds")
    create_topic(broker.bootstrap, topic, 2)
    records = [
        Sent(b"plain", b"key", 0, 1_600_000_000_001),
        Sent(None, b"tombstone", 0),
        Sent(b"no key", None, 1),
        Sent(None, None, 1),
        Sent(b"", b"", 0),
        Sent(b"headers", b"k", 1, headers=[("a", b"1"), ("a", None), ("\u00fc", b""), ("", b"x")]),
        Sent(bytes(range(256)), b"\xff\x00", 0, 1, [("bytes", bytes(range(256)))]),
    ]
    written = write(broker.bootstrap, topic, records)
    frame = load(spark, broker.bootstrap, subscribe=topic, includeHeaders="true")
    assert rows_by_place(frame) == written
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    others = frame.select("topic", "timestampType").distinct().collect()
    assert [tuple(row) for row in others] == [(topic, 0)]


def test_every_codec(spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName) -> None:
    topic = new_topic("codecs")
    create_topic(broker.bootstrap, topic)
    written = {}
    for codec in ("none", "gzip", "snappy", "lz4", "zstd", "none"):
        records = [Sent(f"{codec} {number} ".encode() * 20, b"k") for number in range(300)]
        written |= write(broker.bootstrap, topic, records, compression_type=codec)
    assert len(written) == 1800
    assert rows_by_place(load(spark, broker.bootstrap, subscribe=topic)) == written


def test_an_empty_topic(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("empty")
    create_topic(broker.bootstrap, topic, 3)
    frame = load(spark, broker.bootstrap, subscribe=topic)
    assert frame.count() == 0
    assert frame.columns[:2] == ["key", "value"]


def test_offsets_and_timestamps_bound_what_is_read(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("bounds")
    create_topic(broker.bootstrap, topic, 2)
    write(
        broker.bootstrap,
        topic,
        [Sent(b"%d" % n, partition=p, timestamp=1000 * (n + 1)) for p in (0, 1) for n in range(10)],
    )

    def places(**options: object) -> list[tuple[int, int]]:
        return sorted(rows_by_place(load(spark, broker.bootstrap, subscribe=topic, **options)))

    assert places(
        startingOffsets=f'{{"{topic}":{{"0":8,"1":-2}}}}',
        endingOffsets=f'{{"{topic}":{{"0":-1,"1":2}}}}',
    ) == [(0, 8), (0, 9), (1, 0), (1, 1)]
    assert places(startingTimestamp=9500, endingTimestamp=10_000) == []
    assert places(startingTimestamp=8500) == [(0, 8), (0, 9), (1, 8), (1, 9)]
    assert places(
        startingOffsetsByTimestamp=f'{{"{topic}":{{"0":9001,"1":99999}}}}',
        startingOffsetsByTimestampStrategy="latest",
    ) == [(0, 9)]
    assert places(endingOffsetsByTimestamp=f'{{"{topic}":{{"0":2000,"1":1}}}}') == [(0, 0)]


def test_patterns_and_assignments(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topics = [new_topic("chosen"), new_topic("chosen"), new_topic("other")]
    for topic in topics:
        create_topic(broker.bootstrap, topic, 2)
        write(broker.bootstrap, topic, [Sent(topic.encode(), partition=p) for p in (0, 1)])

    def found(**options: object) -> list[tuple[str, int]]:
        rows = load(spark, broker.bootstrap, **options).select("topic", "partition").collect()
        return sorted((row["topic"], row["partition"]) for row in rows)

    pattern = "(" + "|".join(topics[:2]) + ")"
    expected = sorted((topic, p) for topic in topics[:2] for p in (0, 1))
    assert found(subscribePattern=pattern) == expected
    assert found(subscribe=",".join(topics[:2])) == expected
    assert found(assign=f'{{"{topics[0]}":[1],"{topics[2]}":[0]}}') == [
        (topics[0], 1),
        (topics[2], 0),
    ]
    assert found(subscribePattern="no-topic-is-called-so") == []


def test_a_schema_is_a_choice_of_columns(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("chosen-columns")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"v", b"k")])
    frame = load(spark, broker.bootstrap, "offset long, value binary", subscribe=topic)
    assert [tuple(row) for row in frame.collect()] == [(0, b"v")]
    text = load(
        spark,
        broker.bootstrap,
        "value string, key string",
        subscribe=topic,
        keyFormat="string",
        valueFormat="string",
    )
    assert [tuple(row) for row in text.collect()] == [("v", "k")]


def test_a_function_of_the_users_in_the_source(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("transformed")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"a"), Sent(None), Sent(b"ccc")])
    schema = "offset long, bytes long"
    chosen = {"subscribe": topic, "transform": "tests.doubles.spark_transforms:lengths"}
    rows = load(spark, broker.bootstrap, schema, **chosen).collect()
    assert [tuple(row) for row in rows] == [(0, 1), (2, 3)]
    job = Job(spark, tmp_path)
    reader = spark.readStream.format("ottla").schema(schema).options(**chosen)
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
    job.run(reader.option("startingOffsets", "earliest").load())
    rows = spark.read.parquet(str(job.output)).collect()
    assert sorted(tuple(row) for row in rows) == [(0, 1), (2, 3)]
    wrong = {"subscribe": topic, "transform": "tests.doubles.spark_transforms:gone"}
    with pytest.raises(Exception, match=r"option transform names .*:gone, which"):
        load(spark, broker.bootstrap, **wrong).collect()


def test_tasks_are_split(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("split")
    create_topic(broker.bootstrap, topic, 2)
    written = write(
        broker.bootstrap,
        topic,
        [Sent(b"%d" % n) for n in range(900)] + [Sent(b"%d" % n, partition=1) for n in range(3)],
    )
    by_count = load(spark, broker.bootstrap, subscribe=topic, minPartitions=4)
    assert by_count.rdd.getNumPartitions() == 4
    assert rows_by_place(by_count) == written
    by_size = load(spark, broker.bootstrap, subscribe=topic, maxRecordsPerPartition=100)
    assert by_size.rdd.getNumPartitions() == 10
    assert rows_by_place(by_size) == written


def test_small_ranges_share_tasks(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("wide")
    create_topic(broker.bootstrap, topic, 40)
    written = write(
        broker.bootstrap, topic, [Sent(b"%d" % n, partition=n % 40) for n in range(100)]
    )
    for shared, tasks in ((True, 3), (False, 40)):
        frame = load(spark, broker.bootstrap, subscribe=topic, numCores=3, sharedTasks=shared)
        assert frame.rdd.getNumPartitions() == tasks
        assert rows_by_place(frame) == written


def test_large_records_and_small_fetches(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    """A record larger than what is fetched at once comes all the same."""
    topic = new_topic("large")
    create_topic(broker.bootstrap, topic, config={"max.message.bytes": str(2 << 20)})
    records = [Sent(bytes([n]) * (1 << 20), b"%d" % n) for n in range(5)]
    written = write(broker.bootstrap, topic, records, message_max_bytes=2 << 20)
    frame = load(spark, broker.bootstrap, subscribe=topic, fetchMaxBytes=1000, batchBytes=1000)
    assert rows_by_place(frame) == written


def test_many_partitions_and_a_session_beside(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("many")
    create_topic(broker.bootstrap, topic, 200)
    written = write(
        broker.bootstrap, topic, [Sent(b"%d" % n, partition=n % 200) for n in range(600)]
    )
    assert rows_by_place(load(spark, broker.bootstrap, subscribe=topic)) == written
    assert load(spark.newSession(), broker.bootstrap, subscribe=topic).count() == 600


def test_no_plan_shows_a_secret(spark: SparkSession, broker: BrokerProcess) -> None:
    secret = "hunter2-never-shown"
    jaas = f'a.PlainLoginModule required username="anna" password="{secret}";'
    options = {
        "kafka_security_protocol": "SASL_PLAINTEXT",
        "kafka_sasl_mechanism": "PLAIN",
        "kafka_sasl_jaas_config": jaas,
        "kafka_ssl_key_password": secret,
        "kafka_default_api_timeout_ms": "500",
    }
    frame = load(spark, broker.bootstrap, subscribe="t", **options).where("offset > 5")
    plans = frame._jdf.queryExecution().toString()
    assert "offset" in plans
    assert secret not in plans
    writer = spark.range(1).selectExpr("'x' AS value").write.format("ottla").mode("append")
    writer = writer.options(topic="t", **{n.replace("_", "."): v for n, v in options.items()})
    with pytest.raises(Exception, match="BROKER_UNAVAILABLE") as raised:
        writer.option("kafka.bootstrap.servers", "127.0.0.1:1").save()
    assert secret not in str(raised.value)


def test_a_read_without_prefetching(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("one-by-one")
    create_topic(broker.bootstrap, topic)
    written = write(broker.bootstrap, topic, [Sent(b"%d" % n) for n in range(500)])
    frame = load(spark, broker.bootstrap, subscribe=topic, prefetch=0, batchRows=7)
    assert rows_by_place(frame) == written
    assert len(frame.limit(3).collect()) == 3


def test_a_table_in_sql(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("sql")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"a"), Sent(b"bb"), Sent(b"a")])
    what = (
        f"USING ottla OPTIONS ('kafka.bootstrap.servers' '{broker.bootstrap}', subscribe '{topic}')"
    )
    spark.sql(f"CREATE TEMPORARY VIEW lines_seen {what}")
    spark.sql(f"CREATE TABLE lines_kept {what}")
    try:
        rows = spark.sql(
            "SELECT CAST(value AS STRING) AS value, count(*) AS n FROM lines_seen GROUP BY 1"
        ).collect()
        assert sorted(tuple(row) for row in rows) == [("a", 2), ("bb", 1)]
        assert spark.table("lines_kept").count() == 3
        spark.sql(f"CREATE TABLE lines_listed (value BINARY) {what}")
        with pytest.raises(Exception, match="without a list of columns"):
            spark.sql("SELECT * FROM lines_listed").collect()
    finally:
        spark.sql("DROP VIEW lines_seen")
        spark.sql("DROP TABLE lines_kept")
        spark.sql("DROP TABLE IF EXISTS lines_listed")


def test_aborted_records_are_for_read_uncommitted_only(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("transactions")
    create_topic(broker.bootstrap, topic)
    client = producer(broker.bootstrap, transactional_id=topic)
    client.init_transactions(30)
    committed, aborted = {}, {}
    for number in range(4):
        client.begin_transaction()
        records = [Sent(b"%d-%d" % (number, n)) for n in range(5)]
        if number % 2:
            aborted |= send(client, topic, records)
            client.abort_transaction(30)
        else:
            committed |= send(client, topic, records)
            client.commit_transaction(30)
    plain = write(broker.bootstrap, topic, [Sent(b"plain")])
    client.begin_transaction()
    open_still = send(client, topic, [Sent(b"open")])
    behind = write(broker.bootstrap, topic, [Sent(b"behind the open one")])
    try:
        whole = load(spark, broker.bootstrap, subscribe=topic)
        assert rows_by_place(whole) == committed | aborted | plain | open_still | behind
        stable = load(
            spark, broker.bootstrap, subscribe=topic, kafka_isolation_level="read_committed"
        )
        assert rows_by_place(stable) == committed | plain
    finally:
        client.abort_transaction(30)


def test_deleted_records_are_loss_or_not(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    """Retention moved the log start: fatal for an explicit offset, no error for earliest."""
    from confluent_kafka import TopicPartition

    topic = new_topic("deleted")
    create_topic(broker.bootstrap, topic)
    written = write(broker.bootstrap, topic, [Sent(b"%d" % n) for n in range(10)])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        future.result()
    rest = {place: record for place, record in written.items() if place[1] >= 4}
    assert rows_by_place(load(spark, broker.bootstrap, subscribe=topic)) == rest
    options = {"subscribe": topic, "startingOffsets": f'{{"{topic}":{{"0":2}}}}'}
    with pytest.raises(Exception, match=r"KAFKA_DATA_LOSS\.START_OFFSET_RESET"):
        load(spark, broker.bootstrap, **options).collect()
    for value in ("false", "warn"):
        assert rows_by_place(load(spark, broker.bootstrap, failOnDataLoss=value, **options)) == rest


def test_timestamps_are_utc_instants(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("append-time")
    create_topic(broker.bootstrap, topic, config={"message.timestamp.type": "LogAppendTime"})
    before = datetime.datetime.now(datetime.UTC)
    write(broker.bootstrap, topic, [Sent(b"v", timestamp=1)])
    after = datetime.datetime.now(datetime.UTC)
    [row] = load(spark, broker.bootstrap, subscribe=topic).collect()
    moment = row["timestamp"].astimezone(datetime.UTC)
    assert row["timestampType"] == 1
    assert before - datetime.timedelta(milliseconds=1) <= moment <= after


def test_holes_of_compaction_are_no_loss(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    """Batch and stream, from offsets that are in the log and from offsets that are gone."""
    topic = new_topic("compacted")
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": "2000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    }
    create_topic(broker.bootstrap, topic, config=config)
    client = producer(broker.bootstrap, batch_size=200)
    written = {}
    for turn in range(40):
        records = [Sent(b"%d %d" % (turn, n), b"key %d" % n) for n in range(10)]
        written |= send(client, topic, records)

    def rows(**options: object) -> dict[tuple[int, int], Sent]:
        return rows_by_place(load(spark, broker.bootstrap, subscribe=topic, **options))

    wait_until(lambda: len(rows()) < 200, "compaction to take most records away")
    found = rows(maxRecordsPerPartition=37)
    assert all(written[place] == record for place, record in found.items())
    newest = {record.key: place for place, record in sorted(written.items())}
    assert set(newest.values()) <= set(found), "the newest of every key is always there"
    middle = rows(
        startingOffsets=f'{{"{topic}":{{"0":55}}}}', endingOffsets=f'{{"{topic}":{{"0":123}}}}'
    )
    assert set(middle) <= set(found)
    job = Job(spark, tmp_path)
    frame = stream(
        spark,
        broker.bootstrap,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=150,
    )
    job.run(frame)
    assert set(newest.values()) <= set(job.rows()) <= set(found)


@pytest.fixture
def filters_are_pushed_down(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("filters_are_pushed_down")
def test_filters_leave_out_what_need_not_be_read(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("filtered")
    create_topic(broker.bootstrap, topic, 3)
    written = write(
        broker.bootstrap,
        topic,
        [Sent(b"%d" % n, partition=n % 3, timestamp=1000 * (n + 1)) for n in range(60)],
    )

    def found(condition: str) -> tuple[dict[tuple[int, int], Sent], int]:
        frame = load(spark, broker.bootstrap, subscribe=topic, sharedTasks=False).where(condition)
        return rows_by_place(frame), frame.rdd.getNumPartitions()

    assert found("offset >= 5") == ({p: r for p, r in written.items() if p[1] >= 5}, 3)
    assert found("partition = 1") == ({p: r for p, r in written.items() if p[0] == 1}, 1)
    late = "partition IN (0, 2) AND timestamp >= timestamp_millis(55500) AND value != X'00'"
    expected = {p: r for p, r in written.items() if p[0] != 1 and r.timestamp >= 55500}
    assert found(late) == (expected, 2)
    assert found("offset < 0")[0] == {}


def test_filters_change_nothing_in_the_rows(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    """Each condition with and without pushdown; timestamps go up and down."""
    topic = new_topic("equal")
    create_topic(broker.bootstrap, topic, 2)
    times = [5, 1, 9, 9, 2, 7, 3, 8, 4, 6]
    records = [
        Sent(b"%d %d" % (turn, time), partition=time % 2, timestamp=1000 * time + turn)
        for turn in range(6)
        for time in times
    ]
    write(broker.bootstrap, topic, records, batch_num_messages=3)
    conditions = [
        "timestamp >= timestamp_millis(8003)",
        "timestamp >= timestamp_micros(6003500) AND timestamp < timestamp_millis(8000)",
        "offset > 3 AND offset <= 17 AND partition <=> 1 AND topic LIKE 'equ%'",
        "timestamp < timestamp_millis(3000) OR offset = 7",
    ]

    def rows() -> list[tuple[str, int, int]]:
        """By condition, in one job."""
        parts = [
            load(spark, broker.bootstrap, subscribe=topic)
            .where(condition)
            .select(lit(condition), "partition", "offset")
            for condition in conditions
        ]
        return sorted(tuple(row) for row in reduce(DataFrame.union, parts).collect())

    plain = rows()
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    try:
        pushed = rows()
    finally:
        spark.conf.unset(name)
    assert pushed == plain
    assert {condition for condition, _, _ in plain} == set(conditions)


def test_the_metrics_of_tasks_come_from_spark(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("measured")
    create_topic(broker.bootstrap, topic, 2)
    write(broker.bootstrap, topic, [Sent(b"x" * 100, partition=n % 2) for n in range(50)])
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        assert len(load(spark, broker.bootstrap, subscribe=topic).collect()) == 50
        rows = task_metrics(spark).where(f"partition LIKE '{topic}-%'").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    assert [(row["start"], row["end"], row["rows"]) for row in rows] == [(0, 25, 25)] * 2
    for row in rows:
        assert row["fetched_bytes"] > 2500
        assert row["fetch_requests"] >= 1
        assert row["fetch_seconds"] > 0
        assert row["decode_seconds"] > 0
        assert (row["retries"], row["lost_offsets"], row["query"]) == (0, 0, None)
