"""Reads the metrics that clients push: OpenTelemetry's MetricsData in protobuf (KIP-714).

Only what is shown of them is read: names, attributes, and numbers of gauges and sums. Everything
is bounded by the caller, who bounds the decompressed bytes; lengths inside are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from ottla.protocol.records.errors import CorruptRecordError

_DOUBLE = Struct("<d")
_SIGNED = Struct("<q")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS = 64

# A point of a metric has a handful; more than this is nonsense.
MAX_ATTRIBUTES = 32

# Fields of one message: a fifth of a second of a worker thread. Kafka's clients push some fifty
# points, each with some twenty fields.
MAX_FIELDS = 250_000

Field = tuple[int, int | memoryview]


class Point(NamedTuple):
    """One number. `is_delta`: it is to be added to what came before."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    value: float
    is_sum: bool
    is_delta: bool


def read_points(data: bytes) -> Iterator[Point]:
    """The points of a MetricsData message; CorruptRecordError when it is none, or has more than
    MAX_FIELDS fields."""
    return _Reader().points(memoryview(data))


class _Reader:
    """Reads one message; counts its fields, as two bytes make one."""

    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS

    def points(self, data: memoryview) -> Iterator[Point]:
        for resource in self._sub_messages(data, 1):
            for scope in self._sub_messages(resource, 2):
                for metric in self._sub_messages(scope, 2):
                    yield from self._metric_points(metric)

    def _metric_points(self, metric: memoryview) -> Iterator[Point]:
        fields = dict(self._fields(metric))
        name = _text(fields.get(1, b""))
        for number, is_sum in ((5, False), (7, True)):
            body = fields.get(number)
            if not isinstance(body, memoryview):
                continue
            # AggregationTemporality: 1 delta, 2 cumulative.
            is_delta = is_sum and dict(self._fields(body)).get(2) == 1
            for point in self._sub_messages(body, 1):
                value, attributes = self._point(point)
                yield Point(name, attributes, value, is_sum, is_delta)

    def _point(self, point: memoryview) -> tuple[float, tuple[tuple[str, str], ...]]:
        value = 0.0
        attributes: list[tuple[str, str]] = []
        for number, field in self._fields(point):
            if not isinstance(field, memoryview):
                continue
            if number == 4 and len(field) == _DOUBLE.size:
                (value,) = _DOUBLE.unpack(field)
            elif number == 6 and len(field) == _SIGNED.size:
                value = float(_SIGNED.unpack(field)[0])
            elif number == 7 and len(attributes) < MAX_ATTRIBUTES:
                pair = dict(self._fields(field))
                attributes.append((_text(pair.get(1, b"")), self._any_value(pair.get(2))))
        return value, tuple(sorted(attributes))

    def _any_value(self, field: int | memoryview | None) -> str:
        """A string, boolean, whole or floating number as text; other kinds as ""."""
        if not isinstance(field, memoryview):
            return ""
        for number, value in self._fields(field):
            if number == 1:
                return _text(value)
            if number == 2:
                return "true" if value else "false"
            if number == 3 and isinstance(value, int):
                return str(value - (1 << 64) if value >> 63 else value)
            if number == 4 and isinstance(value, memoryview) and len(value) == _DOUBLE.size:
                return repr(_DOUBLE.unpack(value)[0])
        return ""

    def _sub_messages(self, data: memoryview, number: int) -> Iterator[memoryview]:
        for found, field in self._fields(data):
            if found == number and isinstance(field, memoryview):
                yield field

    def _fields(self, data: memoryview) -> Iterator[Field]:
        """(field number, varint or bytes) of a message."""
        position, end = 0, len(data)
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise CorruptRecordError(f"metrics have more than {MAX_FIELDS} fields")
            tag, position = _varint(data, position)
            kind = tag & 7
            if kind == _VARINT:
                value, position = _varint(data, position)
                yield tag >> 3, value
                continue
            if kind == _BYTES:
                length, position = _varint(data, position)
            elif kind in (_FIXED64, _FIXED32):
                length = 8 if kind == _FIXED64 else 4
            else:
                raise CorruptRecordError(f"metrics hold a field of the unknown kind {kind}")
            if length > end - position:
                raise CorruptRecordError("metrics end in the middle of a field")
            yield tag >> 3, data[position : position + length]
            position += length


def _text(field: int | bytes | memoryview) -> str:
    return "" if isinstance(field, int) else bytes(field).decode("utf-8", "replace")


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _VARINT_BITS:
        if position >= len(data):
            raise CorruptRecordError("metrics end in the middle of a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << _VARINT_BITS) - 1), position
        shift += 7
    raise CorruptRecordError("metrics hold a number that is too long")
