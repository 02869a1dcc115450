"""Options and schemas of the sink, and the texts that go with them."""

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.sink_options import SinkOptions, parse_sink_options
from pyspark_ottla.read.schema import headers_type
from pyspark_ottla.write.writer import BatchWriter, check_sink_schema


def parse(**given: str) -> SinkOptions:
    named = {name.replace("_", "."): value for name, value in given.items()}
    return parse_sink_options({"kafka.bootstrap.servers": "b:1"} | named)


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_defaults_and_what_spark_adds() -> None:
    options = parse(topic="t", checkpointLocation="/c", path="/p")
    assert (options.topic, options.exactly_once) == ("t", False)
    assert (options.write_id, options.batch_id, options.fail_on_data_loss) == (None, None, True)
    assert options.client.transaction_timeout_ms == 900_000
    assert (options.client.acks, options.client.idempotent) == (-1, True)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"topic": "a/b"},
            "[INVALID_OPTION] The option topic has the value 'a/b'. "
            "Expected a topic name of letters, digits and . _ -.",
        ),
        (
            {"delivery": "at-most-once"},
            "[INVALID_OPTION] The option delivery has the value 'at-most-once'. "
            "Expected one of at-least-once, exactly-once.",
        ),
        (
            {"delivery": "exactly-once", "kafka.acks": "1"},
            "[CONFLICTING_OPTIONS] delivery is exactly-once, but the producer is not to be "
            "idempotent. Leave out kafka.enable.idempotence and kafka.acks.",
        ),
        (
            {"transactionalIdPrefix": "a b"},
            "[INVALID_OPTION] The option transactionalIdPrefix has the value 'a b'. "
            "Expected at most 100 letters, digits and . _ -.",
        ),
        (
            {"writeId": "a/b"},
            "[INVALID_OPTION] The option writeId has the value 'a/b'. "
            "Expected at most 100 letters, digits and . _ -.",
        ),
        (
            {"batchId": "3"},
            "[MISSING_OPTION] The option batchId is set, but writeId is not. "
            "Set writeId to a name for this write, the same in every batch.",
        ),
        (
            {"kafka.transactional.id": "x"},
            "[UNSUPPORTED_OPTION] The option kafka.transactional.id cannot be set. "
            "Set delivery to exactly-once; the connector names its transactions.",
        ),
        (
            {"subscribed": "t"},
            "[UNKNOWN_OPTION] There is no option 'subscribed' for the ottla sink. The options are "
            "topic, delivery, writeId, batchId, failOnDataLoss, transactionalIdPrefix, "
            "includeHeaders, writeTimestamp and kafka.*.",
        ),
    ],
)
def test_refused_options(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConnectorError) as raised:
        parse_sink_options({"kafka.bootstrap.servers": "b:1"} | given)
    assert str(raised.value) == text


def test_every_column_a_record_may_have() -> None:
    whole = schema(
        key=BinaryType(),
        value=StringType(),
        topic=StringType(),
        partition=IntegerType(),
        headers=headers_type(),
        timestamp=TimestampType(),
        something=LongType(),
    )
    check_sink_schema(whole, parse())


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({"key": StringType()}, {"topic": "t"}, "have no column value, only key"),
        ({}, {"topic": "t"}, "have no column value, only none"),
        ({"value": LongType()}, {"topic": "t"}, "value to write has the type bigint. It must be"),
        (
            {"value": StringType(), "partition": LongType()},
            {"topic": "t"},
            "column partition to write has the type bigint. It must be int;",
        ),
        ({"value": StringType()}, {}, "option topic is not set, which rows without a topic column"),
        (
            {"value": StringType(), "topic": StringType()},
            {"delivery": "exactly-once"},
            "option topic is not set, which exactly-once delivery",
        ),
    ],
)
def test_refused_schemas(columns: dict[str, DataType], options: dict[str, str], text: str) -> None:
    with pytest.raises(ConnectorError, match=text):
        check_sink_schema(schema(**columns), parse(**options))


def test_a_batch_cannot_overwrite() -> None:
    with pytest.raises(ConnectorError, match="UNSUPPORTED_SAVE_MODE"):
        BatchWriter(parse(topic="t"), schema(value=StringType()), overwrite=True)
