"""Arrow record batches from columns of positions. What can be copied in C is copied in C.

Spark checks the schema of the first batch only, and a wrong later one dies far away, so every batch
here is built against the one schema object that Spark's own conversion made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import describe
from pyspark_ottla.read.arrays import gathered, lists, numbers, repeated_text
from pyspark_ottla.read.columns import Columns, Longs, read_varints

# pyarrow has no type annotations; the aliases name its classes.
Array = Any
Schema = Any
RecordBatch = Any

# After that many rounds of reading every record's next header at once, the few records that have
# more are read on their own.
HEADER_ROUNDS = 64
# The largest timestamp in ms whose microseconds still fit Arrow's 64 bits.
TIMESTAMP_MS_MAX = ((1 << 63) - 1) // 1000
CONFLUENT_PREFIX_BYTES = 5


def segments(data: Any, start: Longs, length: Longs, kind: Any) -> Array:
    """The byte strings `data[start:start + length]` as an Arrow array; null where length is -1.

    They must not overlap and must come in ascending order. The trick: an Arrow binary array is a
    buffer and the positions between its elements, so the data as it lies, with every gap as an
    element of its own, is an array without a copy; `take` then gathers every other one, in C.
    """
    count = len(start)
    if not count:
        return pa.Array.from_buffers(kind, 0, [None, pa.py_buffer(bytes(4)), pa.py_buffer(b"")])
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = start
    bounds[1::2] = start + np.maximum(length, 0)
    wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
    indices = numbers(wanted, pa.int32(), null=length < 0)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return gathered(pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers), indices, kind)


class BatchBuilder:
    """Builds record batches of one partition for one schema."""

    def __init__(
        self,
        schema: Schema,
        partition: TopicPartition,
        *,
        value_format: str,
        null_on_error: bool,
        rows_max: int,
        bytes_max: int,
    ) -> None:
        self._schema = schema
        self._partition = partition
        self._strips = value_format == "confluent-strip"
        self._null_on_error = null_on_error
        self._rows_max = rows_max
        self._bytes_max = bytes_max

    def build(self, columns: Columns) -> Iterator[RecordBatch]:
        """One or more batches, each closed at the row or byte bound, whichever comes first."""
        total = len(columns.offsets)
        ends = np.cumsum(columns.record_end - columns.key_start)
        begin = 0
        while begin < total:
            taken = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, taken + self._bytes_max, "right"))
            end = min(max(end, begin + 1), begin + self._rows_max, total)
            yield self._build_one(columns.slice(begin, end))
            begin = end

    def _build_one(self, columns: Columns) -> RecordBatch:
        schema_ids: Array = None
        count = len(columns.offsets)
        if self._strips:
            columns, schema_ids = self._strip(columns)
        makers: dict[str, Callable[[Any], Array]] = {
            "key": lambda kind: self._content(columns, "key", kind),
            "value": lambda kind: self._content(columns, "value", kind),
            "topic": lambda kind: repeated_text(self._partition.topic, count),
            "partition": lambda kind: numbers(
                np.full(count, self._partition.partition, np.int32), kind
            ),
            "offset": lambda kind: numbers(columns.offsets, kind),
            "timestamp": lambda kind: self._timestamps(columns, kind),
            "timestampType": lambda kind: numbers(columns.timestamp_types.astype(np.int32), kind),
            "headers": lambda kind: headers_array(columns, kind),
            "value_schema_id": lambda kind: schema_ids,
        }
        arrays = [makers[field.name](field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _content(self, columns: Columns, name: str, kind: Any) -> Array:
        start, length = columns.key_start, columns.key_length
        if name == "value":
            start, length = columns.value_start, columns.value_length
        try:
            return segments(columns.data, start, length, kind)
        except pa.ArrowInvalid:
            pass
        texts: list[str | None] = []
        for row, content in enumerate(segments(columns.data, start, length, pa.binary())):
            try:
                texts.append(None if content.as_py() is None else content.as_py().decode("utf-8"))
            except UnicodeDecodeError:
                if not self._null_on_error:
                    raise self._undecodable(
                        columns, row, f"has a {name} that is no UTF-8 text", f"{name}Format"
                    ) from None
                texts.append(None)
        return pa.array(texts, kind)

    def _undecodable(self, columns: Columns, row: int, what: str, option: str) -> ConnectorError:
        return ConnectorError(
            errors.DECODE_FAILED,
            f"The record at offset {columns.offsets[row]} of {describe(self._partition)} {what}",
            f"Set onDecodeError to null to get null instead, or {option} to binary",
        )

    def _timestamps(self, columns: Columns, kind: Any) -> Array:
        timestamps = columns.timestamps
        # Not np.abs: the lowest number of 64 bits has no positive counterpart.
        odd = (timestamps > TIMESTAMP_MS_MAX) | (timestamps < -TIMESTAMP_MS_MAX)
        if odd.any() and not self._null_on_error:
            row = int(np.flatnonzero(odd)[0])
            raise ConnectorError(
                errors.DECODE_FAILED,
                f"The record at offset {columns.offsets[row]} of {describe(self._partition)} has "
                f"the timestamp {timestamps[row]}, which no Spark timestamp can hold",
                "Set onDecodeError to null to get null instead",
            )
        return numbers(timestamps * 1000, kind, null=odd)

    def _strip(self, columns: Columns) -> tuple[Columns, Array]:
        """Takes the schema registry's five bytes (zero, then an id) off the values."""
        raw = np.frombuffer(columns.data, np.uint8)
        start, length = columns.value_start, columns.value_length
        present = length >= 0
        framed = length >= CONFLUENT_PREFIX_BYTES
        framed[framed] = raw[start[framed]] == 0
        bare = np.flatnonzero(present & ~framed)
        if bare.size and not self._null_on_error:
            raise self._undecodable(
                columns, int(bare[0]), "has a value without a schema id in front", "valueFormat"
            )
        ids = np.zeros(len(start), np.int32)
        at = start[framed]
        for byte in range(1, CONFLUENT_PREFIX_BYTES):
            ids[framed] = (ids[framed] << 8) | raw[at + byte]
        stripped = np.where(framed, length - CONFLUENT_PREFIX_BYTES, -1)
        moved = np.where(framed, start + CONFLUENT_PREFIX_BYTES, start)
        columns = columns._replace(value_start=moved, value_length=stripped)
        return columns, numbers(ids, pa.int32(), null=~framed)


def headers_array(columns: Columns, kind: Any) -> Array:
    """The headers of every record as a list; null for a record without any, as the JVM has it."""
    try:
        return _headers_array(columns, kind)
    except (IndexError, InvalidRecordError):
        raise ConnectorError(errors.CORRUPT_DATA, "A record's headers are damaged") from None


def _headers_array(columns: Columns, kind: Any) -> Array:
    """Read in rounds: the first header of every record that has one, then every second one, ..."""
    raw = np.frombuffer(columns.data, np.uint8)
    counts, position = read_varints(raw, columns.headers_start)
    # Each header takes two bytes at least; this is checked before anything is allocated.
    room = columns.record_end - position
    if (counts < 0).any() or (counts * 2 > room).any():
        raise InvalidRecordError("a record has an impossible number of headers")
    list_offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    total = int(list_offsets[-1])
    table = np.zeros((4, total), np.int64)  # key start, key length, value start, value length
    pending = np.flatnonzero(counts)
    for done in range(HEADER_ROUNDS):
        if not pending.size:
            break
        place = list_offsets[pending] + done
        position[pending] = _read_header(raw, position[pending], table, place)
        pending = pending[counts[pending] > done + 1]
    for record in pending:
        at = int(position[record])
        first, last = list_offsets[record] + HEADER_ROUNDS, list_offsets[record + 1]
        for number in range(int(first), int(last)):
            at = int(_read_header(raw, np.array([at]), table, np.array([number]))[0])
        position[record] = at
    if (position != columns.record_end).any() or (table[1] < 0).any():
        raise InvalidRecordError("the headers of a record do not fill it exactly")
    fields = kind.value_type
    keys = _header_keys(columns.data, table[0], table[1], fields.field(0).type)
    values = segments(columns.data, table[2], table[3], fields.field(1).type)
    entries = pa.StructArray.from_arrays([keys, values], fields=[fields.field(0), fields.field(1)])
    return lists(list_offsets.astype(np.int32), entries, kind, null=counts == 0)


def _read_header(
    raw: npt.NDArray[np.uint8], position: Longs, table: npt.NDArray[np.int64], place: Longs
) -> Longs:
    for row in (0, 2):
        length, position = read_varints(raw, position)
        if (length > raw.size).any():
            raise InvalidRecordError("a header is longer than its record")
        table[row, place] = position
        table[row + 1, place] = np.maximum(length, -1)
        position = position + np.maximum(length, 0)
    return position


def _header_keys(data: Any, start: Longs, length: Longs, kind: Any) -> Array:
    try:
        return segments(data, start, length, kind)
    except pa.ArrowInvalid:
        # Not UTF-8: Java's clients put the replacement character in, and so do we.
        raw = segments(data, start, length, pa.binary()).to_pylist()
        return pa.array([key.decode("utf-8", "replace") for key in raw], kind)
