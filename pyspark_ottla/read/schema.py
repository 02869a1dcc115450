"""The columns of a read: Kafka's row schema, and a user's schema as a choice among them.

Spark does not tell a Python source which columns a query uses, so `.schema("value binary")` is the
way to read fewer: what is not named is not decoded.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.options import SourceOptions


def headers_type() -> ArrayType:
    fields = [StructField("key", StringType()), StructField("value", BinaryType())]
    return ArrayType(StructType(fields))


def arrow_schema(schema: StructType) -> Any:
    """As Spark itself makes it of `schema`: it compares that with what is read."""
    from pyspark.sql.pandas.types import to_arrow_schema

    make: Any = to_arrow_schema  # its parameters differ from version to version
    if "timezone" in signature(make).parameters:
        return make(schema, timezone="UTC")
    return make(schema)  # Spark 4.0 and 4.1, which know no other zone here


def row_schema(options: SourceOptions) -> StructType:
    """The columns of Spark's JVM connector, then those that our own options add."""

    def content(chosen: str) -> DataType:
        return StringType() if chosen == "string" else BinaryType()

    schema = StructType(
        [
            StructField("key", content(options.key_format)),
            StructField("value", content(options.value_format)),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
        ]
    )
    if options.include_headers:
        schema.add(StructField("headers", headers_type()))
    if options.value_format == "confluent-strip":
        schema.add(StructField("value_schema_id", IntegerType()))
    return schema


def check_projection(schema: StructType, options: SourceOptions) -> StructType:
    """`schema` if each of its columns is one of the source's, with its type; any order, any subset.

    Names are compared as they are written, since Spark's own rule about case is not known here.
    """
    if options.transform is not None:
        return schema  # what the function makes is known to the user alone
    whole = row_schema(options)
    types = {field.name: field.dataType.simpleString() for field in whole.fields}
    columns = ", ".join(f"{name} {kind}" for name, kind in types.items())
    if not schema.fields:
        raise ConnectorError(
            errors.INVALID_SCHEMA, "The schema names no column", f"The columns are: {columns}"
        )
    seen: set[str] = set()
    for field in schema.fields:
        given = field.dataType.simpleString()
        if field.name not in types or types[field.name] != given:
            what = f"has the type {given}" if field.name in types else "is none of the source's"
            hint = f"The columns are: {columns}"
            if field.name == "headers" and not options.include_headers:
                hint = "Set the option includeHeaders to true"
            raise ConnectorError(
                errors.INVALID_SCHEMA, f"The column {field.name} of the schema {what}", hint
            )
        if field.name in seen:
            raise ConnectorError(
                errors.INVALID_SCHEMA, f"The schema names the column {field.name} twice"
            )
        seen.add(field.name)
    return schema
