"""Avro schemas as Spark types, with the names and types of Spark's own `from_avro`.

Logical types are taken off before fastavro reads with a schema: what it returns is then what the
bytes hold, and whole columns are converted instead of single values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError

# A schema as JSON: a name, a list (a union) or an object.
AvroSchema: TypeAlias = Any

PRIMITIVE = {
    "null": NullType,
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "bytes": BinaryType,
    "string": StringType,
}
TIMESTAMPS = ("timestamp-millis", "timestamp-micros")
LOCAL_TIMESTAMPS = ("local-timestamp-millis", "local-timestamp-micros")
DECIMAL_PRECISION_MAX = 38  # Spark's
# What two schemas of one field must agree on for its number to mean the same in both.
MEASURES = ("timestamp-", "local-timestamp-", "time-", "decimal", "date", "duration")
# Their content is no schema.
NOT_SCHEMAS = ("default", "doc", "aliases", "symbols", "name", "namespace", "logicalType")
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def unsupported(what: str, hint: str = "") -> ConnectorError:
    return ConnectorError(errors.UNSUPPORTED_SCHEMA, f"The Avro schema {what}", hint)


def parse_text(text: str) -> AvroSchema:
    """The JSON of a schema; the name of a primitive type may stand without quotes."""
    if NAME.fullmatch(text.strip()):
        return text.strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unsupported(f"is no JSON: {error}") from None


def without_logical_types(schema: AvroSchema) -> AvroSchema:
    """The same with the physical types alone."""
    if isinstance(schema, list):
        return [without_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        return {
            name: part if name in NOT_SCHEMAS else without_logical_types(part)
            for name, part in schema.items()
            if name != "logicalType"
        }
    return schema


def parse(text: str, references: Iterable[tuple[str, str]]) -> tuple[AvroSchema, AvroSchema]:
    """What fastavro reads with, and the whole schema with each named type in its place.

    Raises ConnectorError for what is no schema, and for types that contain themselves.
    """
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    plain_names: dict[str, Any] = {}
    full_names: dict[str, Any] = {}
    try:
        for _, reference in references:
            schema = parse_text(reference)
            parse_schema(without_logical_types(schema), named_schemas=plain_names)
            parse_schema(schema, named_schemas=full_names)
        schema = parse_text(text)
        plain = parse_schema(without_logical_types(schema), named_schemas=plain_names)
        whole = parse_schema(schema, named_schemas=full_names, expand=True)
    except UnknownType as error:
        raise unsupported(f"refers to the type {error.name}, which it does not define") from None
    except (SchemaParseException, RecursionError, KeyError, TypeError, ValueError) as error:
        raise unsupported(f"is not valid: {error}") from None
    _check(whole, "")
    return plain, whole


def _check(schema: AvroSchema, path: str) -> None:
    """Raises for what cannot be a column, wherever it is in the schema."""
    kind = type_of(schema)
    if kind not in (*PRIMITIVE, "union", "record", "array", "map", "enum", "fixed"):
        # The only names that are left are those of types within themselves.
        raise unsupported(
            f"has the type {kind} within itself ({path or 'at its top'}), which no column can hold",
            "Read the bytes (value.format raw) and decode them with a function",
        )
    for name, part in parts_of(schema):
        _check(part, f"{path}.{name}".strip("."))
    if kind == "array" and has_no_bytes(schema["items"]):
        # Its length would be bounded by nothing: a few bytes could hold billions of items.
        raise unsupported(f"has an array of items without content ({path or 'at its top'})")


def type_of(schema: AvroSchema) -> str:
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, dict):
        inner = schema.get("type")
        return inner if isinstance(inner, str) else type_of(inner)
    return str(schema)


def parts_of(schema: AvroSchema) -> Iterator[tuple[str, AvroSchema]]:
    """The schemas directly within, with the names for a path."""
    kind = type_of(schema)
    if kind == "union":
        yield from (("", branch) for branch in schema)
    elif kind == "record":
        yield from ((field["name"], field["type"]) for field in schema["fields"])
    elif kind == "array":
        yield "[]", schema["items"]
    elif kind == "map":
        yield "{}", schema["values"]


def has_no_bytes(schema: AvroSchema) -> bool:
    kind = type_of(schema)
    if kind == "record":
        return all(has_no_bytes(field["type"]) for field in schema["fields"])
    return kind == "null" or (kind == "fixed" and schema["size"] == 0)


def branches(union: list[AvroSchema]) -> list[AvroSchema]:
    return [branch for branch in union if type_of(branch) != "null"]


def merged(union: list[AvroSchema]) -> AvroSchema | None:
    """The one type that holds every branch, as in Spark; None if there is none."""
    real = branches(union)
    if not real:
        return "null"
    if len(real) == 1:
        return real[0]
    kinds = {type_of(branch) for branch in real}
    if kinds == {"int", "long"}:
        return "long"
    if kinds == {"float", "double"}:
        return "double"
    return None


def logical_type(schema: AvroSchema) -> str:
    """The logical type if it is one for this physical type; otherwise it is to be ignored."""
    if not isinstance(schema, dict):
        return ""
    name = str(schema.get("logicalType", ""))
    kind = type_of(schema)
    if name == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int):
            return ""
        return name if kind in ("bytes", "fixed") and 0 <= scale <= precision else ""
    needed = {"date": "int", "uuid": "string"} | dict.fromkeys(
        (*TIMESTAMPS, *LOCAL_TIMESTAMPS), "long"
    )
    return name if needed.get(name) == kind else ""


def spark_type(schema: AvroSchema) -> DataType:
    """The type of a column that holds what the schema describes; everything may be null."""
    kind, logical = type_of(schema), logical_type(schema)
    if kind == "union":
        only = merged(schema)
        if only is not None:
            return spark_type(only)
        return StructType(
            [
                StructField(f"member{number}", spark_type(branch))
                for number, branch in enumerate(branches(schema))
            ]
        )
    if kind == "record":
        fields = schema["fields"]
        return StructType([StructField(part["name"], spark_type(part["type"])) for part in fields])
    if kind == "array":
        return ArrayType(spark_type(schema["items"]))
    if kind == "map":
        return MapType(StringType(), spark_type(schema["values"]))
    if kind == "enum":
        return StringType()
    if logical == "decimal":
        if schema["precision"] > DECIMAL_PRECISION_MAX:
            raise unsupported(f"has a decimal of {schema['precision']} digits; Spark has 38")
        return DecimalType(schema["precision"], schema.get("scale", 0))
    if logical == "date":
        return DateType()
    if logical in TIMESTAMPS:
        return TimestampType()
    if logical in LOCAL_TIMESTAMPS:
        return TimestampNTZType()
    return BinaryType() if kind == "fixed" else PRIMITIVE[kind]()


def _measure(schema: AvroSchema) -> tuple[Any, ...] | None:
    if not isinstance(schema, dict):
        return None
    name = str(schema.get("logicalType", ""))
    if not name.startswith(MEASURES):
        return None
    return name, schema.get("precision"), schema.get("scale", 0)


def difference(writer: AvroSchema, reader: AvroSchema, path: str = "") -> str | None:
    """A field whose numbers mean different things in both schemas, which fastavro does not see."""
    if type_of(writer) == "union" or type_of(reader) == "union":
        writers = branches(writer) if type_of(writer) == "union" else [writer]
        readers = branches(reader) if type_of(reader) == "union" else [reader]
        pairs = [(w, r) for w in writers for r in readers if type_of(w) == type_of(r)]
        if len(writers) > 1 or len(readers) > 1:  # named types are the same by their names
            pairs = [(w, r) for w, r in pairs if _name(w) == _name(r)]
        found = (difference(w, r, path) for w, r in pairs)
        return next((text for text in found if text), None)
    ours, theirs = _measure(writer), _measure(reader)
    if ours is not None and theirs is not None and ours != theirs:
        return f"{path or 'the value'} is {_shown(ours)} there and {_shown(theirs)} in the query"
    if type_of(writer) != type_of(reader):
        return None
    if type_of(writer) != "record":
        inner = zip(parts_of(writer), parts_of(reader), strict=False)
        found = (difference(w, r, f"{path}{name}") for (name, w), (_, r) in inner)
        return next((text for text in found if text), None)
    written: Mapping[str, AvroSchema] = dict(parts_of(writer))
    for field in reader["fields"]:
        for name in (field["name"], *field.get("aliases", [])):
            if name in written:
                text = difference(
                    written[name], field["type"], f"{path}.{field['name']}".lstrip(".")
                )
                if text:
                    return text
                break
    return None


def _name(schema: AvroSchema) -> str:
    return str(schema.get("name", "")) if isinstance(schema, dict) else ""


def _shown(measure: tuple[Any, ...]) -> str:
    name, precision, scale = measure
    return name if precision is None else f"{name}({precision}, {scale})"
