"""The columns of a read: Kafka's row schema, and a user's schema as a choice among them.

Spark does not tell a Python source which columns a query uses, so `.schema("value binary")` is the
way to read fewer: what is not named is not decoded.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.options import SourceOptions

if TYPE_CHECKING:
    from pyspark_ottla.decode.resolved import ResolvedDecoding


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


def row_schema(options: SourceOptions, decoding: ResolvedDecoding | None = None) -> StructType:
    """The columns of Spark's JVM connector, then those that our own options add.

    With `decoding` the key and the value are what they are decoded to.
    """

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
    return schema if decoding is None else _decoded_schema(schema, decoding)


def _decoded_schema(schema: StructType, decoding: ResolvedDecoding) -> StructType:
    from pyspark_ottla.decode.resolved import corrupt_column
    from pyspark_ottla.options.decode_options import PERMISSIVE

    decoded = {part.field: part.column() for part in decoding.fields}
    for field, column in decoded.items():
        if column is None:
            raise ConnectorError(
                errors.MISSING_OPTION,
                f"{field}.format is json, but nothing sets the columns",
                f'Set them with .schema("{field} struct<name: type, ...>, offset long"), or set '
                f"{field}.schema or schema.registry.url",
            )
    columns = [decoded.get(column.name) or column for column in schema.fields]
    if decoding.mode == PERMISSIVE:
        columns.append(corrupt_column())
    return StructType(columns)


def raw_schema(schema: StructType, options: SourceOptions) -> StructType:
    """What is read to decode `schema` from: bytes, and the offset for errors."""
    whole = {column.name: column for column in row_schema(options).fields}
    needed = {column.name for column in schema.fields} | {"offset"}
    if "_corrupt" in needed:
        needed |= {"key", "value"}
    return StructType([column for name, column in whole.items() if name in needed])


def check_projection(
    schema: StructType, options: SourceOptions, decoding: ResolvedDecoding | None = None
) -> StructType:
    """`schema` if each of its columns is one of the source's, with its type; any order, any subset.

    Names are compared as they are written, since Spark's own rule about case is not known here.
    """
    if options.transform is not None:
        return schema  # what the function makes is known to the user alone
    if decoding is not None:
        decoding = _with_given_types(decoding, schema)
    whole = row_schema(options, decoding)
    kinds = {field.name: field.dataType for field in whole.fields}
    decoded = set() if decoding is None else {part.field for part in decoding.fields}
    types = {field.name: field.dataType.simpleString() for field in whole.fields}
    columns = ", ".join(f"{name} {kind}" for name, kind in types.items())
    if not schema.fields:
        raise ConnectorError(
            errors.INVALID_SCHEMA, "The schema names no column", f"The columns are: {columns}"
        )
    seen: set[str] = set()
    for field in schema.fields:
        given = field.dataType.simpleString()
        fits = types.get(field.name) == given or (
            field.name in decoded and is_part_of(field.dataType, kinds[field.name])
        )
        if not fits:
            what = f"has the type {given}" if field.name in types else "is none of the source's"
            hint = f"The columns are: {columns}"
            if field.name == "headers" and not options.include_headers:
                hint = "Set the option includeHeaders to true"
            if field.name == "_corrupt" and field.name not in types:
                hint = "Set value.format to json, avro or protobuf, and mode to permissive"
            raise ConnectorError(
                errors.INVALID_SCHEMA, f"The column {field.name} of the schema {what}", hint
            )
        if field.name in seen:
            raise ConnectorError(
                errors.INVALID_SCHEMA, f"The schema names the column {field.name} twice"
            )
        seen.add(field.name)
    return schema


def is_part_of(given: DataType, whole: DataType) -> bool:
    """Whether each field of `given` is one of `whole`, with its type, at every level."""
    if isinstance(given, StructType) and isinstance(whole, StructType):
        types = {field.name: field.dataType for field in whole.fields}
        return bool(given.fields) and all(
            field.name in types and is_part_of(field.dataType, types[field.name])
            for field in given.fields
        )
    if isinstance(given, ArrayType) and isinstance(whole, ArrayType):
        return is_part_of(given.elementType, whole.elementType)
    if isinstance(given, MapType) and isinstance(whole, MapType):
        return given.keyType == whole.keyType and is_part_of(given.valueType, whole.valueType)
    return given.simpleString() == whole.simpleString()


def _with_given_types(decoding: ResolvedDecoding, schema: StructType) -> ResolvedDecoding:
    """JSON without a schema of its own has the types of the query."""
    types = {column.name: column.dataType for column in schema.fields}
    fields = [
        part._replace(given=types.get(part.field, StringType())) if part.schema is None else part
        for part in decoding.fields
    ]
    return decoding._replace(fields=tuple(fields))
