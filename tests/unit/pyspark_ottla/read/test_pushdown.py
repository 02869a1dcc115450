"""Filters become bounds, and bounds never cut off a record that passes."""

import datetime
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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


FILTERS = st.one_of(
    st.builds(on, st.just("partition"), st.sampled_from([EqualTo, LessThan]), st.integers(0, 2)),
    st.builds(on, st.just("partition"), st.just(In), st.tuples(st.integers(0, 2))),
    st.builds(
        on,
        st.just("offset"),
        st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]),
        st.integers(-1, 12),
    ),
    st.builds(
        on,
        st.just("timestamp"),
        st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]),
        st.integers(0, 24).map(lambda half: moment(half / 2)),
    ),
    st.builds(on, st.just("topic"), st.sampled_from([EqualTo, StringStartsWith]), st.just("t")),
)
COMPARE: dict[type[Any], Any] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, values: value in values,
    StringStartsWith: str.startswith,
}


@given(
    st.dictionaries(
        st.sampled_from([A, B, C]), st.lists(st.integers(0, 12), max_size=12), min_size=1
    ),
    st.lists(FILTERS, max_size=3),
)
def test_rows_are_equal_with_and_without_pushdown(
    logs: dict[TopicPartition, list[int]], filters: list[Filter]
) -> None:
    """Timestamps go up and down; the lists are the timestamps of the offsets from 0 on."""
    cluster = FakeCluster({tp: len(times) for tp, times in logs.items()})
    for tp, times in logs.items():
        for wanted in range(14):
            later = [offset for offset, time in enumerate(times) if time >= wanted]
            cluster.by_timestamp[tp, wanted] = later[0] if later else -1

    def rows(ranges: list[OffsetRange]) -> list[tuple[TopicPartition, int]]:
        found = []
        for piece in ranges:
            for offset in range(piece.start, piece.end):
                columns = {
                    "topic": piece.partition.topic,
                    "partition": piece.partition.partition,
                    "offset": offset,
                    "timestamp": moment(logs[piece.partition][offset]),
                }
                if all(
                    COMPARE[type(one)](columns[one.attribute[0]], one.value)  # type: ignore[attr-defined]
                    for one in filters
                ):
                    found.append((piece.partition, offset))
        return found

    whole = [OffsetRange(tp, 0, len(times)) for tp, times in sorted(logs.items())]
    assert rows(narrow(cluster, whole, bounds_of(filters))) == rows(whole)


def test_values_of_other_columns_need_not_be_hashable() -> None:
    assert bounds_of([EqualTo(("key",), [1, 2]), EqualTo(("headers",), [{"key": "a"}])]) == Bounds()
