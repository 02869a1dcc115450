"""Decoding the part of the records of a batch that compaction needs.

The layout of a record is described in `ottla.protocol.records.section`. Only its length, timestamp,
offset and key are decoded, and whether it has a value; the rest is skipped by its length.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.section import check_count
from ottla.protocol.records.varint import read_varint, read_varlong

_NULL_LENGTH = 1  # zigzag of -1


class Outline(NamedTuple):
    """Columns with one element per record; `starts` has one more, the end of the last one."""

    starts: list[int]
    offset_deltas: list[int]
    timestamp_deltas: list[int]
    keys: list[bytes | None]
    tombstones: list[bool]


def outline(data: bytes, start: int, end: int, count: int) -> Outline:  # noqa: PLR0912, PLR0915
    """The `count` records that fill `data[start:end]`. Raises InvalidRecordError."""
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
    position = start
    try:
        for _ in range(count):
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
    return Outline(starts, offset_deltas, timestamp_deltas, keys, tombstones)
