"""What Spark's streaming classes hand on; the tracker behind them has tests of its own."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.options import SourceOptions, parse_source_options
from pyspark_ottla.read.admission import AdmissionStreamReader
from pyspark_ottla.read.reader import OffsetRangePartition
from pyspark_ottla.read.schema import row_schema
from pyspark_ottla.read.stream import Limit, StreamTracker
from pyspark_ottla.read.stream_reader import BaseStreamReader, UnlimitedStreamReader
from tests.doubles.spark_cluster import FakeCluster


def options(**given: str) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "startingOffsets": "earliest"}
    return parse_source_options(base | given)


def with_cluster(reader: BaseStreamReader, cluster: FakeCluster) -> None:
    reader._tracker = StreamTracker(cluster, reader._options)


def admission(cluster: FakeCluster, **given: str) -> AdmissionStreamReader:
    chosen = options(**given)
    reader = AdmissionStreamReader(chosen, row_schema(chosen))
    with_cluster(reader, cluster)
    return reader


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster({("t", 0): 100})


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "7"}, ReadMaxBytes(7)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "7"}, ReadMaxRows(5)),
    ],
)
def test_the_default_limit(cluster: FakeCluster, given: dict[str, str], limit: ReadLimit) -> None:
    assert admission(cluster, **given).getDefaultReadLimit() == limit


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (ReadMaxRows(5), Limit(offsets=5, bytes=7)),
        (ReadMaxBytes(9), Limit(offsets=20, bytes=9)),
        (ReadMinRows(3), Limit(offsets=20, bytes=7)),
        (ReadAllAvailable(), Limit(everything=True)),
    ],
)
def test_the_limit_that_spark_hands_back_is_one_of_several(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, limit: ReadLimit, expected: Limit
) -> None:
    reader = admission(cluster, maxOffsetsPerTrigger="20", maxBytesPerTrigger="7")
    seen: list[Limit] = []
    original = StreamTracker.next_end

    def next_end(tracker: StreamTracker, start: object, limit: Limit) -> object:
        seen.append(limit)
        return original(tracker, start, limit)  # type: ignore[arg-type] # passed through

    monkeypatch.setattr(StreamTracker, "next_end", next_end)
    reader.latestOffset(reader.initialOffset(), limit)
    assert seen == [expected]


def test_a_trigger_from_beginning_to_tasks(cluster: FakeCluster) -> None:
    reader = admission(cluster, maxOffsetsPerTrigger="40", maxRecordsPerPartition="25")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(40))
    assert end == {"t": {"0": 40}, '@start {"t":{"0":0}}': {}}
    assert reader.reportLatestOffset() == {"t": {"0": 100}}
    ranges = [(p.start, p.end) for p in reader.partitions(start, end) if _is_range(p)]
    assert ranges == [(0, 20), (20, 40)]
    assert reader.partitions(end, end) == []


def _is_range(partition: object) -> bool:
    assert isinstance(partition, OffsetRangePartition)
    return True


def test_the_reader_travels_without_its_connection(cluster: FakeCluster) -> None:
    reader = admission(cluster)
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._tracker is None
    assert copy._options == reader._options


def test_the_protocol_of_spark_4_0(cluster: FakeCluster) -> None:
    """Offsets are requested without a start; after a restart the journal's end comes first."""
    chosen = options()
    reader = UnlimitedStreamReader(chosen, row_schema(chosen))
    with_cluster(reader, cluster)
    start = reader.initialOffset()
    first = reader.latestOffset()
    assert first["t"] == {"0": 100}
    assert len(reader.partitions(start, first)) == 1
    cluster.grow("t", 0, 150)
    assert reader.latestOffset() == {"t": {"0": 150}}


def test_a_restart_on_spark_4_0_does_not_resolve_the_start_again(cluster: FakeCluster) -> None:
    """The options name the partitions there were when the query began; now there is one more."""
    group = {"commitOffsets": "true", "kafka.group.id": "g"}
    chosen = options(startingOffsets='{"t":{"0":5}}', **group)
    reader = UnlimitedStreamReader(chosen, row_schema(chosen))
    with_cluster(reader, cluster)
    cluster.grow("t", 1, 7)
    end = reader.latestOffset()
    assert end == {"t": {"0": 100, "1": 7}}
    ranges = [(p.start, p.end) for p in reader.partitions({"t": {"0": 80}}, end) if _is_range(p)]
    assert ranges == [(80, 100), (0, 7)]
    assert cluster.groups == {}


@pytest.mark.parametrize(
    "option", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"]
)
def test_limits_need_a_newer_spark(option: str) -> None:
    chosen = options(**{option: "5"})
    with pytest.raises(ConnectorError, match=f"option {option} needs Spark 4.2 or newer"):
        UnlimitedStreamReader(chosen, row_schema(chosen))


class Outage:
    """A cluster for so many seconds away, each look-up failing after its time."""

    def __init__(self, cluster: FakeCluster, failures: int, condition: str) -> None:
        self.is_expected = False
        self._left = failures
        self._condition = condition
        original = cluster.offsets_at

        def offsets_at(wanted: Any) -> Any:
            if self._left:
                self._left -= 1
                raise ConnectorError(self._condition, "Nobody answers")
            return original(wanted)

        cluster.offsets_at = offsets_at  # type: ignore[method-assign]

    def expect_brokers(self) -> None:
        self.is_expected = True


def test_a_query_outlives_an_outage_of_as_many_look_ups(cluster: FakeCluster) -> None:
    for retries, survives in ((3, True), (2, False)):
        given = {"fetchOffset.numRetries": str(retries), "fetchOffset.retryIntervalMs": "0"}
        reader = admission(cluster, **given)
        reader._cluster = cast(Any, Outage(cluster, 3, errors.BROKER_UNAVAILABLE))
        start = {"t": {"0": 90}}  # of a checkpoint: the brokers were there
        if survives:
            assert reader.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 100}}
        else:
            with pytest.raises(ConnectorError, match="Nobody answers"):
                reader.latestOffset(start, ReadAllAvailable())


def test_a_new_query_fails_at_once_if_its_brokers_were_never_there(cluster: FakeCluster) -> None:
    reader = admission(cluster)
    reader._cluster = cast(Any, Outage(cluster, 1, errors.BROKER_UNAVAILABLE))
    with pytest.raises(ConnectorError, match="Nobody answers"):
        reader.initialOffset()


def test_other_errors_are_not_repeated(cluster: FakeCluster) -> None:
    reader = admission(cluster)
    reader._cluster = cast(Any, Outage(cluster, 1, errors.NOT_AUTHORIZED))
    with pytest.raises(ConnectorError, match="NOT_AUTHORIZED"):
        reader.latestOffset({"t": {"0": 90}}, ReadAllAvailable())
