"""Avro, Protobuf and JSON as columns, through Spark, a broker and a schema registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import pyspark_ottla
from pyspark_ottla.lag import task_metrics
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.protobuf_files import ORDER, ORDER_TYPE, compiled, new_message
from tests.doubles.schema_registry import SchemaRegistry, framed, serving
from tests.spark.support import Sent, create_topic, load, write

NewTopicName = Callable[[str], str]
FIRST: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "prices", "type": {"type": "map", "values": ["null", "double"]}},
    ],
}
SECOND: dict[str, Any] = {
    **FIRST,
    "fields": [
        *FIRST["fields"],
        {
            "name": "state",
            "type": {"type": "enum", "name": "S", "symbols": ["NEW"]},
            "default": "NEW",
        },
    ],
}
CONTENT = {"at": 1_700_000_000_000, "tags": ["a", "b"], "prices": {"x": 1.5, "y": None}}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with serving() as running:
        yield running


def avro(schema_id: int, schema: Any, **values: Any) -> bytes:
    stream = BytesIO()
    plain = json.loads(json.dumps(schema).replace('"logicalType"', '"note"'))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), CONTENT | values)
    return framed(schema_id, stream.getvalue())


def run_stream(frame: DataFrame, work: Path) -> list[dict[str, Any]]:
    """Everything that is there, written as Parquet; the progress of each batch."""
    writer = frame.writeStream.format("parquet").option("path", str(work / "table"))
    query = writer.option("checkpointLocation", str(work / "checkpoint"))
    running = query.trigger(availableNow=True).start()
    assert running.awaitTermination(120)
    return list(running.recentProgress)


def test_avro_of_two_versions_in_batch_and_stream(
    spark: SparkSession,
    broker: BrokerProcess,
    registry: SchemaRegistry,
    new_topic: NewTopicName,
    tmp_path: Path,
) -> None:
    topic = new_topic("avro")
    create_topic(broker.bootstrap, topic)
    first = registry.register(f"{topic}-value", json.dumps(FIRST))
    second = registry.register(f"{topic}-value", json.dumps(SECOND))
    sent = [avro(first, FIRST, id=1), avro(second, SECOND, id=2, state="NEW"), None]
    write(broker.bootstrap, topic, [Sent(value) for value in sent])
    given = {"subscribe": topic, "value_format": "avro", "schema_registry_url": registry.url}

    frame = load(spark, broker.bootstrap, **given)
    assert dict(frame.dtypes)["value"] == (
        "struct<id:bigint,at:timestamp,tags:array<string>,prices:map<string,double>,state:string>"
    )
    rows = frame.orderBy("offset").selectExpr("value.*", "offset").collect()
    assert [(row.id, row.state, row.offset) for row in rows] == [
        (1, "NEW", 0),
        (2, "NEW", 1),
        (None, None, 2),
    ]
    assert rows[0].prices == {"x": 1.5, "y": None}
    assert rows[0].at.timestamp() == 1_700_000_000

    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    for name, value in given.items():
        reader = reader.option(name.replace("_", "."), value)
    run_stream(reader.option("startingOffsets", "earliest").load(), tmp_path)
    written = spark.read.parquet(str(tmp_path / "table")).orderBy("offset").collect()
    assert [row.value and row.value.id for row in written] == [1, 2, None]


def test_an_id_that_the_registry_does_not_know(
    spark: SparkSession,
    broker: BrokerProcess,
    registry: SchemaRegistry,
    new_topic: NewTopicName,
) -> None:
    topic = new_topic("unknown-id")
    create_topic(broker.bootstrap, topic)
    known = registry.register(f"{topic}-value", json.dumps(FIRST))
    sent = [avro(known, FIRST, id=1), avro(77, FIRST, id=2), avro(known, FIRST, id=3)]
    write(broker.bootstrap, topic, [Sent(value, b"key") for value in sent])
    given = {"subscribe": topic, "value_format": "avro", "schema_registry_url": registry.url}

    with pytest.raises(Exception, match="UNKNOWN_SCHEMA_ID") as raised:
        load(spark, broker.bootstrap, **given).collect()
    assert (
        f"[UNKNOWN_SCHEMA_ID] The value (avro) of the record at offset 1 of {topic}-0 has schema "
        f"id 77, which the schema registry {registry.url} does not know. Set schema.registry.url "
        "to the registry of the producers"
    ) in str(raised.value)
    frame = load(spark, broker.bootstrap, **given, mode="dropmalformed")
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        assert [row.id for row in frame.select("value.id").collect()] == [1, 3]
        [task] = task_metrics(spark).where(f"partition = '{topic}-0'").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    assert (task.rows, task.bad_records) == (3, 1)
    frame = load(spark, broker.bootstrap, **given, mode="permissive")
    [bad] = frame.where("_corrupt IS NOT NULL").collect()
    assert (bad.offset, bad.value, bytes(bad["_corrupt"].key)) == (1, None, b"key")
    assert bytes(bad["_corrupt"].value) == sent[1]
    assert "schema id 77" in bad["_corrupt"].reason


def test_protobuf_from_a_registry(
    spark: SparkSession,
    broker: BrokerProcess,
    registry: SchemaRegistry,
    new_topic: NewTopicName,
) -> None:
    topic = new_topic("protobuf")
    create_topic(broker.bootstrap, topic)
    schema_id = registry.register(
        f"{topic}-value", ORDER, "PROTOBUF", serialized=compiled(ORDER)[-1]
    )
    order = new_message(ORDER)
    order.id = 9
    order.lines.add(item="x", count=2)
    order.large = 1 << 63
    content = framed(schema_id, order.SerializeToString(), b"\0")
    write(broker.bootstrap, topic, [Sent(content)])
    frame = load(
        spark,
        broker.bootstrap,
        subscribe=topic,
        value_format="protobuf",
        schema_registry_url=registry.url,
    )
    assert dict(frame.dtypes)["value"] == ORDER_TYPE
    [row] = frame.select("value.id", "value.lines", "value.large", "value.at").collect()
    assert (row.id, row.lines, int(row.large), row.at) == (
        9,
        [Row(item="x", count=2)],
        1 << 63,
        None,
    )


def test_json_with_the_columns_of_the_query_counts_bad_records(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("json")
    create_topic(broker.bootstrap, topic)
    sent = [b'{"id":1,"at":"2024-01-01T00:00:00Z"}', b"oops", b'{"id":2}']
    write(broker.bootstrap, topic, [Sent(value) for value in sent])
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    frame = (
        reader.schema(
            "value struct<id: int, at: timestamp>, offset long,"
            "_corrupt struct<reason: string, key: binary, value: binary>"
        )
        .options(**{"value.format": "json", "mode": "permissive"})
        .options(subscribe=topic, startingOffsets="earliest")
        .load()
    )
    counted = frame.observe("decode", *count_bad())
    progress = run_stream(counted.where("_corrupt IS NULL").drop("_corrupt"), tmp_path)
    counts = [entry["observedMetrics"]["decode"] for entry in progress if entry["numInputRows"]]
    assert [(found["records"], found["bad"]) for found in counts] == [(3, 1)]
    rows = spark.read.parquet(str(tmp_path / "table")).orderBy("offset").collect()
    assert [(row.value.id, row.value.at is None) for row in rows] == [(1, False), (2, True)]


def count_bad() -> list[Any]:
    from pyspark.sql import functions as f

    return [f.count(f.lit(1)).alias("records"), f.count("_corrupt").alias("bad")]


def test_a_function_of_a_notebook(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    """What a test defines can be imported by no executor, as what a notebook defines."""
    topic = new_topic("pickled")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b'{"id":%d}' % number) for number in range(5)])
    factor = 10

    def scaled(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            ids = [value["id"] * factor for value in batch.column("value").to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], ["id"])

    given: dict[str, str] = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": topic,
        "transform": pyspark_ottla.pickled(scaled),
        "value.format": "json",
        "value.schema": '{"type":"object","properties":{"id":{"type":"integer"}}}',
    }
    expected = [number * factor for number in range(5)]
    frame = spark.read.format("ottla").schema("id long").options(**given).load()
    assert sorted(row.id for row in frame.collect()) == expected
    reader = spark.readStream.format("ottla").schema("id long").options(**given)
    run_stream(reader.option("startingOffsets", "earliest").load(), tmp_path)
    table = spark.read.parquet(str(tmp_path / "table"))
    assert sorted(row.id for row in table.collect()) == expected
