from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.metrics.telemetry.otlp import MAX_FIELDS, Point, read_points
from ottla.protocol.records.errors import CorruptRecordError
from tests.unit.broker.metrics.telemetry.protobuf import (
    attribute,
    counter,
    double_point,
    field,
    gauge,
    integer_point,
    metrics_data,
    text_value,
    varint,
)


def test_gauges_and_sums() -> None:
    node = attribute("node.id", varint(3 << 3) + varint(7))
    topic = attribute("topic", text_value("orders"))
    data = metrics_data(
        gauge("a.avg", double_point(1.5, topic, node), integer_point(-3)),
        counter("b.total", integer_point(4)),
        counter("c.total", integer_point(5), temporality=2),
    )
    assert list(read_points(data)) == [
        Point("a.avg", (("node.id", "7"), ("topic", "orders")), 1.5, False, False),
        Point("a.avg", (), -3.0, False, False),
        Point("b.total", (), 4.0, True, True),
        Point("c.total", (), 5.0, True, False),
    ]


def test_nothing_is_nothing() -> None:
    assert list(read_points(b"")) == []


def test_values_of_other_kinds() -> None:
    whole = attribute("n", varint(3 << 3) + varint((1 << 64) - 5))
    truth = attribute("t", varint(2 << 3) + varint(1))
    array = attribute("x", field(5, b""))
    (point,) = read_points(metrics_data(gauge("g", integer_point(1, whole, truth, array))))
    assert point.attributes == (("n", "-5"), ("t", "true"), ("x", ""))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(varint(1 << 3 | 2) + varint(100) + b"short", id="length beyond the end"),
        pytest.param(b"\x0a", id="no length"),
        pytest.param(b"\xff" * 12, id="number too long"),
        pytest.param(b"\x0b", id="unknown kind"),
        pytest.param(varint(1 << 3 | 1) + b"123", id="torn number"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        list(read_points(data))


def test_very_many_fields_are_refused() -> None:
    tiny = b"\x48\x01"  # field 9, which nothing reads
    assert list(read_points(tiny * MAX_FIELDS)) == []
    with pytest.raises(CorruptRecordError, match="more than 250000 fields"):
        list(read_points(tiny * (MAX_FIELDS + 1)))
    points = gauge("a", *[integer_point(1, attribute("k", tiny * 200))] * 1_500)
    with pytest.raises(CorruptRecordError):  # those of sub-messages count, too
        list(read_points(metrics_data(points)))


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail_otherwise(data: bytes) -> None:
    with contextlib.suppress(CorruptRecordError):
        list(read_points(data))


@given(st.binary(max_size=40), st.integers(0, 200))
def test_a_changed_message_does_neither(noise: bytes, position: int) -> None:
    good = metrics_data(gauge("a", double_point(1.0, attribute("k", text_value("v")))))
    changed = good[:position] + noise + good[position + len(noise) :]
    with contextlib.suppress(CorruptRecordError):
        list(read_points(changed))
