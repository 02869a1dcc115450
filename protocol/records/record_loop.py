"""The loop over the records of one batch of magic 2, decompressed, written once for all its uses.

A record is, all numbers as zigzag varints::

    length | attributes int8 | timestamp_delta | offset_delta | key_length, key | value_length,
    value | header_count, then for each header key_length, key, value_length, value

Lengths below zero mean null. Readers differ in what they do with each field, and a call for each
would take longer than the rest. So `compile_record_loop` puts their statements into one template,
which reads varints of one and two bytes, and lengths of three, inline.

The loop checks bounds only once for each record: positions only ever move forward, so if a record
ends exactly where its length says, everything inside it was inside it; and slices cannot reach
beyond `data`.
"""

from collections.abc import Callable
from textwrap import indent
from typing import Any

from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.record import Headers
from ottla.protocol.records.varint import read_varint, read_varlong

MIN_RECORD_BYTES = 7  # each of its seven numbers takes one byte

# Reads a number of more bytes than are read inline, in its encoding; 1 stands for any negative one.
_LONG = """\
size, position = read_varint(data, position)
number = size << 1 if size >= 0 else 1
"""
_SKIP_LONG = """\
size, position = read_varint(data, position)
if size > 0:
    position += size
"""

#: Statements that skip a key or a value: after its length, and after the length of a long one.
SKIP = ("position += {n} if number & 1 else {n} + (number >> 1)", _SKIP_LONG)
#: Statements that only read the length of a key or a value.
READ = ("position += {n}", _LONG)
#: Statements that validate the headers and the end of a record.
CHECK_END = """\
if data[position]:
    _, position = read_headers(data, position, doubled_end >> 1)
else:
    position += 1
if position + position != doubled_end:
    raise InvalidRecordError("its fields do not add up to its length")
"""

# It has twice the end of a record, which a negative length, odd in its encoding, never fits; and
# twice its index, which is the encoding of its offset delta if these count up from 0.
_LOOP = """\
def loop(data, position, end, first, count{parameters}):
    signed = SIGNED
    {setup}
    doubled = 0
    try:
        for doubled in range(first * 2, count * 2, 2):
            number = data[position]
            if number < 0x80:
                position += 2  # the attributes have no meaning
                doubled_end = number + position + position - 2
            elif (high := data[position + 1]) < 0x80:
                position += 3
                doubled_end = number + (high << 7) - 0x82 + position + position
            elif (top := data[position + 2]) < 0x80:
                position += 4
                doubled_end = number + (high << 7) + (top << 14) - 0x4082 + position + position
            else:
                size, position = read_varint(data, position)
                doubled_end = (position + size) << 1
                position += 1
            {timestamp}
            {offset}
            {key}
            {value}
            {rest}
    except IndexError:
        raise InvalidRecordError(
            f"record {{doubled >> 1}} of a batch extends beyond its end"
        ) from None
    except InvalidRecordError as error:
        raise InvalidRecordError(
            f"record {{doubled >> 1}} of a batch is invalid: {{error}}"
        ) from None
    if position < end:
        raise InvalidRecordError(f"{{end - position}} bytes follow the last record of a batch")
    if position > end:
        raise InvalidRecordError("the last record of a batch extends beyond its end")
    return {result}
"""


def _varint(short: str, long: str, *, one: str = "", three: bool = False, null: str = "") -> str:
    """Statements that read a varint, in its encoding, as `number`, and handle it.

    `short` moves the position by `{n}` bytes; `one` replaces it for a single byte. `long`
    reads the longer ones. `null` handles a null length, before all others.
    """
    first = f"if number == 1:\n{indent(null, '    ')}\nelif" if null else "if"
    branches = [
        f"number = data[position]\n{first} number < 0x80:\n"
        + indent((one or short).format(n=1), "    "),
        "elif (high := data[position + 1]) < 0x80:\n    number += (high << 7) - 0x80\n"
        + indent(short.format(n=2), "    "),
    ]
    if three:
        branches.append(
            "elif (top := data[position + 2]) < 0x80:\n"
            "    number += (high << 7) + (top << 14) - 0x4080\n" + indent(short.format(n=3), "    ")
        )
    return "\n".join([*branches, "else:", indent(long, "    ")])


def append_signed(add: str, read: str) -> str:
    """Statements that append a delta to a column; `read` is the function for long ones."""
    short = f"position += {{n}}\n{add}((number >> 1) ^ -(number & 1))"
    long = f"number, position = {read}(data, position)\n{add}(number)"
    return _varint(short, long, one=f"position += 1\n{add}(signed[number])")


def append_bytes(column: str) -> str:
    """Statements that append a key or a value, after its length was read, or None, to a column."""
    return f"""\
if number & 1:
    {column}.append(None)
else:
    high = position + (number >> 1)
    {column}.append(data[position:high])
    position = high
"""


def compile_record_loop(
    *,
    parameters: str = "",
    setup: str = "pass",
    timestamp: str,
    offset: str,
    key: tuple[str, str],
    null_key: str = "",
    after_key: str = "",
    value: tuple[str, str] | None,
    after_value: str = "",
    rest: str = CHECK_END,
    result: str,
    **names: object,
) -> Callable[..., Any]:
    """Compile `loop(data, position, end, first, count, ...)` from statements for each field.

    It visits the records from number `first` on, which begin at `position`; all `count`
    records end at `end`. In the statements `position` is behind what was read, `number` is
    the last number in its encoding, `doubled` is twice the index of the record, `doubled_end`
    twice its end, and `signed` decodes a byte. `names` are the globals that they use. The loop
    raises InvalidRecordError, which names the record, for anything that does not fit.
    """
    parts = {
        "setup": setup,
        "timestamp": timestamp,
        "offset": offset,
        "key": _varint(*key, three=True, null=null_key) + "\n" + after_key,
        "value": "" if value is None else _varint(*value, three=True) + "\n" + after_value,
        "rest": rest,
    }
    source = _LOOP
    for name, statements in parts.items():
        place = f"{{{name}}}\n"
        margin = " " * (source.index(place) - source.rindex("\n", 0, source.index(place)) - 1)
        source = source.replace(margin + place, indent(statements.rstrip("\n") + "\n", margin))
    source = source.replace("{parameters}", parameters).replace("{result}", result)
    source = source.replace("{{", "{").replace("}}", "}")
    scope: dict[str, Any] = {
        "InvalidRecordError": InvalidRecordError,
        "read_headers": read_headers,
        "read_varint": read_varint,
        "read_varlong": read_varlong,
        # One-byte zigzag: index is the byte.
        "SIGNED": tuple((byte >> 1) ^ -(byte & 1) for byte in range(128)),
        **names,
    }
    exec(compile(source, f"<record loop for {result}>", "exec"), scope)
    loop: Callable[..., Any] = scope["loop"]
    return loop


def read_number(after: str) -> str:
    """Statements that read a delta in its encoding, and `after` them."""
    return _varint(*READ) + "\n" + after


def read_timestamp(short: str, long: str) -> str:
    """Statements that handle a timestamp delta: in its encoding, or decoded if it is a long one."""
    return _varint(
        "position += {n}\n" + short, "number, position = read_varlong(data, position)\n" + long
    )


def check_count(count: int, start: int, end: int) -> None:
    """Raise InvalidRecordError if `count` records cannot fit into these bytes."""
    if count < 0 or count * MIN_RECORD_BYTES > end - start:
        raise InvalidRecordError(
            f"a batch claims to hold {count} records, which cannot be in {end - start} bytes"
        )


def read_headers(data: bytes, position: int, record_end: int) -> tuple[Headers, int]:
    """(headers, position after them) of the record that ends at `record_end`."""
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
            try:
                key = data[start:position].decode()
            except AttributeError:  # of a memoryview, as `check_each_record` may have
                key = str(data[start:position], "utf-8")
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
