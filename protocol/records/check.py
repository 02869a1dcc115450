"""Checks the records of a batch without decoding them: the broker does it for each batch it takes.

A record whose lengths do not fit, or a batch with fewer records than it claims, stops every
consumer that reads it. So each length is followed, and nothing is made of what is found but the
newest timestamp: the header of a batch has it too, but some producers leave it out there. The
layout of a record is described in `ottla.protocol.records.record_loop`.

Records of one length are checked together, a column at a time: a slice with that length as its step
has the same byte of each record.
"""

from typing import NamedTuple

from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.record_loop import (
    MIN_RECORD_BYTES,
    READ,
    SKIP,
    append_signed,
    check_count,
    compile_record_loop,
    read_number,
    read_timestamp,
)

#: Fewer records than this are not worth a look at their columns.
LEAST_RUN = 8
#: So many short runs, and the lengths of the records differ: each is checked by itself.
MAX_SHORT_RUNS = 3

_BYTES = bytes(range(0x100))
_HIGH = _BYTES[0x80:]  # bytes that others of a varint follow
_LOW = _BYTES[:0x80]
# The first bytes of timestamp deltas by their value: the negative ones, then those from 0 on. Of
# varints of one byte, and of two.
_ASCENDING = _LOW[1::2] + _LOW[::2]
_ASCENDING_FIRST = _HIGH[1::2] + _HIGH[::2]
# The first record whose offset delta takes a byte more.
_TWO_BYTES, _THREE_BYTES = 64, 8192
_OFFSETS = bytes(range(0, 0x80, 2))
_OFFSETS_LOW = bytes((number << 1) & 0x7F | 0x80 for number in range(_THREE_BYTES))
_OFFSETS_HIGH = bytes(number >> 6 for number in range(_THREE_BYTES))


class Walk(NamedTuple):
    """The result of `walk_records`."""

    timestamp_deltas: list[int]
    keyless: list[int]  # the records, by index, whose key is null
    is_in_order: bool  # offset deltas count up from 0


#: `(data, position, end, first, count, newest=-2)`: `check_records` without its columns, for few
#: records, also of a bytearray or memoryview that goes on behind `end`.
check_each_record = compile_record_loop(
    parameters=", newest=-2",
    timestamp=read_timestamp(
        "if number > newest and not number & 1:\n    newest = number",
        "newest = max(newest, number + number)",
    ),
    offset=read_number("""\
if number != doubled:
    raise InvalidRecordError("its offset does not follow that of the record before")
"""),
    key=SKIP,
    null_key="position += 1",
    value=SKIP,
    result="newest >> 1",
)
_walk = compile_record_loop(
    setup="timestamp_deltas, keyless, is_in_order = [], [], True",
    timestamp=append_signed("timestamp_deltas.append", "read_varlong"),
    offset=read_number("if number != doubled:\n    is_in_order = False\n"),
    key=READ,
    after_key="""\
if number & 1:
    keyless.append(doubled >> 1)
else:
    position += number >> 1
""",
    value=SKIP,
    result="Walk(timestamp_deltas, keyless, is_in_order)",
    Walk=Walk,
)


def check_records(data: bytes, start: int, end: int, count: int) -> int:
    """Raise InvalidRecordError unless `count` records fill `data[start:end]` exactly, and their
    offset deltas count up from 0.

    Returns the largest timestamp delta, or -1 if all are negative.
    """
    check_count(count, start, end)
    position = start
    checked = short = 0
    newest = -2  # as it is encoded, which doubles what is not negative
    while count - checked >= LEAST_RUN and short < MAX_SHORT_RUNS:
        length, size, newest = _run(data, position, end, checked, count, newest)
        if length < LEAST_RUN:
            short += 1
        if not length:
            break
        checked += length
        position += length * size
    if checked == count and position == end:
        return newest >> 1
    found: int = check_each_record(data, position, end, checked, count, newest)
    return found


def walk_records(data: bytes, count: int) -> Walk:
    """Check the `count` records that fill `data`, and collect what settings depend on.

    Keeps no record, so that half a million of them need little memory. Raises InvalidRecordError.
    """
    check_count(count, 0, len(data))
    walk: Walk = _walk(data, 0, len(data), 0, count)
    return walk


def _run(
    data: bytes, start: int, end: int, index: int, count: int, newest: int
) -> tuple[int, int, int]:
    """How many valid records of one length begin at `start`, with `index`, that length, and the
    larger of `newest` and their largest timestamp delta, as it is encoded.

    0 for records without a common length, and for all that is not usual: headers, long varints.
    """
    if index >= _THREE_BYTES or end - start < 2 * LEAST_RUN * MIN_RECORD_BYTES:
        return 0, 0, newest
    try:
        length, timestamp = _short_varint(data, start)
        timestamp += 1
        # The columns say below whether this is a whole varint of one or two bytes.
        offset = timestamp + (1 if data[timestamp] < 0x80 else 2)
        key = offset + (1 if index < _TWO_BYTES else 2)
        number, position = _short_varint(data, key)
        value = position if number & 1 else position + (number >> 1)
        number, position = _short_varint(data, value)
        last = position if number & 1 else position + (number >> 1)
        size = last + 1 - start
        if data[last] or length != (last - timestamp + 2) << 1:
            return 0, 0, newest
    except (IndexError, InvalidRecordError):
        return 0, 0, newest
    most = (_TWO_BYTES if index < _TWO_BYTES else _THREE_BYTES) - index
    found = min(count - index, most, (end - start) // size)
    # The lengths are those of the first record, and no record has headers.
    places = [*range(start, timestamp - 1), *range(key, key + (2 if data[key] > 0x7F else 1))]
    places += [*range(value, value + (2 if data[value] > 0x7F else 1)), last]
    for place in places:
        column = data[place : place + (found - 1) * size + 1 : size]
        found -= len(column.lstrip(data[place : place + 1]))
    for place in range(timestamp, offset):
        column = data[place : place + (found - 1) * size + 1 : size]
        found -= len(column.lstrip(_HIGH if place < offset - 1 else _LOW))
    for place in range(offset, key):
        column = data[place : place + (found - 1) * size + 1 : size]
        table = _OFFSETS if key - offset == 1 else _OFFSETS_LOW
        if place > offset:
            table = _OFFSETS_HIGH
        if column != table[index : index + found]:
            return 0, 0, newest
    if not found:
        return 0, 0, newest
    reach = (found - 1) * size + 1
    first = data[timestamp : timestamp + reach : size]
    if offset - timestamp == 1:
        newest = _newest_short(first, newest)
    else:
        newest = _newest_long(first, data[timestamp + 1 : timestamp + 1 + reach : size], newest)
    return found, size, newest


def _newest_short(column: bytes, newest: int) -> int:
    """The larger of `newest` and the largest timestamp delta of a column of single bytes."""
    last = column[-1]
    # Records nearly always come in the order of their timestamps: none is above the last one then.
    if last & 1 or column.translate(None, _ASCENDING[: 65 + (last >> 1)]):
        for number in set(column):
            if number > newest and not number & 1:
                newest = number
        return newest
    return max(last, newest)


def _newest_long(first: bytes, second: bytes, newest: int) -> int:
    """`_newest_short` for varints of two bytes."""
    last, high = first[-1], second[-1]
    equal = len(second) - len(second.rstrip(second[-1:]))
    if (
        last & 1
        or equal != second.count(high)
        or second.translate(None, _BYTES[: high + 1])
        or first[-equal:].translate(None, _ASCENDING_FIRST[: 65 + ((last & 0x7F) >> 1)])
    ):
        for low, high in zip(first, second, strict=True):
            number = low + (high << 7) - 0x80
            if number > newest and not number & 1:
                newest = number
        return newest
    return max(last + (high << 7) - 0x80, newest)


def _short_varint(data: bytes, position: int) -> tuple[int, int]:
    """(value in its encoding, position after it) of a varint of one or two bytes."""
    number = data[position]
    if number < 0x80:
        return number, position + 1
    high = data[position + 1]
    if high >= 0x80:
        raise InvalidRecordError("a longer varint")
    return number + (high << 7) - 0x80, position + 2
