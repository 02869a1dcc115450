"""Validating the format of the records of a batch, and collecting what settings depend on.

Keeps no record, so that half a million of them need little memory. The layout is described in
`ottla.protocol.records.section`; the same records are invalid in both.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.section import check_count, read_headers
from ottla.protocol.records.varint import read_varint, read_varlong


class Walk(NamedTuple):
    """What `walk_records` collects."""

    timestamp_deltas: list[int]
    keyless: list[int]  # the records, by index, whose key is null
    is_in_order: bool  # offset deltas count up from 0


def walk_records(data: bytes, count: int) -> Walk:  # noqa: PLR0912, PLR0915
    """The `count` records that fill `data`. Raises InvalidRecordError, which names the record."""
    check_count(count, 0, len(data))
    timestamp_deltas: list[int] = []
    add_timestamp = timestamp_deltas.append
    keyless: list[int] = []
    is_in_order = True
    position = 0
    index = 0
    try:
        for index in range(count):
            # One- and two-byte varints, the usual ones, are decoded inline.
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
                raise InvalidRecordError("its length is negative")
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
                position += 1
            elif (high := data[position + 1]) < 0x80:
                number += (high << 7) - 0x80
                position += 2
            else:
                size, position = read_varint(data, position)
                number = size << 1 if size >= 0 else 1
            if number != index << 1:
                is_in_order = False

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
                keyless.append(index)
            else:
                position += number >> 1

            number = data[position]
            if number < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                number += (high << 7) - 0x80
                position += 2
            else:
                size, position = read_varint(data, position)
                number = size << 1 if size >= 0 else 1
            if not number & 1:
                position += number >> 1

            if data[position]:
                _, position = read_headers(data, position, record_end)
            else:
                position += 1
            if position != record_end:
                raise InvalidRecordError("its fields do not match its length")
    except IndexError:
        raise InvalidRecordError(f"record {index} of a batch extends beyond its end") from None
    except InvalidRecordError as error:
        raise InvalidRecordError(f"record {index} of a batch is invalid: {error}") from None
    if position != len(data):
        raise InvalidRecordError(f"{len(data) - position} bytes follow the last record of a batch")
    return Walk(timestamp_deltas, keyless, is_in_order)
