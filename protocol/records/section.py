"""The records of one batch of magic 2, decompressed, into columns."""

from typing import NamedTuple

from ottla.protocol.records.record import Headers
from ottla.protocol.records.record_loop import (
    READ,
    append_bytes,
    append_signed,
    check_count,
    compile_record_loop,
)


class Section(NamedTuple):
    """Columns of equal length, one element for each record.

    `headers` is None when no record of the batch has any.
    """

    offset_deltas: list[int]
    timestamp_deltas: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers] | None


_decode = compile_record_loop(
    setup="timestamp_deltas, offset_deltas, keys, values, headers = [], [], [], [], None",
    timestamp=append_signed("timestamp_deltas.append", "read_varlong"),
    offset=append_signed("offset_deltas.append", "read_varint"),
    key=READ,
    after_key=append_bytes("keys"),
    value=READ,
    after_value=append_bytes("values"),
    rest="""\
if data[position]:
    if headers is None:
        headers = [[] for _ in range(doubled >> 1)]
    record_headers, position = read_headers(data, position, doubled_end >> 1)
    headers.append(record_headers)
else:
    position += 1
    if headers is not None:
        headers.append([])
if position + position != doubled_end:
    raise InvalidRecordError("its fields do not add up to its length")
""",
    result="Section(offset_deltas, timestamp_deltas, keys, values, headers)",
    Section=Section,
)


def decode_section(data: bytes, start: int, end: int, count: int) -> Section:
    """The `count` records that fill `data[start:end]` exactly.

    Raises InvalidRecordError for anything that does not fit.
    """
    check_count(count, start, end)
    section: Section = _decode(data, start, end, 0, count)
    return section
