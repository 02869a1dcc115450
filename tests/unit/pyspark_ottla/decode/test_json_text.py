"""JSON texts as columns: strict about types, and about what JSON is."""

import contextlib
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

from pyspark_ottla.decode.bad_record import BadRecordError, BadValueError
from pyspark_ottla.decode.json_text import json_builder, json_parser
from tests.doubles.decoded_columns import decode

US = pa.timestamp("us", "UTC")
AT = datetime(2024, 2, 29, 12, 30, 15, 120000, UTC)


def column(kind: Any, text: str) -> Any:
    """The value of a field `x` of that type."""
    whole = pa.struct([("x", kind)])
    parsed = json_parser(whole)(f'{{"x":{text}}}'.encode(), 0)
    built = json_builder(whole)([parsed])
    built.validate(full=True)
    return built.to_pylist(maps_as_pydicts="strict")[0]["x"]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.int64(), "12", 12),
        (pa.int64(), "12.0", 12),
        (pa.int32(), "null", None),
        (pa.int8(), "-128", -128),
        (pa.float64(), "1e3", 1000.0),
        (pa.float32(), "1", 1.0),
        (pa.bool_(), "true", True),
        (pa.string(), '"\\u00fc"', "ü"),
        (pa.string(), '{"a": [1, "x"]}', '{"a":[1,"x"]}'),
        (pa.string(), "1.5", "1.5"),
        (pa.binary(), '"AP8="', b"\0\xff"),
        (pa.decimal128(5, 2), "1.25", Decimal("1.25")),
        (pa.decimal128(5, 2), '"-1.5"', Decimal("-1.50")),
        (pa.decimal128(5, 2), "1e2", Decimal("100.00")),
        (pa.decimal128(5, 2), "1.100", Decimal("1.10")),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (US, '"2024-02-29T12:30:15.12Z"', AT),
        (US, '"2024-02-29T13:30:15.120000999+01:00"', AT),
        (US, '"2024-02-29 12:30:15.12"', AT),
        (pa.timestamp("us"), '"2024-02-29T12:30:15.12"', AT.replace(tzinfo=None)),
        (pa.date32(), '"1969-12-31"', date(1969, 12, 31)),
        (pa.list_(pa.int64()), "[1, null]", [1, None]),
        (pa.map_(pa.string(), pa.int64()), '{"a": 1}', {"a": 1}),
        (pa.struct([("y", pa.int64())]), '{"y": 1, "z": 2}', {"y": 1}),
        (pa.struct([("y", pa.int64())]), "{}", {"y": None}),
    ],
)
def test_values(kind: Any, text: str, expected: Any) -> None:
    assert column(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (pa.int64(), "1.5", "x is '1.5' and not int64"),
        (pa.int64(), "true", "x is 'true' and not int64"),
        (pa.int64(), '"1"', "x is '1' and not int64"),
        (pa.int64(), "1e400", "not int64"),
        (pa.int64(), str(1 << 63), None),
        (pa.int32(), str(1 << 31), "the number does not fit the type int32"),
        (pa.float64(), '"NaN"', "not double"),
        (pa.bool_(), "0", "x is '0' and not true or false"),
        (pa.string(), '"\\ud800"', None),
        (pa.binary(), '"%"', "not base64"),
        (pa.decimal128(5, 2), "1.255", "not decimal128(5, 2)"),
        (pa.decimal128(5, 2), "1000", "the number does not fit"),
        (pa.decimal128(5, 2), "1e999999999", "not decimal128(5, 2)"),
        (pa.decimal128(5, 2), '"x"', "not decimal128(5, 2)"),
        (US, '"yesterday"', "not an ISO 8601 time"),
        (US, "1700000000000", "not an ISO 8601 time"),
        (pa.timestamp("us"), '"2024-02-29T12:30:15Z"', "not an ISO 8601 time"),
        (pa.date32(), '"2024-02-30"', "not an ISO 8601 date"),
        (pa.list_(pa.int64()), '[1, "a"]', "x[] is 'a' and not int64"),
        (pa.map_(pa.string(), pa.int64()), "[]", "not an object"),
        (pa.struct([("y", pa.int64())]), "[1]", "x is '[1]' and not an object"),
    ],
)
def test_values_of_another_type(kind: Any, text: str, reason: str | None) -> None:
    with pytest.raises((ValueError, OverflowError)) as raised:
        column(kind, text)
    assert reason is None or reason in str(raised.value)


def test_whole_numbers_of_any_size_take_no_time() -> None:
    both = pa.struct([("x", pa.int64()), ("d", pa.decimal128(5, 2))])
    parsed = json_parser(both)(b'{"x": 1e999999999}', 0)
    with pytest.raises(BadValueError):
        json_builder(both)([parsed])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a":1} {"a":2}',
        b'{"a":NaN}',
        b'\xff{"a":1}',
        b'{"a":"\xff"}',
        b'{"a":"\n"}',
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(BadRecordError, match="JSON"):
        json_parser(pa.struct([("a", pa.int64())]))(text, 0)


def test_a_type_that_json_has_nothing_for() -> None:
    with pytest.raises(BadValueError, match="nothing for the type duration"):
        json_builder(pa.struct([("a", pa.duration("us"))]))


def test_the_columns_of_the_query_are_the_schema() -> None:
    kind = _parse_datatype_json_string(
        '{"type":"struct","fields":[{"name":"id","type":"integer","nullable":true,"metadata":{}}]}'
    )
    schema = StructType([StructField("value", kind)])
    rows = decode([b'{"id": 4, "more": []}', None], schema, value_format="json")
    assert rows == [{"value": {"id": 4}}, {"value": None}]


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=5)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)
KIND = pa.struct(
    [
        ("a", pa.int64()),
        ("b", pa.list_(pa.struct([("c", pa.string()), ("a", US)]))),
        ("c", pa.map_(pa.string(), pa.decimal128(9, 3))),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), VALUES))
def test_any_json_is_a_row_or_an_error(value: Any) -> None:
    parsed = json_parser(KIND)(json.dumps(value).encode(), 0)
    with contextlib.suppress(ValueError, OverflowError):
        json_builder(KIND)([parsed, None]).validate(full=True)
