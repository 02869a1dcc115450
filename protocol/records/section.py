"""The records of one batch of magic 2, decompressed, into columns: the hot loop of every reader.

A record is, all numbers as zigzag varints::

    length | attributes int8 | timestamp_delta | offset_delta | key_length, key | value_length,
    value | header_count, then for each header key_length, key, value_length, value

Lengths below zero mean null. The loop below reads one- and two-byte varints inline. It checks
bounds only once for each record: positions only ever move forward, so if a record ends exactly
where its length said, everything inside it was inside it; and slices cannot reach beyond ``data``.
"""

from typing import NamedTuple

from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.record import Headers
from ottla.protocol.records.varint import read_varint, read_varlong

# One-byte zigzag: index is the byte.
_SIGNED = tuple((byte >> 1) ^ -(byte & 1) for byte in range(128))

MIN_RECORD_BYTES = 7  # each of its seven numbers takes one byte


class Section(NamedTuple):
    """Columns of equal length, one element for each record.

    ``headers`` is None when no record of the batch has any.
    """

    offset_deltas: list[int]
    timestamp_deltas: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers] | None


def check_count(count: int, start: int, end: int) -> None:
    """Raise InvalidRecordError when so many records cannot be in so many bytes."""
    if count < 0 or count * MIN_RECORD_BYTES > end - start:
        raise InvalidRecordError(
            f"a batch claims to hold {count} records, which cannot be in {end - start} bytes"
        )


def decode_section(data: bytes, start: int, end: int, count: int) -> Section:  # noqa: PLR0912, PLR0915
    """The ``count`` records that fill ``data[start:end]`` exactly.

    Raises InvalidRecordError for anything that does not fit.
    """
    check_count(count, start, end)
    offset_deltas: list[int] = []
    timestamp_deltas: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[Headers] | None = None
    signed = _SIGNED
    position = start
    index = 0
    try:
        for index in range(count):
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
            position += 1  # attributes: no bit of them is in use

            number = data[position]
            if number < 0x80:
                timestamp_deltas.append(signed[number])
                position += 1
            elif (high := data[position + 1]) < 0x80:
                number += (high << 7) - 0x80
                timestamp_deltas.append((number >> 1) ^ -(number & 1))
                position += 2
            else:
                number, position = read_varlong(data, position)
                timestamp_deltas.append(number)

            number = data[position]
            if number < 0x80:
                offset_deltas.append(signed[number])
                position += 1
            elif (high := data[position + 1]) < 0x80:
                number += (high << 7) - 0x80
                offset_deltas.append((number >> 1) ^ -(number & 1))
                position += 2
            else:
                number, position = read_varint(data, position)
                offset_deltas.append(number)

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
                keys.append(None)
            else:
                high = position + (number >> 1)
                keys.append(data[position:high])
                position = high

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
                values.append(None)
            else:
                high = position + (number >> 1)
                values.append(data[position:high])
                position = high

            if data[position]:
                if headers is None:
                    headers = [[] for _ in range(index)]
                record_headers, position = read_headers(data, position, record_end)
                headers.append(record_headers)
            else:
                position += 1
                if headers is not None:
                    headers.append([])
            if position != record_end:
                raise InvalidRecordError("its fields do not add up to its length")
    except IndexError:
        raise InvalidRecordError(f"record {index} of a batch reaches beyond its end") from None
    except InvalidRecordError as error:
        raise InvalidRecordError(f"record {index} of a batch is invalid: {error}") from None
    if position != end:
        raise InvalidRecordError(
            f"{end - position} bytes of a batch do not belong to its {count} records"
        )
    return Section(offset_deltas, timestamp_deltas, keys, values, headers)


def read_headers(data: bytes, position: int, record_end: int) -> tuple[Headers, int]:
    """(headers, position after them) of the record that ends at ``record_end``."""
    count, position = read_varint(data, position)
    if count < 0 or count * 2 > record_end - position:
        raise InvalidRecordError(f"it claims to have {count} headers")
    headers: Headers = []
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise InvalidRecordError("the key of a header is null")
        start = position
        position += size
        try:
            key = data[start:position].decode()
        except UnicodeDecodeError:
            raise InvalidRecordError("the key of a header is not UTF-8") from None
        size, position = read_varint(data, position)
        value: bytes | None = None
        if size >= 0:
            start = position
            position += size
            value = data[start:position]
        headers.append((key, value))
    return headers, position
