"""Columns from lists of values, and which values they reject."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ottla.decode import builders

LIST = pa.list_(pa.field("element", pa.int32()))
MAP = pa.map_(pa.string(), pa.int64())
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])


def unscaled(value: Decimal) -> int:
    return int(value.scaleb(2))


@pytest.mark.parametrize(
    ("build", "values", "kind"),
    [
        (builders.integers(pa.int32()), [1, None, -(1 << 31)], pa.int32()),
        (builders.integers(pa.int64()), [None, (1 << 63) - 1], pa.int64()),
        (builders.small_integers(pa.int8()), [127, None, -128], pa.int8()),
        (builders.floats(pa.float32()), [1.5, None], pa.float32()),
        (builders.booleans(pa.bool_()), [True, None, False], pa.bool_()),
        (builders.texts(pa.string()), ["", None, "grün"], pa.string()),
        (builders.binaries(pa.binary()), [None, b"\0", b""], pa.binary()),
        (
            builders.decimals(pa.decimal128(5, 2), unscaled),
            [Decimal("-999.99"), None, Decimal("0.01")],
            pa.decimal128(5, 2),
        ),
        (builders.lists(LIST, builders.integers(pa.int32())), [[1, None], None, []], LIST),
    ],
)
def test_values_come_back_as_they_were(build: builders.Build, values: Any, kind: Any) -> None:
    for given in (values, values[:1], []):
        column = build(given)
        column.validate(full=True)
        assert column.type == kind
        assert column.to_pylist() == given


def test_structs_and_maps() -> None:
    parts = [
        (lambda found: found["a"], builders.integers(pa.int64())),
        (lambda found: found["b"], builders.texts(pa.string())),
    ]
    values = [{"a": 1, "b": None}, None, {"a": None, "b": "x"}]
    column = builders.structs(STRUCT, parts)(values)
    column.validate(full=True)
    assert column.to_pylist() == values
    build = builders.maps(MAP, builders.texts(pa.string()), builders.integers(pa.int64()))
    column = build([{"x": 1, "y": None}, None, {}])
    column.validate(full=True)
    assert column.to_pylist() == [[("x", 1), ("y", None)], None, []]


def test_timestamps_are_scaled() -> None:
    build = builders.integers(pa.timestamp("us", "UTC"), factor=1000)
    assert build([1, -1]).cast(pa.int64()).to_pylist() == [1000, -1000]
    halves = builders.integers(pa.int64(), divisor=1000)
    assert halves([1999, -1]).to_pylist() == [1, -1]


@pytest.mark.parametrize(
    ("build", "value"),
    [
        (builders.integers(pa.int32()), 1 << 31),
        (builders.integers(pa.int64()), 1 << 63),
        (builders.integers(pa.int64(), factor=1000), 1 << 62),
        (builders.integers(pa.int64(), factor=1000), -(1 << 63)),
        (builders.small_integers(pa.int16()), 40_000),
        (builders.decimals(pa.decimal128(3, 0), int), 1000),
        (builders.texts(pa.string()), "\ud800"),
        (builders.lists(LIST, builders.integers(pa.int32())), 5),
        (builders.maps(MAP, builders.texts(pa.string()), builders.floats(pa.float64())), [1]),
    ],
)
def test_values_that_do_not_fit(build: builders.Build, value: Any) -> None:
    with pytest.raises(builders.VALUE_ERRORS):
        build([None, value])
