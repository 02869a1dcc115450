"""Avro data as Arrow columns: fastavro reads the records, whole columns are converted."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from operator import itemgetter
from typing import Any

import pyarrow as pa

from pyspark_ottla import errors
from pyspark_ottla.decode import avro_schema, builders
from pyspark_ottla.decode.avro_schema import AvroSchema
from pyspark_ottla.decode.bad_record import BadRecordError, BadValueError
from pyspark_ottla.decode.builders import Array, ArrowType, Build, Convert, Values
from pyspark_ottla.decode.registry import Schema
from pyspark_ottla.errors import ConnectorError

_PYTHON_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("long", "int"),
    float: ("double", "float"),
    bytes: ("bytes",),
    str: ("string",),
    list: ("array",),
    dict: ("map",),
}


class AvroReader:
    """Reads what one schema has written as what another one describes."""

    def __init__(self, writer: Schema, reader: Schema) -> None:
        from fastavro import schemaless_reader

        self._read: Callable[..., Any] = schemaless_reader
        self._writer, written = avro_schema.parse(writer.text, writer.references)
        self._reader, wanted = avro_schema.parse(reader.text, reader.references)
        if writer[:3] == reader[:3]:
            self._reader = None  # nothing to resolve
        self._has_branches = _has_complex_union(wanted)
        text = avro_schema.difference(written, wanted)
        if text is not None:
            raise ConnectorError(errors.UNSUPPORTED_SCHEMA, f"The schemas differ: {text}")

    def parse(self, data: bytes, start: int) -> Any:
        """The value that begins at `start` and must end with the data."""
        stream = BytesIO(data)
        stream.seek(start)
        try:
            value = self._read(
                stream, self._writer, self._reader, return_named_type=self._has_branches
            )
        except Exception as error:  # fastavro raises whatever malformed bytes lead to
            raise BadRecordError(f"is no Avro of its schema: {_words(error)}") from None
        if stream.tell() != len(data):
            raise BadRecordError(
                f"has {len(data) - stream.tell()} bytes after the end of its Avro value"
            )
        return value


def _words(error: Exception) -> str:
    ended = "it ends too early" if isinstance(error, EOFError) else type(error).__name__
    return (str(error) or ended)[:300]


def _has_complex_union(schema: AvroSchema) -> bool:
    if avro_schema.type_of(schema) == "union" and avro_schema.merged(schema) is None:
        return True
    return any(_has_complex_union(part) for _, part in avro_schema.parts_of(schema))


def _unnamed(value: Any) -> Any:
    """Without the name of the branch that a union has chosen."""
    return value[1] if type(value) is tuple else value


def avro_builder(schema: AvroSchema, kind: ArrowType) -> Build:
    """A builder of columns of that Arrow type, which may have fewer fields than the schema."""
    return _unwrapped(schema, kind)


def _builder(schema: AvroSchema, kind: ArrowType) -> Build:
    name, logical = avro_schema.type_of(schema), avro_schema.logical_type(schema)
    if name == "union":
        only = avro_schema.merged(schema)
        return _union(schema, kind) if only is None else _unwrapped(only, kind)
    if name == "record":
        return _record(schema, kind)
    if name == "array":
        return builders.lists(kind, _unwrapped(schema["items"], kind.value_type))
    if name == "map":
        keys = builders.texts(kind.key_type)
        return builders.maps(kind, keys, _unwrapped(schema["values"], kind.item_type))
    if logical == "decimal":
        return builders.decimals(kind, lambda data: int.from_bytes(data, "big", signed=True))
    if logical.endswith("-millis"):
        return builders.integers(kind, factor=1000)
    return _primitive(name, kind)


def _primitive(name: str, kind: ArrowType) -> Build:
    if name == "null":
        return lambda values: pa.nulls(len(values), kind)
    if name == "boolean":
        return builders.booleans(kind)
    if name in ("int", "long"):
        return builders.integers(kind)
    if name in ("float", "double"):
        return builders.floats(kind)
    if name in ("bytes", "fixed"):
        return builders.binaries(kind)
    return builders.texts(kind)  # string, enum


def _unwrapped(schema: AvroSchema, kind: ArrowType) -> Build:
    """For values that may be (name of the branch, value)."""
    build = _builder(schema, kind)

    def build_unnamed(values: Values) -> Array:
        if tuple in set(map(type, values)):
            values = [_unnamed(value) for value in values]
        return build(values)

    # Named types alone have names.
    named = avro_schema.type_of(schema) in ("record", "enum", "fixed")
    return build_unnamed if named else build


def _record(schema: AvroSchema, kind: ArrowType) -> Build:
    types = {field["name"]: field["type"] for field in schema["fields"]}
    parts = [(itemgetter(field.name), _unwrapped(types[field.name], field.type)) for field in kind]
    return builders.structs(kind, parts)


def _union(schema: list[AvroSchema], kind: ArrowType) -> Build:
    """A struct with a member for each branch, one of which is set."""
    real = avro_schema.branches(schema)
    by_name = {
        str(branch["name"]): number
        for number, branch in enumerate(real)
        if avro_schema.type_of(branch) in ("record", "enum", "fixed")
    }
    by_type: dict[str, int] = {}
    for number, branch in enumerate(real):
        by_type.setdefault(avro_schema.type_of(branch), number)

    def member(value: Any) -> tuple[int, Any]:
        if type(value) is tuple:
            return by_name[value[0]], value[1]
        for name in _PYTHON_TYPES[type(value)]:
            if name in by_type:
                return by_type[name], value
        raise BadValueError("the union has no branch for the value")

    def getter(number: int) -> Convert:
        return lambda chosen: chosen[1] if chosen[0] == number else None

    numbers = {f"member{number}": number for number in range(len(real))}
    parts = [
        (getter(numbers[field.name]), _builder(real[numbers[field.name]], field.type))
        for field in kind
    ]
    build = builders.structs(kind, parts)
    return lambda values: build(builders.converted(member, values))
