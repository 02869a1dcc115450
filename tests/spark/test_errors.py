"""Bad input: an exception that names option, topic and partition and the remedy, in time."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.doubles.broker_process import BrokerProcess
from tests.spark.streams import Job, finish, started, stream
from tests.spark.support import Sent, create_topic, load, write

NewTopicName = Callable[[str], str]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, r"\[MISSING_OPTION\] No option sets what to read"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign are both set"),
        ({"subscribe": "a", "startingOffset": "earliest"}, "Did you mean startingOffsets"),
        ({"subscribe": "a", "kafka.auto.offset.reset": "latest"}, "Use the option startingOffsets"),
        ({"subscribe": "a", "kafka.sasl.password": "hunter2"}, "kafka.security.protocol is PLAIN"),
        ({"subscribe": "a", "startingOffsets": '{"a":'}, "is not valid JSON"),
    ],
)
def test_bad_options_fail_at_load(spark: SparkSession, options: dict[str, str], text: str) -> None:
    """Before the first request: no broker is at this address."""
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:1")
    with pytest.raises(Exception, match=text) as raised:
        reader.options(**options).load()
    assert "hunter2" not in str(raised.value)


@pytest.fixture(scope="module")
def topic(broker: BrokerProcess) -> str:
    create_topic(broker.bootstrap, "errors", 2)
    write(broker.bootstrap, "errors", [Sent(b"%d" % n) for n in range(5)])
    return "errors"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "missing"}, r"\[UNKNOWN_TOPIC\] The brokers at .* have no topic missing"),
        ({"subscribe": "errors,missing"}, "have no topic missing"),
        ({"assign": '{"errors":[0,2,5]}'}, "assign names errors-2, errors-5, which the brokers do"),
        (
            {"subscribe": "errors", "startingOffsets": '{"errors":{"0":1}}'},
            "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED.*leaves out errors-1",
        ),
        (
            {"subscribe": "errors", "endingOffsets": '{"errors":{"0":1,"1":1,"2":1}}'},
            "endingOffsets names errors-2, which is not read",
        ),
        (
            {"subscribe": "errors", "startingTimestamp": "99999999999999"},
            "TIMESTAMP_OFFSET_NOT_FOUND.*startingOffsetsByTimestampStrategy to latest",
        ),
        (
            {"subscribe": "errors", "startingOffsets": "latest"},
            "a batch read cannot start from: nothing would be read",
        ),
        (
            {"subscribe": "errors", "endingOffsets": '{"errors":{"0":9,"1":0}}'},
            "COULD_NOT_READ_OFFSET_RANGE. errors-0 was to be read up to offset 9, but ends at 5",
        ),
    ],
)
def test_what_the_brokers_do_not_have(
    spark: SparkSession, broker: BrokerProcess, topic: str, options: dict[str, str], text: str
) -> None:
    frame = load(spark, broker.bootstrap, **options)
    with pytest.raises(Exception, match=text):
        frame.collect()


def test_a_wrong_schema(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    for schema, text in [
        ("value string", "column value of the schema has the type string.*value binary"),
        ("value binary, colour string", "column colour of the schema is none of the source's"),
        (
            "headers array<struct<key:string,value:binary>>",
            "Set the option includeHeaders to true",
        ),
    ]:
        with pytest.raises(Exception, match=text):
            load(spark, broker.bootstrap, schema, subscribe=topic).collect()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_no_broker_at_the_address(spark: SparkSession, silent_port: int) -> None:
    impatient = {"subscribe": "t", "kafka_default_api_timeout_ms": 1500}
    with pytest.raises(Exception, match=r"BROKER_UNAVAILABLE.*127\.0\.0\.1:1\b"):
        load(spark, "127.0.0.1:1", **impatient).collect()
    with pytest.raises(Exception, match=rf"BROKER_UNAVAILABLE.*127\.0\.0\.1:{silent_port}"):
        load(spark, f"127.0.0.1:{silent_port}", **impatient).collect()


def test_a_stream_says_the_same(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    for options, text in [
        ({"subscribe": topic, "endingOffsets": "latest"}, "a streaming query has no end"),
        ({"subscribe": "missing"}, "have no topic missing"),
        (
            {"subscribe": topic, "startingOffsets": "committed", "kafka_group_id": "nobodies"},
            "NO_COMMITTED_OFFSET.*group nobodies has no committed offset for errors-0",
        ),
    ]:
        writer = (
            stream(spark, broker.bootstrap, **options)
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / text[:8]))
            .trigger(availableNow=True)
        )
        with pytest.raises(Exception, match=text):
            finish(writer.start())


def test_a_broker_that_is_away_for_a_while(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    """A restart in the middle of a running query is waited out; stopping needs no broker."""
    name = new_topic("away")
    create_topic(broker.bootstrap, name)
    write(broker.bootstrap, name, [Sent(b"1")])
    job = Job(spark, tmp_path)
    frame = stream(spark, broker.bootstrap, subscribe=name, startingOffsets="earliest")
    query = started(job.start(frame, processingTime="0 seconds"))
    try:
        query.processAllAvailable()
        broker.restart()
        write(broker.bootstrap, name, [Sent(b"2")])
        query.processAllAvailable()
        assert len(job.rows()) == 2
        broker.stop()
    finally:
        query.stop()
        broker.restart()
    assert not query.isActive
