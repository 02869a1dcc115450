"""Filters become bounds, and bounds never cut off a record that passes."""

import datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.read.pushdown import Bounds, bounds_of, narrow
from tests.doubles.spark_cluster import FakeCluster

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
RANGES = [OffsetRange(A, 0, 100), OffsetRange(B, 10, 50), OffsetRange(C, 0, 7)]


def moment(milliseconds: float) -> datetime.datetime:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return epoch + datetime.timedelta(milliseconds=milliseconds)


def narrowed(*filters: Filter, cluster: FakeCluster | None = None) -> list[OffsetRange]:
    return narrow(cluster or FakeCluster({}), RANGES, bounds_of(filters))


def on(column: str, kind: type[Any], value: Any) -> Filter:
    made: Filter = kind((column,), value)
    return made


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], RANGES),
        ([on("topic", EqualTo, "u")], [RANGES[2]]),
        ([on("topic", In, ("t", "v"))], RANGES[:2]),
        ([on("topic", StringStartsWith, "t")], RANGES[:2]),
        ([on("partition", EqualTo, 1)], [RANGES[1]]),
        ([on("partition", In, (1, 2)), on("partition", EqualTo, 2)], []),
        (
            [on("offset", GreaterThan, 20), on("offset", LessThanOrEqual, 40)],
            [OffsetRange(A, 21, 41), OffsetRange(B, 21, 41)],
        ),
        (
            [on("offset", GreaterThanOrEqual, 20), on("offset", LessThan, 40)],
            [OffsetRange(A, 20, 40), OffsetRange(B, 20, 40)],
        ),
        ([on("offset", EqualTo, 6)], [OffsetRange(A, 6, 7), OffsetRange(C, 6, 7)]),
        ([on("offset", In, (60, 3))], [OffsetRange(A, 3, 61), RANGES[1], OffsetRange(C, 3, 7)]),
        (
            [
                IsNotNull(("topic",)),
                Not(EqualTo(("topic",), "t")),
                on("value", EqualTo, b"x"),
                EqualTo(("headers", "key"), "x"),
                on("offset", EqualTo, None),
                on("timestamp", LessThan, moment(5)),
                on("timestamp", GreaterThan, "no moment"),
            ],
            RANGES,
        ),
    ],
)
def test_ranges(filters: list[Filter], expected: list[OffsetRange]) -> None:
    assert narrowed(*filters) == expected


def test_timestamps_are_asked_of_the_brokers() -> None:
    cluster = FakeCluster({A: 100, B: 50, C: 7})
    cluster.by_timestamp = {(A, 1001): 30, (C, 1001): 2}
    filters = [on("timestamp", GreaterThan, moment(1000.5)), on("timestamp", EqualTo, moment(900))]
    assert narrowed(*filters, cluster=cluster) == [OffsetRange(A, 30, 100), OffsetRange(C, 2, 7)]


def test_without_filters_there_are_no_bounds() -> None:
    assert bounds_of([]) == Bounds()
