"""JSON Schema and Spark's own schemas as Spark types."""

import json
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_ottla.decode import json_schema
from pyspark_ottla.errors import ConnectorError


def spark(schema: Any, **references: Any) -> str:
    others = {name: json.dumps(text) for name, text in references.items()}
    return json_schema.spark_type(json.dumps(schema), others).simpleString()


def properties(**types: Any) -> dict[str, Any]:
    return {"type": "object", "properties": types}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": ["null", "integer"]}, "bigint"),
        ({"type": ["integer", "number", "null"]}, "double"),
        ({"type": ["integer", "string"]}, "string"),
        ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, "boolean"),
        ({"anyOf": [{"type": "string"}, {"type": "boolean"}]}, "string"),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint>"),
        ({"type": "array"}, "array<string>"),
        ({"type": "object"}, "string"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string,bigint>"),
        (properties(a={"type": "integer"}), "struct<a:bigint>"),
        ({"properties": {"a": {"$ref": "#/$defs/x~1y"}}}, "struct<a:date>"),
        ({"$ref": "other"}, "struct<b:double>"),
        ({"$ref": "other#/properties/b"}, "double"),
        ({"enum": ["A", "B"]}, "string"),
        (True, "string"),
    ],
)
def test_types(kind: Any, expected: str) -> None:
    whole = properties(field=kind) | {"$defs": {"x/y": {"type": "string", "format": "date"}}}
    other = properties(b={"$ref": "#/definitions/c"}) | {"definitions": {"c": {"type": "number"}}}
    assert spark(whole, other=other) == f"struct<field:{expected}>"


def test_a_schema_of_spark() -> None:
    schema = StructType([StructField("a", LongType()), StructField("b", StringType())])
    assert json_schema.spark_type(schema.json(), {}) == schema


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a long, b string", "is no JSON"),
        ('{"type":"struct","fields":[{"name":"a"}]}', "is no schema of Spark"),
        ('{"$ref": "#"}', "contains itself"),
        ('{"$ref": "#/$defs/none"}', "refers to #/$defs/none, which it does not have"),
        ('{"$ref": "elsewhere"}', "refers to elsewhere, which it does not have"),
    ],
)
def test_rejected_schemas(text: str, words: str) -> None:
    with pytest.raises(ConnectorError) as raised:
        json_schema.spark_type(text, {})
    assert words in str(raised.value)
