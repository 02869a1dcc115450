"""Checks the records of a batch without decoding them: the broker does it for each batch it takes.

A record whose lengths do not fit, or a batch with fewer records than it claims, stops every
consumer that reads it. So each length is followed, and nothing is made of what is found. The layout
of a record is described in `ottla.protocol.records.section`.
"""

from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.section import check_count, read_headers
from ottla.protocol.records.varint import read_varint, read_varlong


def check_records(data: bytes, start: int, end: int, count: int) -> None:  # noqa: PLR0912, PLR0915
    """Raise InvalidRecordError unless ``count`` records fill ``data[start:end]`` exactly, and their
    offset deltas count up from 0."""
    check_count(count, start, end)
    position = start
    doubled = 0  # the index of a record, as its offset delta is encoded
    try:
        for doubled in range(0, count * 2, 2):
            # The usual record first: one- and two-byte varints, no key, no headers. Twice the end:
            # a negative length, which is odd in its encoding, then fits no end.
            number = data[position]
            if number < 0x80:
                position += 2
                doubled_end = number + position + position - 2
            elif (high := data[position + 1]) < 0x80:
                position += 3
                doubled_end = number + (high << 7) - 0x82 + position + position
            else:
                size, position = read_varint(data, position)
                doubled_end = (position + size) << 1
                position += 1
            if data[position] < 0x80:
                position += 1
            elif data[position + 1] < 0x80:
                position += 2
            else:
                _, position = read_varlong(data, position)
            number = data[position]
            if number < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                number += (high << 7) - 0x80
                position += 2
            else:
                size, position = read_varint(data, position)
                number = size << 1 if size >= 0 else 1
            if number != doubled:
                raise InvalidRecordError("its offset does not follow that of the record before")
            number = data[position]
            if number == 1:
                position += 1
            elif number < 0x80:
                position += 1 if number & 1 else 1 + (number >> 1)
            else:
                size, position = read_varint(data, position)
                if size > 0:
                    position += size
            number = data[position]
            if number < 0x80:
                position += 1 if number & 1 else 1 + (number >> 1)
            elif (high := data[position + 1]) < 0x80:
                number += (high << 7) - 0x80
                position += 2 if number & 1 else 2 + (number >> 1)
            else:
                size, position = read_varint(data, position)
                if size > 0:
                    position += size
            if data[position]:
                _, position = read_headers(data, position, doubled_end >> 1)
            else:
                position += 1
            if position + position != doubled_end:
                raise InvalidRecordError("its fields do not fit its length")
    except IndexError:
        raise InvalidRecordError(
            f"record {doubled >> 1} of a batch extends beyond its end"
        ) from None
    except InvalidRecordError as error:
        raise InvalidRecordError(f"record {doubled >> 1} of a batch is invalid: {error}") from None
    if position != end:
        raise InvalidRecordError(f"{end - position} bytes follow the last record of a batch")
