"""Decoding the part of the records of a batch that compaction needs.

The layout of a record is described in `ottla.protocol.records.record_loop`. Only its length,
timestamp, offset and key are decoded, and whether it has a value; the rest is skipped by its
length.

Records of one length are decoded together, a column at a time: a slice with that length as its step
has the same byte of each record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.protocol.records.check import LEAST_RUN, MAX_SHORT_RUNS
from ottla.protocol.records.record_loop import (
    READ,
    append_bytes,
    append_signed,
    check_count,
    compile_record_loop,
)

_NULL_LENGTH = 1  # zigzag of -1
_HIGH = bytes(range(0x80, 0x100))  # bytes that others of a varint follow
_LOW = bytes(range(0x80))
_NONE_OF = [False]
_ZIGZAG = [(number >> 1) ^ -(number & 1) for number in range(1 << 14)]


class Outline(NamedTuple):
    """Columns with one element per record; `starts` has one more, the end of the last one."""

    starts: list[int]
    offset_deltas: list[int]
    timestamp_deltas: list[int]
    keys: list[bytes | None]
    tombstones: list[bool]


_outline_rest = compile_record_loop(
    parameters=", starts, offset_deltas, timestamp_deltas, keys, tombstones",
    timestamp=append_signed("timestamp_deltas.append", "read_varlong"),
    offset=append_signed("offset_deltas.append", "read_varint"),
    key=READ,
    after_key=append_bytes("keys"),
    value=None,
    rest="""\
tombstones.append(data[position] == NULL_LENGTH)
record_end = doubled_end >> 1
if not position < record_end <= end:
    raise InvalidRecordError("its fields do not add up to its length")
position = record_end
starts.append(position)
""",
    result="None",
    NULL_LENGTH=_NULL_LENGTH,
)


def outline(
    data: bytes,
    start: int,
    end: int,
    count: int,
    *,
    with_keys: bool = True,
    only_keys: bool = False,
) -> Outline:
    """The `count` records that fill `data[start:end]`. Raises InvalidRecordError.

    Without `with_keys` the list of keys may lack them. With `only_keys` there are keys and offset
    deltas; the other columns may lack records.
    """
    check_count(count, start, end)
    lines = Outline([start], [], [], [], [])
    done = short = 0
    while count - done >= LEAST_RUN and short < MAX_SHORT_RUNS:
        position = lines.starts[-1]
        length = _add_run(lines, data, position, end, count - done, with_keys, only_keys)
        if length < LEAST_RUN:
            short += 1
        if not length:
            break
        done += length
    _outline_rest(data, lines.starts[-1], end, done, count, *lines)
    return lines


def _add_run(
    lines: Outline,
    data: bytes,
    start: int,
    end: int,
    count: int,
    with_keys: bool,
    only_keys: bool,
) -> int:
    """Add the records of one length that begin at `start`; returns how many.

    0 for records without a common length, and for long varints.
    """
    try:
        length, attributes = _short_varint(data, start)
        timestamp = attributes + 1
        _, offset = _short_varint(data, timestamp)
        _, key_length = _short_varint(data, offset)
        number, key = _short_varint(data, key_length)
    except IndexError:
        return 0
    value = key if number & 1 else key + (number >> 1)
    record_end = attributes + (length >> 1)
    if length & 1 or min(offset, key_length, key) < 0 or not value < record_end <= end:
        return 0
    size = record_end - start
    found = min(count, (end - start) // size)
    # Those behind a record with other lengths are not of the run.
    for place in (*range(start, attributes), *range(key_length, key)):
        column = data[place : place + (found - 1) * size + 1 : size]
        found -= len(column.lstrip(data[place : place + 1]))
    for first, behind in ((timestamp, offset), (offset, key_length)):
        for place in range(first, behind):
            column = data[place : place + (found - 1) * size + 1 : size]
            found -= len(column.lstrip(_HIGH if place < behind - 1 else _LOW))
    behind = start + found * size
    lines.offset_deltas.extend(_column(data, offset, key_length, behind, size))
    if number & 1:
        lines.keys.extend([None] * found)
    elif with_keys:
        key_bytes = value - key
        lines.keys.extend([data[at : at + key_bytes] for at in range(key, behind, size)])
    if only_keys:
        lines.starts.append(behind)
        return found
    lines.timestamp_deltas.extend(_column(data, timestamp, offset, behind, size))
    null_lengths = data[value:behind:size]
    if _NULL_LENGTH in null_lengths:
        lines.tombstones.extend([byte == _NULL_LENGTH for byte in null_lengths])
    else:
        lines.tombstones.extend(_NONE_OF * found)
    lines.starts.extend(range(start + size, behind + 1, size))
    return found


def _short_varint(data: bytes, position: int) -> tuple[int, int]:
    """(value in its encoding, position after it) of a varint of one or two bytes; (1, -1) for a
    longer one."""
    number = data[position]
    if number < 0x80:
        return number, position + 1
    high = data[position + 1]
    return (number + (high << 7) - 0x80, position + 2) if high < 0x80 else (1, -1)


def _column(data: bytes, first: int, behind: int, end: int, size: int) -> Iterable[int]:
    """The varint at `first` of each record of a run that ends at `end`."""
    low = data[first:end:size]
    if behind - first == 1:
        return map(_ZIGZAG.__getitem__, low)
    high = data[first + 1 : end : size]
    return [_ZIGZAG[a & 0x7F | b << 7] for a, b in zip(low, high, strict=True)]
