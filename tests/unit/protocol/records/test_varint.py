"""Zigzag varints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.varint import (
    encode_varint,
    read_varint,
    read_varlong,
    varint_size,
    wrap_int64,
)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_long_round_trip(value: int) -> None:
    out = encode_varint(value)
    assert read_varlong(out, 0) == (value, len(out))
    assert varint_size(value) == len(out)


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_int_round_trip(value: int) -> None:
    out = b"xx" + encode_varint(value)
    assert read_varint(out, 2) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\0"),
        (-1, b"\x01"),
        (1, b"\x02"),
        (63, b"\x7e"),
        (64, b"\x80\x01"),
        (-64, b"\x7f"),
        (-65, b"\x81\x01"),
        (8191, b"\xfe\x7f"),
        (8192, b"\x80\x80\x01"),
        ((1 << 31) - 1, b"\xfe\xff\xff\xff\x0f"),
        (-(1 << 31), b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_known_encodings(value: int, encoded: bytes) -> None:
    assert encode_varint(value) == encoded
    assert read_varint(encoded, 0)[0] == value


def test_numbers_that_are_too_long_or_too_wide_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="5 bytes"):
        read_varint(b"\x80\x80\x80\x80\x80\x00", 0)
    with pytest.raises(InvalidRecordError, match="32 bits"):
        read_varint(b"\xff\xff\xff\xff\x1f", 0)
    with pytest.raises(InvalidRecordError, match="10 bytes"):
        read_varlong(b"\x80" * 10 + b"\x00", 0)
    with pytest.raises(InvalidRecordError, match="64 bits"):
        read_varlong(b"\xff" * 9 + b"\x02", 0)
    with pytest.raises(IndexError):
        read_varint(b"\x80", 0)


def test_wrapping() -> None:
    assert wrap_int64(1 << 63) == -(1 << 63)
    assert wrap_int64(-(1 << 63) - 1) == (1 << 63) - 1
    assert wrap_int64(-5) == -5
