"""Where this connector and Spark's own differ, and where they must not: both run here.

Each row of the list of differences in docs/spark.md has a test in this file or in
`test_jvm_connector`; what is equal here has been different.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_ottla
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.spark_kafka_jars import connector_jars
from tests.spark.streams import run_to_end
from tests.spark.support import Sent, create_topic, delete_topic, write

NewTopicName = Callable[[str], str]
KINDS = ("ottla", "kafka")


@pytest.fixture(scope="module", autouse=True)
def _both(spark: SparkSession) -> None:
    jars = connector_jars()
    if isinstance(jars, str):
        pytest.skip(jars)
    pyspark_ottla.register(spark)


class Both:
    """The same read or write with both connectors, each with a topic of its own."""

    def __init__(self, spark: SparkSession, bootstrap: str, new_topic: NewTopicName) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self._new_topic = new_topic

    def topic(self, partitions: int = 1) -> str:
        name = self._new_topic("both")
        create_topic(self.bootstrap, name, partitions)
        return name

    def read(self, kind: str, topic: str, **options: str) -> DataFrame:
        reader = self.spark.read.format(kind).option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def write(
        self, kind: str, query: str, mode: str | None = "append", **options: str
    ) -> list[tuple[Any, ...]] | str:
        """The records, or `failed`; the timestamp as whether it is that of the write."""
        topic = self.topic()
        writer = self.spark.sql(query).write.format(kind).option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap).options(**options)
        try:
            (writer if mode is None else writer.mode(mode)).save()
        except Exception:  # of Java, Python or py4j
            return "failed"
        now = datetime.datetime.now()
        rows = self.read(kind, topic, includeHeaders="true").collect()
        return [
            (row.key, row.value, row.headers, abs((now - row.timestamp).total_seconds()) < 120)
            for row in rows
        ]


@pytest.fixture
def both(spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName) -> Both:
    return Both(spark, broker.bootstrap, new_topic)


SAME_WRITES = [
    "SELECT 'v' AS value, timestamp'2020-01-01' AS timestamp",
    "SELECT 'v' AS value, timestamp'1969-01-01' AS timestamp",
    "SELECT 'v' AS value, timestamp_ntz'2020-01-01' AS timestamp",
    "SELECT 'v' AS value, 5L AS timestamp",
    "SELECT 'v' AS value, 'yesterday' AS timestamp",
    "SELECT 'v' AS value, 'k' AS key, 1 AS other",
    "SELECT 'v' AS VALUE, 'k' AS Key",
    "SELECT CAST('v' AS VARCHAR(3)) AS value, CAST('k' AS CHAR(1)) AS key",
    "SELECT 'v' AS value, array(struct('h' AS key, X'01' AS value)) AS headers",
    "SELECT 'v' AS value, array(struct('h' AS key, CAST(NULL AS BINARY) AS value)) AS headers",
    "SELECT 'v' AS value, array(struct(CAST(NULL AS STRING) AS key, X'01' AS value)) AS headers",
    "SELECT 'v' AS value, array(CAST(NULL AS STRUCT<key: STRING, value: BINARY>)) AS headers",
    "SELECT 'v' AS value, array(struct('h' AS name, X'01' AS value)) AS headers",
    "SELECT 'v' AS value, array(struct(X'01' AS value, 'h' AS key)) AS headers",
    "SELECT NULL AS value, 'k' AS key",
    "SELECT 1 AS value",
]


@pytest.mark.parametrize("query", SAME_WRITES)
def test_both_write_the_same_columns(both: Both, query: str) -> None:
    ours, theirs = (both.write(kind, query) for kind in KINDS)
    assert ours == theirs


def test_a_timestamp_is_written_with_an_option(both: Both) -> None:
    query = "SELECT 'v' AS value, timestamp'2020-01-01' AS timestamp"
    assert both.write("ottla", query, writeTimestamp="true") == [(None, b"v", None, False)]
    query = "SELECT 'v' AS value, 1577836800000L AS timestamp"
    assert both.write("ottla", query, writeTimestamp="true") == [(None, b"v", None, False)]
    query = "SELECT 'v' AS value, 'yesterday' AS timestamp"
    assert both.write("ottla", query, writeTimestamp="true") == "failed"


@pytest.mark.parametrize("mode", [None, "error", "errorifexists", "append", "overwrite", "ignore"])
def test_save_modes(both: Both, mode: str | None) -> None:
    ours, theirs = (both.write(kind, "SELECT 'v' AS value", mode) for kind in KINDS)
    assert ours == theirs


def test_one_set_of_options_serves_both_directions(both: Both) -> None:
    options = {"subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    query = "SELECT 'v' AS value"
    assert both.write("ottla", query, **options) == both.write("kafka", query, **options)
    topic = both.topic()
    for kind in KINDS:
        assert both.read(kind, topic, Topic="t").count() == 0


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_update_mode(both: Both, tmp_path: Path, delivery: str) -> None:
    source = both.topic()
    counts: dict[str, list[str]] = {}
    for kind in KINDS:
        target = both.topic()
        for turn in range(2):
            if kind == "ottla" or turn:
                write(both.bootstrap, source, [Sent(b"a"), Sent(b"b"), Sent(b"a")])
            stream = both.spark.readStream.format(kind).option("subscribe", source)
            stream = stream.option("kafka.bootstrap.servers", both.bootstrap)
            stream = stream.option("startingOffsets", "earliest")
            counted = stream.load().groupBy("value").count()
            writer = counted.selectExpr("concat(string(value), count) AS value").writeStream
            writer = writer.format(kind).outputMode("update").option("topic", target)
            writer = writer.option("kafka.bootstrap.servers", both.bootstrap)
            writer = writer.option("checkpointLocation", str(tmp_path / kind))
            if kind == "ottla":
                writer = writer.option("delivery", delivery)
            run_to_end(writer.trigger(availableNow=True).start())
        rows = both.read("ottla", target, **{"kafka.isolation.level": "read_committed"})
        counts[kind] = sorted(row.value.decode() for row in rows.collect())
    assert counts["ottla"] == ["a2", "a4", "b1", "b2"]
    # The topic had more records by then.
    assert counts["kafka"] == ["a4", "a6", "b2", "b3"]


def test_tables(both: Both) -> None:
    topic = both.topic()
    write(both.bootstrap, topic, [Sent(b"x"), Sent(b"y")])
    found = {}
    for kind in KINDS:
        name = f"table_{kind}"
        both.spark.sql(
            f"CREATE TABLE {name} USING {kind} OPTIONS "
            f"('kafka.bootstrap.servers' '{both.bootstrap}', subscribe '{topic}')"
        )
        try:
            table = both.spark.table(name)
            found[kind] = (
                table.schema,
                table.collect(),
                both.spark.sql(f"SELECT string(value) FROM {name} WHERE offset > 0").collect(),
            )
            with pytest.raises(Exception, match=r"INSERT|insert"):
                both.spark.sql(f"INSERT INTO {name} SELECT 'v' AS value")
        finally:
            both.spark.sql(f"DROP TABLE {name}")
    assert [row[0] for row in found["ottla"][2]] == ["y"]
    assert found["ottla"][1:] == found["kafka"][1:]
    assert found["ottla"][0].simpleString() == found["kafka"][0].simpleString()


def test_a_table_keeps_no_secret(both: Both) -> None:
    def create(password: str) -> None:
        both.spark.sql(
            "CREATE TABLE secret USING ottla OPTIONS ('kafka.bootstrap.servers' 'b:1', subscribe "
            "'t', 'kafka.security.protocol' 'SASL_PLAINTEXT', 'kafka.sasl.mechanism' 'PLAIN', "
            f"'kafka.sasl.username' 'u', 'kafka.sasl.password' '{password}')"
        )

    with pytest.raises(Exception, match=r"INVALID_OPTION.*secret in plain text.*\$\{env:NAME\}"):
        create("hidden")
    create("${env:PASSWORD}")
    both.spark.sql("DROP TABLE secret")


def test_an_unknown_option_is_an_error_here_only(both: Both) -> None:
    topic = both.topic()
    assert both.read("kafka", topic, startingOfsets="earliest").count() == 0
    with pytest.raises(Exception, match=r"UNKNOWN_OPTION.*Did you mean startingOffsets"):
        both.read("ottla", topic, startingOfsets="earliest").count()


def test_columns_can_be_chosen_here_only(both: Both) -> None:
    topic = both.topic()
    for kind in KINDS:
        reader = both.spark.read.format(kind).schema("value binary")
        reader = reader.option("kafka.bootstrap.servers", both.bootstrap)
        frame = reader.option("subscribe", topic)
        if kind == "ottla":
            assert frame.load().columns == ["value"]
        else:
            with pytest.raises(Exception, match="USER_SPECIFIED_AND_ACTUAL_SCHEMA_MISMATCH"):
                frame.load()


T0 = 1_700_000_000_000
IMPOSSIBLE: list[dict[str, Any]] = [
    {"startingOffsets": {"0": 8, "1": 0}, "endingOffsets": {"0": 5, "1": 1}},
    {"startingOffsets": {"0": 99, "1": 0}},
    {"startingOffsets": {"0": 99, "1": 0}, "failOnDataLoss": "false"},
    {"startingOffsets": {"0": 8, "1": 0}, "endingTimestamp": T0},
    {"startingTimestamp": T0 + 4000, "endingTimestamp": T0 + 1000},
    {"startingTimestamp": T0 + 4000, "endingOffsets": {"0": 2, "1": -1}},
    {
        "startingOffsetsByTimestamp": {"0": T0 + 4000, "1": T0},
        "endingOffsetsByTimestamp": {"0": T0 + 1000, "1": T0},
    },
]
POSSIBLE: list[dict[str, Any]] = [
    {"startingOffsets": {"0": 5, "1": 0}, "endingOffsets": {"0": 5, "1": 1}},
    {"startingTimestamp": T0 + 4000, "endingTimestamp": T0 + 4000},
    {"startingTimestamp": T0 + 9999999, "endingTimestamp": T0 + 99999999},
    {"startingTimestamp": -2},
    {"startingOffsetsByTimestamp": {"0": -1, "1": -2}},
    {"endingTimestamp": 0},
    {"endingOffsets": {"0": 99, "1": 0}, "failOnDataLoss": "false"},
]


@pytest.fixture(scope="module")
def timed_topic(broker: BrokerProcess, new_topic: NewTopicName) -> str:
    """Ten records a second apart in each of two partitions."""
    name = new_topic("timed")
    create_topic(broker.bootstrap, name, 2)
    records = [Sent(b"x", None, p, T0 + 1000 * n) for n in range(10) for p in (0, 1)]
    write(broker.bootstrap, name, records)
    return name


def of_topic(topic: str, options: dict[str, Any]) -> dict[str, str]:
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    short = {"kafkaConsumer.pollTimeoutMs": "3000"}
    return (
        strategy
        | short
        | {
            name: json.dumps({topic: value}) if isinstance(value, dict) else str(value)
            for name, value in options.items()
        }
    )


@pytest.mark.parametrize("options", IMPOSSIBLE)
def test_an_impossible_range_is_an_error(
    both: Both, timed_topic: str, options: dict[str, Any]
) -> None:
    given = of_topic(timed_topic, options)
    with pytest.raises(Exception, match="greater than the"):
        both.read("kafka", timed_topic, **given).collect()
    with pytest.raises(Exception, match="START_OFFSET_GREATER_THAN_END_OFFSET"):
        both.read("ottla", timed_topic, **given).collect()


@pytest.mark.parametrize("options", POSSIBLE)
def test_a_possible_range_is_the_same(
    both: Both, timed_topic: str, options: dict[str, Any]
) -> None:
    given = of_topic(timed_topic, options)
    ours, theirs = (
        sorted(
            (row.partition, row.offset) for row in both.read(kind, timed_topic, **given).collect()
        )
        for kind in KINDS
    )
    assert ours == theirs


def test_topics_that_leave(both: Both, tmp_path: Path) -> None:
    """Spark's own needs one run with failOnDataLoss=false for each topic that leaves."""
    for kind in KINDS:
        kept, left = both.topic(), both.topic()

        def run(topics: str, kind: str = kind, **options: str) -> int:
            stream = both.spark.readStream.format(kind).option("subscribe", topics)
            stream = stream.option("kafka.bootstrap.servers", both.bootstrap).options(**options)
            writer = stream.option("startingOffsets", "earliest").load().writeStream.format("noop")
            writer = writer.option("checkpointLocation", str(tmp_path / kind))
            query = run_to_end(writer.trigger(availableNow=True).start())
            return sum(progress.numInputRows for progress in query.recentProgress)

        def add(*topics: str) -> None:
            for topic in topics:
                write(both.bootstrap, topic, [Sent(b"x")])

        add(kept, left)
        assert run(f"{kept},{left}") == 2
        add(kept)
        if kind == "ottla":
            assert run(kept) == 1
        else:
            with pytest.raises(Exception, match=r"PARTITIONS_DELETED|may have been lost"):
                run(kept)
        delete_topic(both.bootstrap, left)
        add(kept)
        if kind == "kafka":
            assert run(kept, failOnDataLoss="false") == 2
            add(kept)
        assert run(kept) == 1
        add(kept)
        with pytest.raises(
            Exception, match=r"PARTITIONS_DELETED|UNKNOWN_TOPIC|does not host|may have been lost"
        ):
            run(f"{kept},{left}", **{"kafka.allow.auto.create.topics": "false"})
