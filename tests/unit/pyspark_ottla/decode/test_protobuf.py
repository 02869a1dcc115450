"""Protobuf messages as columns."""

import contextlib
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ottla.decode.bad_record import BadRecordError
from pyspark_ottla.decode.protobuf import ProtobufReader, read_indexes
from pyspark_ottla.decode.protobuf_schema import message_of
from tests.doubles.decoded_columns import decode, values_of
from tests.doubles.protobuf_files import ORDER, compiled, new_message

EMPTY = {
    "id": 0,
    "discount": None,
    "state": "NEW",
    "lines": [],
    "by_name": {},
    "at": None,
    "note": None,
    "more": None,
    "card": None,
    "cash": None,
    "raw": b"",
    "large": Decimal(0),
    "ratio": 0.0,
    "codes": [],
}


def test_every_type() -> None:
    order = new_message(ORDER)
    order.id = -1
    order.discount = 0
    order.state = 1
    order.lines.add(item="a", count=(1 << 32) - 1)
    order.by_name["b"].count = 2
    order.at.FromJsonString("1969-07-20T20:17:40.000001Z")
    order.note.value = ""
    order.more.update({"x": [1, None]})
    order.cash = False
    order.raw = b"\xff"
    order.large = (1 << 64) - 1
    order.ratio = 0.5
    order.codes.extend([1, -1])
    other = new_message(ORDER)
    other.state = 7  # of a newer version
    rows = values_of(
        [order.SerializeToString(), b"", None, other.SerializeToString()],
        value_format="protobuf",
        value_schema=ORDER,
    )
    assert rows == [
        {
            "id": -1,
            "discount": 0,
            "state": "PAID",
            "lines": [{"item": "a", "count": (1 << 32) - 1}],
            "by_name": {"b": {"item": "", "count": 2}},
            "at": datetime(1969, 7, 20, 20, 17, 40, 1, UTC),
            "note": "",
            "more": '{"x":[1.0,null]}',
            "card": None,
            "cash": False,
            "raw": b"\xff",
            "large": Decimal((1 << 64) - 1),
            "ratio": 0.5,
            "codes": [1, -1],
        },
        EMPTY,
        None,
        EMPTY | {"state": "7"},
    ]


def test_malformed_bytes_and_values_without_a_column() -> None:
    endless = new_message(ORDER)
    endless.more["x"] = float("inf")  # JSON has none
    odd = new_message(ORDER)
    odd.at.nanos = -1
    rows = decode(
        [b"\xff", endless.SerializeToString(), odd.SerializeToString()],
        value_format="protobuf",
        value_schema=ORDER,
        mode="permissive",
    )
    assert [row["value"] for row in rows] == [None] * 3
    reasons = [row["_corrupt"]["reason"] for row in rows]
    assert reasons[0].startswith("the value is no Protobuf message shop.Order: ")
    assert reasons[1].startswith("the value does not fit the columns: ")
    assert "a Timestamp has nanoseconds outside of a second" in reasons[2]


@pytest.mark.parametrize(
    ("data", "indexes", "rest"),
    [(b"\0x", (0,), b"x"), (b"\2\2", (1,), b""), (b"\4\0\2x", (0, 1), b"x")],
)
def test_message_indexes(data: bytes, indexes: tuple[int, ...], rest: bytes) -> None:
    found, start = read_indexes(b"12345" + data, 5)
    assert (found, (b"12345" + data)[start:]) == (indexes, rest)


@pytest.mark.parametrize("data", [b"", b"\2", b"\4\0", b"\1", b"\xff\xff\xff\xff\x7f", b"\xff" * 9])
def test_indexes_that_are_none(data: bytes) -> None:
    with pytest.raises(BadRecordError):
        read_indexes(data, 0)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_be_bad(content: bytes) -> None:
    reader = ProtobufReader(message_of(compiled(ORDER), ""))
    with contextlib.suppress(BadRecordError):
        reader.parse(content, 0)
