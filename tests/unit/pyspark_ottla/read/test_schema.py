"""The columns of a read, and a schema as a choice among them."""

from typing import Any

import pytest
from pyspark.sql.pandas import types
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.options import SourceOptions, parse_source_options
from pyspark_ottla.read.schema import arrow_schema, check_projection, headers_type, row_schema


def options(**given: str) -> SourceOptions:
    return parse_source_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t"} | given)


def test_the_columns_of_the_jvm_connector() -> None:
    assert row_schema(options(includeHeaders="true")).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


def test_columns_that_formats_change_or_add() -> None:
    schema = row_schema(options(keyFormat="string", valueFormat="confluent-strip"))
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    assert (types["key"], types["value"], types["value_schema_id"]) == ("string", "binary", "int")


def test_any_subset_in_any_order() -> None:
    chosen = StructType([StructField("offset", LongType()), StructField("key", BinaryType())])
    assert check_projection(chosen, options()) is chosen


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([], "names no column"),
        ([StructField("value", StringType())], "column value of the schema has the type string"),
        (
            [StructField("Value", BinaryType())],
            "column Value of the schema is none of the source's",
        ),
        ([StructField("headers", headers_type())], "Set the option includeHeaders to true"),
        ([StructField("key", BinaryType())] * 2, "names the column key twice"),
    ],
)
def test_refused_schemas(fields: list[StructField], text: str) -> None:
    with pytest.raises(ConnectorError, match=text):
        check_projection(StructType(fields), options())


def test_the_arrow_schema_on_newer_and_on_older_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.0 and 4.1 name the parameter otherwise and make UTC of it by themselves."""
    schema = row_schema(options(includeHeaders="true"))
    newer = arrow_schema(schema)
    assert str(newer.field("timestamp").type) == "timestamp[us, tz=UTC]"
    make: Any = types.to_arrow_schema

    def older(schema: StructType, timestamp_utc: bool = True) -> Any:
        return make(schema, timezone="UTC" if timestamp_utc else None)

    monkeypatch.setattr(types, "to_arrow_schema", older)
    assert arrow_schema(schema).equals(newer)
