"""Decoding the part of the records of a batch that compaction needs.

The layout of a record is described in `ottla.protocol.records.section`. Only its length, timestamp,
offset and key are decoded, and whether it has a value; the rest is skipped by its length.

Records of one length are decoded together, a column at a time: a slice with that length as its step
has the same byte of each record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.protocol.records.check import LEAST_RUN, MAX_SHORT_RUNS
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.section import check_count
from ottla.protocol.records.varint import read_varint, read_varlong

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


def outline(  # noqa: PLR0912, PLR0915
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
    starts = [start]
    offset_deltas: list[int] = []
    timestamp_deltas: list[int] = []
    keys: list[bytes | None] = []
    tombstones: list[bool] = []
    add_start = starts.append
    add_offset = offset_deltas.append
    add_timestamp = timestamp_deltas.append
    add_key = keys.append
    add_tombstone = tombstones.append
    lines = Outline(starts, offset_deltas, timestamp_deltas, keys, tombstones)
    position = start
    done = short = 0
    while count - done >= LEAST_RUN and short < MAX_SHORT_RUNS:
        length = _add_run(lines, data, position, end, count - done, with_keys, only_keys)
        if length < LEAST_RUN:
            short += 1
        if not length:
            break
        done += length
        position = starts[-1]
    try:
        for _ in range(count - done):
            # One- and two-byte varints, the usual ones, are decoded inline.
            number = data[position]
            if number < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                number += (high << 7) - 0x80
                position += 2
            else:
                size, position = read_varint(data, position)
                number = size << 1
            record_end = position + (number >> 1)
            position += 1  # attributes

            number = data[position]
            if number < 0x80:
                add_timestamp((number >> 1) ^ -(number & 1))
                position += 1
            elif (high := data[position + 1]) < 0x80:
                number += (high << 7) - 0x80
                add_timestamp((number >> 1) ^ -(number & 1))
                position += 2
            else:
                number, position = read_varlong(data, position)
                add_timestamp(number)

            number = data[position]
            if number < 0x80:
                add_offset((number >> 1) ^ -(number & 1))
                position += 1
            elif (high := data[position + 1]) < 0x80:
                number += (high << 7) - 0x80
                add_offset((number >> 1) ^ -(number & 1))
                position += 2
            else:
                number, position = read_varint(data, position)
                add_offset(number)

            number = data[position]
            if number < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                number += (high << 7) - 0x80
                position += 2
            else:
                size, position = read_varint(data, position)
                number = size << 1 if size >= 0 else 1
            if number & 1:
                add_key(None)
            else:
                high = position + (number >> 1)
                add_key(data[position:high])
                position = high
            add_tombstone(data[position] == _NULL_LENGTH)
            if not position < record_end <= end:
                raise InvalidRecordError("a record of a batch does not match its length")
            position = record_end
            add_start(position)
    except IndexError:
        raise InvalidRecordError("a record of a batch extends beyond its end") from None
    if position != end:
        raise InvalidRecordError(f"{end - position} bytes follow the last record of a batch")
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
    """Adds the records of one length that begin at `start`; returns how many.

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
