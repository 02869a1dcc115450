"""Avro data as columns: what was written comes back, and malformed bytes are bad records."""

import contextlib
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import uuid4

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ottla.decode.avro import AvroReader
from pyspark_ottla.decode.bad_record import BadRecordError
from pyspark_ottla.decode.registry import Schema
from pyspark_ottla.errors import ConnectorError
from tests.doubles.decoded_columns import values_of


def written(schema: Any, *values: Any) -> list[bytes | None]:
    parsed = fastavro.parse_schema(schema)
    found: list[bytes | None] = []
    for value in values:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, parsed, value)
        found.append(stream.getvalue())
    return found


def decoded(schema: Any, *values: Any) -> list[Any]:
    return values_of(written(schema, *values), value_format="avro", value_schema=schema)


def record(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "R", "fields": fields}


def test_every_type() -> None:
    schema = record(
        flag="boolean",
        small="int",
        big=["null", "long"],
        ratio="float",
        exact="double",
        raw="bytes",
        text="string",
        colour={"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]},
        hash={"type": "fixed", "name": "H", "size": 2},
        tags={"type": "array", "items": ["null", "string"]},
        counts={"type": "map", "values": {"type": "array", "items": "int"}},
        inner=["null", record(a="int") | {"name": "Inner"}],
        void="null",
    )
    first = {
        "flag": True,
        "small": -5,
        "big": 1 << 60,
        "ratio": 0.5,
        "exact": 0.1,
        "raw": b"\0\xff",
        "text": "grün",
        "colour": "BLUE",
        "hash": b"ab",
        "tags": ["x", None],
        "counts": {"a": [1, 2], "b": []},
        "inner": {"a": 7},
        "void": None,
    }
    second = first | {"big": None, "inner": None, "tags": [], "counts": {}}
    assert decoded(schema, first, second) == [first, second]


def test_logical_types() -> None:
    schema = record(
        at={"type": "long", "logicalType": "timestamp-millis"},
        micros=["null", {"type": "long", "logicalType": "timestamp-micros"}],
        local={"type": "long", "logicalType": "local-timestamp-millis"},
        day={"type": "int", "logicalType": "date"},
        price={"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2},
        fixed={
            "type": "fixed",
            "name": "D",
            "size": 16,
            "logicalType": "decimal",
            "precision": 38,
            "scale": 0,
        },
        id={"type": "string", "logicalType": "uuid"},
        clock={"type": "long", "logicalType": "time-micros"},
    )
    at = datetime(1969, 7, 20, 20, 17, 40, 123000, UTC)
    identity = uuid4()
    [found] = decoded(
        schema,
        {
            "at": at,
            "micros": at.replace(microsecond=123456),
            "local": at.replace(tzinfo=None),
            "day": date(1969, 7, 20),
            "price": Decimal("-123456789012345678.90"),
            "fixed": Decimal(-(10**38 - 1)),
            "id": identity,
            "clock": 1,
        },
    )
    assert found == {
        "at": at,
        "micros": at.replace(microsecond=123456),
        "local": at.replace(tzinfo=None),
        "day": date(1969, 7, 20),
        "price": Decimal("-123456789012345678.90"),
        "fixed": Decimal(-(10**38 - 1)),
        "id": str(identity),
        "clock": 1,
    }


def test_unions_of_several_types_have_a_member_each() -> None:
    inner = record(a=["null", "int", "boolean"]) | {"name": "Inner"}
    colour = {"type": "enum", "name": "Colour", "symbols": ["RED"]}
    schema = record(
        one=["null", "string", inner, colour, "long", {"type": "array", "items": "Inner"}]
    )
    members = dict.fromkeys([f"member{number}" for number in range(5)])
    inside = {"member0": 3, "member1": None}
    truth = {"member0": None, "member1": True}
    found = decoded(
        schema,
        *(
            {"one": value}
            for value in (None, "x", {"a": 3}, ("Colour", "RED"), 9, [{"a": True}, {"a": None}])
        ),
    )
    assert [row["one"] for row in found] == [
        None,
        members | {"member0": "x"},
        members | {"member1": {"a": inside}},
        members | {"member2": "RED"},
        members | {"member3": 9},
        members | {"member4": [{"a": truth}, {"a": None}]},
    ]
    assert decoded(["int", "string"], 1, "x") == [
        {"member0": 1, "member1": None},
        {"member0": None, "member1": "x"},
    ]


def schema_of(schema: Any) -> Schema:
    return Schema("avro", json.dumps(schema))


def test_a_newer_schema_reads_what_an_older_one_has_written() -> None:
    old = record(id="int", name="string", gone="double", colour="Colour")
    old["fields"][3]["type"] = {"type": "enum", "name": "Colour", "symbols": ["RED", "PINK"]}
    new = record(
        id="long", title="string", added={"type": "array", "items": "int"}, colour="Colour"
    )
    new["fields"][1]["aliases"] = ["name"]
    new["fields"][2]["default"] = [4]
    new["fields"][3]["type"] = {
        "type": "enum",
        "name": "Colour",
        "symbols": ["RED", "OTHER"],
        "default": "OTHER",
    }
    [content] = written(old, {"id": 1, "name": "x", "gone": 0.5, "colour": "PINK"})
    reader = AvroReader(schema_of(old), schema_of(new))
    assert content is not None
    assert reader.parse(b"12345" + content, 5) == {
        "id": 1,
        "title": "x",
        "added": [4],
        "colour": "OTHER",
    }


def test_schemas_whose_numbers_mean_different_things_are_rejected() -> None:
    old = record(at={"type": "long", "logicalType": "timestamp-millis"})
    new = record(at={"type": "long", "logicalType": "timestamp-micros"})
    with pytest.raises(ConnectorError, match="at is timestamp-millis there"):
        AvroReader(schema_of(old), schema_of(new))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it ends too early"),
        (b"\x02\x04x", "Expected 2 bytes, read 1"),
        (b"\x02\x02\xff", "utf-8"),
        (b"\x06", "is no Avro of its schema"),
        (b"\x02\x02xy", "has 1 bytes after the end of its Avro value"),
        (b"\x02" + b"\xff" * 20, "is no Avro of its schema"),
    ],
)
def test_malformed_bytes(content: bytes, reason: str) -> None:
    schema = schema_of(["null", "string"])
    with pytest.raises(BadRecordError) as raised:
        AvroReader(schema, schema).parse(content, 0)
    assert reason in raised.value.reason


# --- property ------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "d"])
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(1 << 31), (1 << 31) - 1)),
    ("long", st.integers(-(1 << 63), (1 << 63) - 1)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=9)),
    ("string", st.text(st.characters(codec="utf-8"), max_size=9)),
]


@st.composite
def typed_values(draw: Any, path: str = "R") -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema, and a strategy for its values; records have their path as their name."""
    shape = draw(
        st.sampled_from(["leaf", "null", "array", "map", "record"] if len(path) < 4 else ["leaf"])
    )
    if shape == "leaf":
        kind, values = draw(st.sampled_from(LEAVES))
        return kind, values
    if shape == "record":
        names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
        parts = {name: draw(typed_values(path + name)) for name in names}
        schema = record(**{part: kind for part, (kind, _) in parts.items()}) | {"name": path}
        return schema, st.fixed_dictionaries({part: value for part, (_, value) in parts.items()})
    kind, values = draw(typed_values(path + "_"))
    if shape == "array":
        return {"type": "array", "items": kind}, st.lists(values, max_size=3)
    if shape == "map":
        texts = st.text(st.characters(codec="utf-8"), max_size=3)
        return {"type": "map", "values": kind}, st.dictionaries(texts, values, max_size=3)
    if isinstance(kind, list):
        return kind, values
    return ["null", kind], st.none() | values


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_written_is_read(data: st.DataObject) -> None:
    schema, values = data.draw(typed_values())
    rows = data.draw(st.lists(values, max_size=4))
    assert decoded(schema, *rows) == rows


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_no_bytes_do_more_than_be_bad(content: bytes) -> None:
    schema = schema_of(
        record(
            a={"type": "array", "items": {"type": "map", "values": ["null", "string"]}},
            b=["null", "long", {"type": "enum", "name": "E", "symbols": ["X"]}],
        )
    )
    with contextlib.suppress(BadRecordError):
        AvroReader(schema, schema).parse(content, 0)
