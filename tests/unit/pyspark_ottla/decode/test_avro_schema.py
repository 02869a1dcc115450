"""Avro schemas as Spark types, and those that are rejected."""

import json
from typing import Any

import pytest

from pyspark_ottla.decode import avro_schema
from pyspark_ottla.errors import ConnectorError


def spark(schema: Any) -> str:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return avro_schema.spark_type(avro_schema.parse(text, ())[1]).simpleString()


def record(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": "n.R", "fields": fields}


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ('"string"', "string"),
        ("long", "bigint"),
        (record("int", "boolean", "float", "double", "bytes", "null"), None),
        ({"type": "array", "items": ["null", "int"]}, "array<int>"),
        ({"type": "map", "values": {"type": "map", "values": "long"}}, None),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 3}, "binary"),
        (logical("int", "date"), "date"),
        (logical("long", "timestamp-millis"), "timestamp"),
        (logical("long", "timestamp-micros"), "timestamp"),
        (logical("long", "local-timestamp-micros"), "timestamp_ntz"),
        (logical("long", "time-micros"), "bigint"),
        (logical("string", "uuid"), "string"),
        (logical("bytes", "decimal", precision=9, scale=2), "decimal(9,2)"),
        (["null", "int", "long"], "bigint"),
        (["float", "double"], "double"),
        (["int", "string", "null"], "struct<member0:int,member1:string>"),
        # what the specification has ignored
        (logical("int", "timestamp-millis"), "int"),
        (logical("long", "made-up"), "bigint"),
    ],
)
def test_types(schema: Any, expected: str | None) -> None:
    named = {
        "record": "struct<f0:int,f1:boolean,f2:float,f3:double,f4:binary,f5:void>",
        "map": "map<string,map<string,bigint>>",
    }
    assert spark(schema) == (expected or named[schema["type"]])


def test_names_are_looked_up_in_namespaces_and_references() -> None:
    inner = {"type": "record", "name": "X", "fields": [{"name": "a", "type": "int"}]}
    assert spark(record(inner, ["null", "X"], "n.X")) == (
        "struct<f0:struct<a:int>,f1:struct<a:int>,f2:struct<a:int>>"
    )
    references = (("q.Y", json.dumps({**inner, "name": "q.Y"})),)
    _, whole = avro_schema.parse(json.dumps(record("q.Y")), references)
    assert avro_schema.spark_type(whole).simpleString() == "struct<f0:struct<a:int>>"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "is no JSON"),
        ({"type": "record"}, "is not valid"),
        (record("n.Missing"), "refers to the type n.Missing, which it does not define"),
        (record(["null", "R"]), "has the type n.R within itself (f0)"),
        (record({"type": "array", "items": "n.R"}), "has the type n.R within itself (f0.[])"),
        (record({"type": "array", "items": "null"}), "an array of items without content (f0)"),
        (
            record({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}),
            "an array of items without content",
        ),
        (logical("bytes", "decimal", precision=39), "a decimal of 39 digits"),
    ],
)
def test_rejected_schemas(schema: Any, text: str) -> None:
    with pytest.raises(ConnectorError) as raised:
        spark(schema)
    assert text in str(raised.value)
    assert str(raised.value).startswith("[UNSUPPORTED_SCHEMA] The Avro schema ")


def test_what_fastavro_reads_with_has_no_logical_types() -> None:
    default = {"name": "f9", "type": {"type": "map", "values": "int"}}
    schema = record(logical("long", "timestamp-millis"))
    schema["fields"].append(default | {"default": {"logicalType": 3}})
    plain = avro_schema.without_logical_types(schema)
    assert plain["fields"][0]["type"] == {"type": "long"}
    assert plain["fields"][1]["default"] == {"logicalType": 3}


def test_numbers_that_mean_something_else_in_another_version_are_found() -> None:
    millis, micros = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
    difference = avro_schema.difference
    assert difference(record("int", millis), record("int", micros)) == (
        "f1 is timestamp-millis there and timestamp-micros in the query"
    )
    assert difference(record(["null", millis]), record(micros)) is not None
    assert difference(record({"type": "array", "items": millis}), record("int")) is None
    assert difference(record(millis, "int"), record(millis)) is None
    assert difference(record("long"), record(micros)) is None
    renamed = record(micros)
    renamed["fields"][0] |= {"name": "at", "aliases": ["f0"]}
    assert difference(record(millis), renamed) is not None
    two = logical("bytes", "decimal", precision=9, scale=2)
    assert difference(record(two), record({**two, "scale": 3})) == (
        "f0 is decimal(9, 2) there and decimal(9, 3) in the query"
    )
