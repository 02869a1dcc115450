"""Rows of an Arrow batch as the bytes of records, without a Python object for each row.

The mirror image of `columns` and `arrow`: the varints between keys and values are made for all rows
at once with numpy, and Arrow joins varint, key, varint, value and headers of every row in C. The
joined array's own buffer then is the records one after another, as a record batch holds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ottla.read.columns import Bytes, Longs

# pyarrow has no type annotations; the aliases name its classes.
Array = Any

# What one record takes beyond its key, value and headers, at most.
RECORD_OVERHEAD_MAX = 30


class Section(NamedTuple):
    """The records of one batch: `payload` is uncompressed; `rows` are their numbers in the task."""

    payload: memoryview
    rows: Longs
    base_timestamp: int
    max_timestamp: int

    @property
    def record_count(self) -> int:
        return len(self.rows)


class Rows(NamedTuple):
    """Rows for one partition: binary arrays of key and value, a list of headers or None."""

    key: Array
    value: Array
    headers: Array
    timestamps: Longs
    numbers: Longs


def lengths(array: Array) -> Longs:
    """The byte length of each element, -1 for null."""
    found = pc.fill_null(pc.binary_length(array), -1)
    return np.asarray(found).astype(np.int64)


def zigzag(values: Longs) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def varint_sizes(encoded: npt.NDArray[np.uint64]) -> Longs:
    sizes = np.ones(len(encoded), np.int64)
    for shift in range(7, 64, 7):
        longer = encoded >> np.uint64(shift) != 0
        if not longer.any():
            break
        sizes += longer
    return sizes


def varints(fields: list[npt.NDArray[np.uint64]], constant_first: bytes = b"") -> Array:
    """One binary array: for each row the varints of `fields` in order.

    `constant_first` is put behind the first field (the attributes byte of a record).
    """
    sizes = [varint_sizes(field) for field in fields]
    widths = np.sum(sizes, axis=0) + len(constant_first)
    offsets = np.zeros(len(widths) + 1, np.int32)
    np.cumsum(widths, out=offsets[1:])
    data: Bytes = np.zeros(int(offsets[-1]), np.uint8)
    position = offsets[:-1].astype(np.int64)
    for number, (field, size) in enumerate(zip(fields, sizes, strict=True)):
        for index in range(int(size.max(initial=0))):
            rows = np.flatnonzero(size > index)
            byte = (field[rows] >> np.uint64(7 * index)).astype(np.uint8) & 127
            data[position[rows] + index] = byte | ((size[rows] > index + 1) * np.uint8(128))
        position += size
        if number == 0 and constant_first:
            data[position[:, None] + np.arange(len(constant_first))] = np.frombuffer(
                constant_first, np.uint8
            )
            position += len(constant_first)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(widths), buffers)


def header_bytes(headers: Array, count: int) -> Array:
    """For each row the count of its headers and the headers; a null list has none."""
    if headers is None:
        return pa.repeat(pa.scalar(b"\0", pa.binary()), count)
    headers = pc.fill_null(headers, pa.scalar([], headers.type))
    entries = headers.flatten()
    key = pc.fill_null(entries.field(0), "").cast(pa.binary())
    # With spark.sql.execution.arrow.useLargeVarTypes they come as large types.
    value = entries.field(1).cast(pa.binary())
    joined = pc.binary_join_element_wise(
        varints([zigzag(lengths(key))]),
        key,
        varints([zigzag(lengths(value))]),
        pc.fill_null(value, b""),
        b"",
    )
    counts = np.asarray(pc.list_value_length(headers)).astype(np.int64)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(offsets), joined)
    return pc.binary_join_element_wise(varints([zigzag(counts)]), pc.binary_join(lists, b""), b"")


def batch_starts(sizes: Longs, bytes_max: int) -> Longs:
    """The first row of each batch: batches of at most `bytes_max` bytes, or of one row."""
    ends = np.cumsum(sizes)
    starts = [0]
    while True:
        taken = int(ends[starts[-1] - 1]) if starts[-1] else 0
        following = int(np.searchsorted(ends, taken + bytes_max, "right"))
        following = max(following, starts[-1] + 1)
        if following >= len(sizes):
            return np.array(starts, np.int64)
        starts.append(following)


def encode_rows(rows: Rows, bytes_max: int) -> Iterator[Section]:
    """The rows in order as sections for batches of at most `bytes_max` bytes of records."""
    count = len(rows.timestamps)
    if count == 0:
        return
    key_length, value_length = lengths(rows.key), lengths(rows.value)
    tail = header_bytes(rows.headers, count)
    content = np.maximum(key_length, 0) + np.maximum(value_length, 0) + lengths(tail)
    starts = batch_starts(content + RECORD_OVERHEAD_MAX, bytes_max)
    counts = np.diff(np.append(starts, count))
    offset_delta = zigzag(np.arange(count) - np.repeat(starts, counts))
    timestamp_delta = zigzag(rows.timestamps - np.repeat(rows.timestamps[starts], counts))
    key_varint, value_varint = zigzag(key_length), zigzag(value_length)
    inside = [timestamp_delta, offset_delta, key_varint]
    body = 1 + content + varint_sizes(value_varint) + sum(varint_sizes(field) for field in inside)
    joined = pc.binary_join_element_wise(
        varints([zigzag(body), *inside], constant_first=b"\0"),
        pc.fill_null(rows.key, b""),
        varints([value_varint]),
        pc.fill_null(rows.value, b""),
        tail,
        b"",
    )
    _, offset_buffer, data = joined.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[joined.offset :]
    whole = memoryview(data)
    for start, size in zip(starts.tolist(), counts.tolist(), strict=True):
        stamps = rows.timestamps[start : start + size]
        yield Section(
            whole[offsets[start] : offsets[start + size]],
            rows.numbers[start : start + size],
            int(stamps[0]),
            int(stamps.max()),
        )
