"""Protobuf messages as Arrow columns."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any

from pyspark_ottla.decode import builders
from pyspark_ottla.decode.bad_record import BadRecordError, BadValueError
from pyspark_ottla.decode.builders import ArrowType, Build, Convert
from pyspark_ottla.decode.protobuf_schema import (
    AS_JSON,
    TIMESTAMP,
    WRAPPERS,
    Descriptor,
    FieldDescriptor,
    is_map,
    is_repeated,
)

# Of the indexes that name a message within a file; no file nests deeper.
INDEXES_MAX = 100
MICROS_PER_SECOND = 1_000_000


class ProtobufReader:
    """Parses the messages of one type."""

    def __init__(self, message: Descriptor) -> None:
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        self._class: Any = GetMessageClass(message)
        self._error: type[Exception] = DecodeError
        self._name = message.full_name

    def parse(self, data: bytes, start: int) -> Any:
        message = self._class()
        try:
            message.ParseFromString(data[start:] if start else data)
        except (self._error, ValueError, RecursionError) as error:
            raise BadRecordError(f"is no Protobuf message {self._name}: {error}") from None
        return message


def read_indexes(data: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """Confluent's message indexes, and where the message begins; one zero byte stands for (0,).

    Raises BadRecordError.
    """
    count, position = _read_varint(data, start)
    if count == 0:
        return (0,), position
    if not 0 < count <= INDEXES_MAX:
        raise BadRecordError("names its message with an impossible number of indexes")
    indexes: list[int] = []
    for _ in range(count):
        index, position = _read_varint(data, position)
        indexes.append(index)
    return tuple(indexes), position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value >> 1 ^ -(value & 1), position
    raise BadRecordError("ends within the indexes that name its message")


def protobuf_builder(message: Descriptor, kind: ArrowType) -> Build:
    """A builder of columns of that Arrow type, which may have fewer fields than the message."""
    name = message.full_name
    if name == TIMESTAMP:
        return _converted(_micros, builders.integers(kind))
    if name in AS_JSON:
        return builders.texts(kind, _as_json)
    if name in WRAPPERS:
        field = message.fields[0]
        return _converted(attrgetter("value"), _scalar(field, kind))
    fields = {field.name: field for field in message.fields}
    parts = [(_getter(fields[part.name]), _field(fields[part.name], part.type)) for part in kind]
    return builders.structs(kind, parts)


def _converted(convert: Convert, build: Build) -> Build:
    return lambda values: build(builders.converted(convert, values))


def _getter(field: FieldDescriptor) -> Convert:
    """A field without a value is null where Protobuf can tell; others have their default."""
    name = field.name
    if not field.has_presence:
        return attrgetter(name)
    return lambda message: getattr(message, name) if message.HasField(name) else None


def _field(field: FieldDescriptor, kind: ArrowType) -> Build:
    if is_map(field):
        key, value = field.message_type.fields
        return builders.maps(kind, _field(key, kind.key_type), _field(value, kind.item_type))
    single = kind.value_type if is_repeated(field) else kind
    if field.message_type is not None:
        build = protobuf_builder(field.message_type, single)
    else:
        build = _scalar(field, single)
    return builders.lists(kind, build) if is_repeated(field) else build


def _scalar(field: FieldDescriptor, kind: ArrowType) -> Build:
    if field.cpp_type == field.CPPTYPE_ENUM:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return builders.texts(kind, lambda number: names.get(number, str(number)))
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return builders.floats(kind)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return builders.booleans(kind)
    if field.cpp_type == field.CPPTYPE_UINT64:
        return builders.decimals(kind, int)
    if field.type == field.TYPE_BYTES:
        return builders.binaries(kind)
    if field.cpp_type == field.CPPTYPE_STRING:
        return builders.texts(kind)
    return builders.integers(kind)


def _micros(timestamp: Any) -> int:
    if not 0 <= timestamp.nanos < 1_000_000_000:
        raise BadValueError("a Timestamp has nanoseconds outside of a second")
    return int(timestamp.seconds) * MICROS_PER_SECOND + int(timestamp.nanos) // 1000


def _as_json(message: Any) -> str:
    from google.protobuf.json_format import MessageToDict, ParseError, SerializeToJsonError

    try:
        return json.dumps(MessageToDict(message), separators=(",", ":"))
    except (SerializeToJsonError, ParseError) as error:
        raise BadValueError(str(error)) from None
