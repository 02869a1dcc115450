"""Options, tables and changes of a schema of the landing job."""

import json

import pytest
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.land.plan import LandOptions, partition_column, schema_conflict, sentence_of


def options(**given: object) -> LandOptions:
    return LandOptions.from_json(json.dumps({"topics": ["orders"], "to": "/data/"} | given))


def test_tables_and_checkpoints_are_in_one_folder() -> None:
    assert options().table("orders") == "/data/orders"
    assert options().checkpoint_of("orders") == "/data/_checkpoints/orders"
    assert options(checkpoint="/c/").checkpoint_of("orders") == "/c/orders"
    assert options(format="iceberg").table("a-b.c") == "ottla_tables.`a-b.c`"


def test_the_options_of_the_source() -> None:
    source = {"value.format": "avro", "startingOffsets": "latest"}
    assert options(source=source, bad_records="drop").source_options("orders") == {
        "subscribe": "orders",
        "startingOffsets": "latest",
        "maxBytesPerTrigger": str(1 << 30),
        "value.format": "avro",
        "mode": "permissive",
        "onDecodeError": "null",
    }
    older = options(source=source).source_options("orders", has_limits=False)
    assert older == {"subscribe": "orders"} | source
    assert not options(source={"valueFormat": "string"}, bad_records="drop").is_decoded


def test_options_of_another_version() -> None:
    with pytest.raises(ConnectorError, match="does not know colour"):
        options(colour="red")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("date", ("date", "CAST(timestamp AS DATE)")),
        ("hour", ("hour", "HOUR(timestamp)")),
        ("topic", ("topic", None)),
        ("value.a.country", ("country", "`value`.`a`.`country`")),
    ],
)
def test_partition_columns(name: str, expected: tuple[str, str | None]) -> None:
    assert partition_column(name) == expected


@pytest.mark.parametrize("name", ["", "a b", "hour(x)", "`a`", "1a"])
def test_what_is_no_column(name: str) -> None:
    with pytest.raises(ConnectorError, match="cannot be partitioned by"):
        partition_column(name)


def struct(**types: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "conflict"),
    [
        (struct(a=LongType()), struct(a=LongType(), b=StringType()), None),
        (struct(a=LongType(), b=StringType()), struct(a=LongType()), None),
        (struct(a=LongType()), struct(a=StringType()), "column a is bigint there and string now"),
        (struct(a=IntegerType()), struct(a=LongType()), "column a is int there and bigint now"),
        (
            struct(v=ArrayType(struct(a=LongType()))),
            struct(v=ArrayType(struct(a=StringType()))),
            "column v[].a is bigint",
        ),
        (
            struct(v=MapType(StringType(), LongType())),
            struct(v=MapType(StringType(), StringType())),
            "column v{} is bigint",
        ),
        (struct(v=struct(a=LongType())), struct(v=struct(b=LongType())), None),
        (struct(v=struct(a=LongType())), struct(v=LongType()), "column v is struct<a:bigint>"),
    ],
)
def test_changes_of_a_schema(old: StructType, new: StructType, conflict: str | None) -> None:
    found = schema_conflict(old, new)
    assert found is None if conflict is None else conflict in str(found)


def test_the_sentence_of_a_failure() -> None:
    text = (
        "[STREAM_FAILED] Query failed\npyspark_ottla.errors.ConnectorError: [DECODE_FAILED] The "
        "value is no JSON. Set mode.\n\tat org.apache"
    )
    assert sentence_of(text) == "[DECODE_FAILED] The value is no JSON. Set mode."
    assert sentence_of("\n [X] first\nsecond") == "[X] first"
    assert sentence_of("") == "Spark gave no reason"
