"""Recognizes the records of a batch by the layout of an earlier batch.

Most producers send batches with the same number of records of the same lengths again and again. All
bytes of such a batch that `check_records` reads are known then, but for those of the timestamps,
and one comparison is enough for the same byte of all records: a slice with the length of a record
as its step.
"""

from __future__ import annotations

from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.varint import read_varint

# A layout holds about ten bytes for each record: all of them together half a megabyte at the most.
MAX_RECORDS = 1024
MAX_LAYOUTS = 32
# A slice of a memoryview compares byte by byte, which takes longer than copying such short records.
_COPIED_RECORD_BYTES = 512
# The first record whose offset delta takes two bytes; that of the last one takes no third.
_TWO_BYTES = 64

_Columns = list[tuple[slice, bytes]]


class _Layout:
    """What the records of one length of a batch have at which places."""

    __slots__ = ("columns", "is_dense", "timestamps")

    def __init__(self, columns: _Columns, timestamps: list[slice], record_bytes: int) -> None:
        self.columns = columns
        self.timestamps = timestamps  # each one byte
        self.is_dense = record_bytes < _COPIED_RECORD_BYTES


# By the length of the records of a batch and their number; None: such a batch was seen once, or
# its layout has changed. Worker threads use it, too: each access is atomic.
_layouts: dict[tuple[int, int], _Layout | None] = {}


def has_known_layout(content: bytes | memoryview, count: int) -> bool:
    """Whether these are `count` valid records, by comparison with an earlier batch.

    True only for what `ottla.protocol.records.check.check_records` takes, too.
    """
    layout = _layouts.get((len(content), count))
    if layout is None:
        return False
    if layout.is_dense:
        content = bytes(content)  # no copy, if it is bytes
    for column, expected in layout.columns:
        if content[column] != expected:
            return False
    # Not `all`: a generator takes longer.
    for column in layout.timestamps:  # noqa: SIM110
        if not bytes(content[column]).isascii():
            return False
    return True


def learn_layout(content: bytes, count: int) -> None:
    """Remember the layout of `count` valid records that fill `content`, if such a batch came
    before: one that does not come again costs nothing."""
    if count > MAX_RECORDS:
        return
    key = (len(content), count)
    known = _layouts.get(key, False)
    if known is None:
        _layouts[key] = _layout(content, count)
        return
    if known is False and len(_layouts) >= MAX_LAYOUTS:
        _layouts.clear()
    _layouts[key] = None


def _layout(content: bytes, count: int) -> _Layout | None:
    """None for records of different lengths, with headers, or with longer timestamps."""
    columns: _Columns = []
    timestamps: list[slice] = []
    position = 0
    for first, stop in ((0, min(count, _TWO_BYTES)), (_TWO_BYTES, count)):
        if first < stop:
            start = position
            position = _add_run(content, start, first, stop, columns, timestamps)
            if not position:
                return None
    return _Layout(columns, timestamps, len(content) // count) if position == len(content) else None


def _add_run(
    content: bytes,
    start: int,
    first: int,
    stop: int,
    columns: _Columns,
    timestamps: list[slice],
) -> int:
    """Adds the columns of the records from `first` to `stop`, which begin at `start`. Returns where
    they end, or 0 if they have no common layout."""
    try:
        length, attributes = read_varint(content, start)
        timestamp = attributes + 1
        offset = timestamp + 1
        key_length = offset + (1 if first < _TWO_BYTES else 2)
        size, key = read_varint(content, key_length)
        value_length = key + max(size, 0)
        size, value = read_varint(content, value_length)
        last = value + max(size, 0)
        if content[timestamp] > 0x7F or content[last] or last + 1 != attributes + length:
            return 0
    except (IndexError, InvalidRecordError):
        return 0
    record_bytes = last + 1 - start
    end = start + (stop - first) * record_bytes
    if end > len(content):
        return 0
    fixed = (
        *range(start, attributes), *range(key_length, key), *range(value_length, value), last
    )  # fmt: skip
    for place in fixed:
        column = slice(place, end, record_bytes)
        expected = content[place : place + 1] * (stop - first)
        if content[column] != expected:
            return 0
        columns.append((column, expected))
    for place in range(offset, key_length):
        column = slice(place, end, record_bytes)
        columns.append((column, content[column]))
    timestamps.append(slice(timestamp, end, record_bytes))
    return end
