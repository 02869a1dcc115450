"""Starts and ends of reads over a cluster of plain numbers."""

import pytest

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.options.options import Position, Subscription
from pyspark_ottla.read.planning import LossReport, batch_ranges, resolve
from tests.doubles.spark_cluster import FakeCluster

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = frozenset({A, B})
TOPIC = Subscription(topics=frozenset({"t"}))


@pytest.fixture
def cluster() -> FakeCluster:
    fake = FakeCluster({A: 10, B: 20})
    fake.earliest[B] = 5
    return fake


def ranges(
    cluster: FakeCluster,
    start: Position | None = None,
    end: Position | None = None,
    action: str = "fail",
) -> list[OffsetRange]:
    return batch_ranges(cluster, TOPIC, start, end, "group", LossReport(action))


def test_a_batch_reads_from_beginning_to_end(cluster: FakeCluster) -> None:
    assert ranges(cluster) == [OffsetRange(A, 0, 10), OffsetRange(B, 5, 20)]


def test_special_offsets_are_looked_up(cluster: FakeCluster) -> None:
    start = Position("offsets", "startingOffsets", {A: 3, B: -2})
    end = Position("offsets", "endingOffsets", {A: -1, B: 15})
    assert ranges(cluster, start, end) == [OffsetRange(A, 3, 10), OffsetRange(B, 5, 15)]


def test_timestamps_find_offsets(cluster: FakeCluster) -> None:
    cluster.by_timestamp = {(A, 100): 4, (B, 100): 9}
    start = Position("timestamp", "startingTimestamp", timestamp=100)
    assert ranges(cluster, start) == [OffsetRange(A, 4, 10), OffsetRange(B, 9, 20)]


def test_timestamps_without_a_record_follow_the_strategy(cluster: FakeCluster) -> None:
    cluster.by_timestamp = {(A, 100): 4}
    times = {A: 100, B: 100}
    strict = Position("timestamps", "startingOffsetsByTimestamp", times)
    with pytest.raises(ConnectorError, match=r"timestamp 100 .*is in t-1"):
        ranges(cluster, strict)
    lenient = strict._replace(if_missing="latest")
    assert ranges(cluster, lenient) == [OffsetRange(A, 4, 10), OffsetRange(B, 20, 20)]


def test_committed_offsets_with_every_fallback(cluster: FakeCluster) -> None:
    cluster.groups["group"] = {A: 7}
    start = Position("committed", "startingOffsets")
    with pytest.raises(ConnectorError, match="group group has no committed offset for t-1"):
        resolve(cluster, start, BOTH, "group")
    earliest = resolve(cluster, start._replace(if_missing="earliest"), BOTH, "group")
    latest = resolve(cluster, start._replace(if_missing="latest"), BOTH, "group")
    assert (earliest, latest) == ({A: 7, B: 5}, {A: 7, B: 20})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({A: 1}, "startingOffsets leaves out t-1"),
        ({A: 1, B: 1, TopicPartition("u", 0): 1}, "names u-0, which is not read"),
    ],
)
def test_offsets_must_name_what_is_read(
    cluster: FakeCluster, given: dict[TopicPartition, int], text: str
) -> None:
    with pytest.raises(ConnectorError, match=text):
        ranges(cluster, Position("offsets", "startingOffsets", given))


def test_a_start_before_the_log_is_a_loss(cluster: FakeCluster) -> None:
    start = Position("offsets", "startingOffsets", {A: 0, B: 2})
    with pytest.raises(ConnectorError, match=r"t-1 was to be read from offset 2.* 3 offsets are"):
        ranges(cluster, start)
    assert ranges(cluster, start, action="ignore")[1] == OffsetRange(B, 5, 20)


def test_a_committed_start_beyond_the_log_is_a_loss(cluster: FakeCluster) -> None:
    """The topic was created again, for instance: nothing would be read, without a word."""
    cluster.groups["group"] = {A: 11, B: 20}
    start = Position("committed", "startingOffsets")
    with pytest.raises(ConnectorError, match="t-0 was to be read from offset 11, but ends at 10"):
        ranges(cluster, start)
    assert ranges(cluster, start, action="warn") == [
        OffsetRange(A, 10, 10),
        OffsetRange(B, 20, 20),
    ]


@pytest.mark.parametrize("action", ["fail", "warn"])
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (Position("offsets", "startingOffsets", {A: 11, B: 0}), None),
        (
            Position("offsets", "startingOffsets", {A: 8, B: 5}),
            Position("timestamp", "endingTimestamp", timestamp=3),
        ),
        (
            Position("timestamp", "startingTimestamp", timestamp=8),
            Position("timestamp", "endingTimestamp", timestamp=3),
        ),
        (
            Position("committed", "startingOffsets"),
            Position("offsets", "endingOffsets", {A: 5, B: 20}),
        ),
        (None, Position("offsets", "endingOffsets", {A: 10, B: 4})),
    ],
)
def test_a_start_behind_the_end_is_an_error(
    cluster: FakeCluster, start: Position | None, end: Position | None, action: str
) -> None:
    cluster.groups["group"] = {A: 8, B: 20}
    cluster.by_timestamp = {(A, 8): 8, (A, 3): 3, (B, 8): 15, (B, 3): 6}
    with pytest.raises(
        ConnectorError,
        match=r"RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\] t-\d would be read from offset "
        r"\d+ \(starting\w+\) to offset \d+ \(ending\w+\). Check in this order: 1\.",
    ):
        ranges(cluster, start, end, action=action)


def test_a_start_behind_an_open_transaction_is_no_loss(cluster: FakeCluster) -> None:
    """Committed by a reader of all records, while this one reads committed ones."""
    cluster.groups["group"] = {A: 11, B: 20}
    cluster.unstable = {A: 12}
    found = ranges(cluster, Position("committed", "startingOffsets"))
    assert [piece for piece in found if piece.end > piece.start] == []


def test_an_end_beyond_the_log_is_a_loss(cluster: FakeCluster) -> None:
    end = Position("offsets", "endingOffsets", {A: 11, B: 20})
    with pytest.raises(ConnectorError, match="t-0 was to be read up to offset 11, but ends at 10"):
        ranges(cluster, None, end)
    assert ranges(cluster, None, end, action="warn")[0] == OffsetRange(A, 0, 10)


def test_a_partition_that_vanishes_meanwhile(cluster: FakeCluster) -> None:
    subscription = Subscription(partitions=frozenset({A, TopicPartition("gone", 0)}))
    with pytest.raises(ConnectorError, match="do not know gone-0 any more"):
        batch_ranges(cluster, subscription, None, None, None, LossReport("fail"))


def test_a_pattern_without_topics_reads_nothing(cluster: FakeCluster) -> None:
    nothing = Subscription(pattern="nothing")
    assert batch_ranges(cluster, nothing, None, None, None, LossReport("fail")) == []
