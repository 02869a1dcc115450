"""The hot loop and its numpy twin: the same results, typed errors for anything that is wrong."""

import random

import pytest
from hypothesis import given, settings

from ottla.protocol.records.builder import build_batch, encode_record
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.record import NewRecord
from ottla.protocol.records.section import Section, decode_section
from ottla.protocol.records.spans import decode_section_vectorised, decode_spans
from ottla.protocol.records.varint import encode_varint
from tests.doubles.record_strategies import new_records


def payload_of(records: list[NewRecord]) -> bytes:
    return build_batch(records)[61:]


def both(data: bytes, start: int, end: int, count: int) -> Section:
    """What both paths agree on; an error of the loop means that numpy declines."""
    pytest.importorskip("numpy")
    fast = decode_section_vectorised(data, start, end, count)
    try:
        plain = decode_section(data, start, end, count)
    except InvalidRecordError:
        assert fast is None
        raise
    assert fast in (None, plain)
    return plain


@settings(max_examples=80, deadline=None)
@given(new_records())
def test_both_paths_give_what_was_written(records: list[NewRecord]) -> None:
    data = payload_of(records)
    section = both(b"ab" + data + b"cd", 2, 2 + len(data), len(records))
    assert section.keys == [record[1] for record in records]
    assert section.values == [record[2] for record in records]
    assert section.offset_deltas == list(range(len(records)))
    assert (section.headers or [[] for _ in records]) == [record[3] for record in records]


def test_the_vectorised_path_takes_what_producers_send() -> None:
    """Or else it would never be used, unnoticed."""
    pytest.importorskip("numpy")
    records: list[NewRecord] = [
        (10_000 * index, b"%d" % index, b"v" * (index % 300), [("h", b"x")] if index % 3 else None)
        for index in range(9000)
    ]
    data = payload_of(records)
    assert decode_section_vectorised(data, 0, len(data), 9000) == decode_section(
        data, 0, len(data), 9000
    )
    no_keys: list[NewRecord] = [(0, None, None if index % 2 else b"", None) for index in range(500)]
    data = payload_of(no_keys)
    section = decode_section_vectorised(data, 0, len(data), 500)
    assert section == decode_section(data, 0, len(data), 500)


def test_spans_point_at_keys_and_values() -> None:
    pytest.importorskip("numpy")
    data = payload_of([(0, b"key", b"value", None), (0, None, b"", None)])
    spans = decode_spans(data, 0, len(data), 2)
    assert spans is not None
    assert data[spans.key_starts[0] : spans.key_ends[0]] == b"key"
    assert data[spans.value_starts[0] : spans.value_ends[0]] == b"value"
    assert spans.key_ends[1] < spans.key_starts[1]
    assert spans.value_ends[1] == spans.value_starts[1]


GOOD = payload_of([(5, b"k", b"v", [("h", b"1")]), (6, None, b"w", None)])


@pytest.mark.parametrize("count", [-1, 1, 3, 1 << 31, (1 << 31) - 1])
def test_wrong_counts_are_invalid(count: int) -> None:
    with pytest.raises(InvalidRecordError):
        both(GOOD, 0, len(GOOD), count)


@pytest.mark.parametrize("size", range(len(GOOD)))
def test_cut_short_is_invalid(size: int) -> None:
    with pytest.raises(InvalidRecordError):
        both(GOOD[:size], 0, size, 2)


def test_bytes_behind_the_records_are_invalid() -> None:
    with pytest.raises(InvalidRecordError, match="follow the last"):
        both(GOOD + b"\0" * 20, 0, len(GOOD) + 20, 2)


def record(body: bytes, length: int | None = None) -> bytes:
    return encode_varint(len(body) if length is None else length) + body


OVERLONG = b"\x80\x80\x80\x80\x80\x00"  # zero in six bytes
TOO_WIDE = b"\xff\xff\xff\xff\x7f"  # 35 bits


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\0\0\0\x01\x01\x01\0", "headers"),  # minus one headers
        (b"\0\0\0\x01\x01\x7e\0\0\0\0", "headers"),  # more headers than bytes
        (b"\0\0\0\x01\x01\x02\x01\x01", "null"),  # a header without a key
        (b"\0\0\0\x01\x01\x02\x02\xff\x01", "UTF-8"),
        (b"\0\0\0\x01\x01\0\0", "add up"),
        (b"\0" + OVERLONG * 2 + b"\0\x01\x01\0", "add up|longer"),
        (b"\0\0" + OVERLONG + b"\x01\x01\0", "longer than 5"),
        (b"\0\0" + TOO_WIDE + b"\x01\x01\0", "32 bits"),
        (b"\0\0\0" + OVERLONG + b"\x01\0", "longer than 5"),
        (b"\0\0\0\x01" + OVERLONG + b"\0", "longer than 5"),
        (b"\0" + b"\xff" * 10 + b"\x01\0\x01\x01\0", "longer than 10"),
        (b"\0" + b"\xff" * 9 + b"\x7f\0\x01\x01\0", "64 bits"),
        (b"\0\0\0\x7e\x01\x00\0", "beyond|add up"),  # the key reaches out of the record
        (b"\0\0\0\xfe\xff\xff\xff\x0f\0\0", "beyond|add up"),  # a key of 2 GB
        (b"\0\0\0\x01\xfe\xff\xff\xff\x0f\0", "beyond|add up"),
    ],
)
def test_broken_records_are_invalid(body: bytes, reason: str) -> None:
    data = record(body)
    with pytest.raises(InvalidRecordError, match=reason):
        both(data, 0, len(data), 1)


@pytest.mark.parametrize("length", [-1, -100, 1 << 30, -(1 << 31)])
def test_impossible_lengths_are_invalid(length: int) -> None:
    data = record(b"\0\0\0\x01\x01\0", length)
    with pytest.raises(InvalidRecordError):
        both(data, 0, len(data), 1)


def test_lengths_below_minus_one_mean_null_as_in_java() -> None:
    data = record(b"\0\0\0\x03\x05\0")
    section = decode_section(data, 0, len(data), 1)
    assert (section.keys, section.values) == ([None], [None])


def test_padded_varints_within_five_bytes_are_read() -> None:
    data = record(b"\0\x80\x80\0\x82\x80\0\x82\0k\x01\0")
    section = both(data, 0, len(data), 1)
    assert section == Section([1], [0], [b"k"], [None], None)


@pytest.mark.parametrize(
    "delta", [0, -1, 1, 63, 64, -64, -65, 8191, 8192, (1 << 31) - 1, -(1 << 31)]
)
def test_offset_deltas_of_every_width(delta: int) -> None:
    out = bytearray()
    encode_record(out, delta, delta, b"", b"", None)
    section = both(bytes(out), 0, len(out), 1)
    assert (section.offset_deltas, section.timestamp_deltas) == ([delta], [delta])


@pytest.mark.parametrize("seed", range(30))
def test_both_paths_agree_on_damaged_bytes(seed: int) -> None:
    rng = random.Random(seed)
    records: list[NewRecord] = [
        (rng.randrange(1 << 20), rng.randbytes(rng.randrange(90)), b"v" * rng.randrange(200), None)
        for _ in range(40)
    ]
    data = bytearray(payload_of(records))
    for _ in range(30):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] = rng.randrange(256)
        try:
            both(bytes(damaged), 0, len(damaged), 40)
        except InvalidRecordError:
            continue
