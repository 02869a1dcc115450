"""A direct read returns the rows of a read through the broker, whatever the store does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.reader import iterate_entries, read_batch
from ottla.protocol.records.record import Record
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.options.remote_options import RemoteOptions
from pyspark_ottla.read.aborted import AbortedFilter
from pyspark_ottla.read.fetch import FetchedData, PartitionFetch
from pyspark_ottla.read.planning import LossReport
from pyspark_ottla.read.task_metrics import TaskMetrics
from pyspark_ottla.remote.planning import DirectPlanner
from pyspark_ottla.remote.reading import DirectRead
from pyspark_ottla.remote.segment import PlannedSegment
from tests.doubles.tiered_cluster import (
    TOPIC_ID,
    TP,
    TieredCluster,
    store_settings,
    tiered_transactions,
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[TieredCluster]:
    async with tiered_transactions(tmp_path) as scene:
        yield TieredCluster(scene)


def remote_options(path: Path, on_error: str = "broker") -> RemoteOptions:
    settings = tuple(sorted(store_settings(path).items()))
    return RemoteOptions("direct", on_error, settings=settings)


def from_broker(
    cluster: TieredCluster, wanted: OffsetRange, fetch_bytes: int
) -> Iterator[FetchedData]:
    fetch = PartitionFetch(
        cluster,
        wanted,
        report=LossReport("fail"),
        fetch_bytes=fetch_bytes,
        read_committed=cluster.options.read_committed,
        timeout_ms=10_000,
    )
    return fetch.responses()


def rows(
    responses: Iterable[FetchedData], wanted: OffsetRange, read_committed: bool
) -> list[Record]:
    """As `pyspark_ottla.read.columns` selects them."""
    found = []
    for response in responses:
        skip = AbortedFilter(response.aborted if read_committed else [])
        for position, header in iterate_entries(response.records):
            assert isinstance(header, BatchHeader)
            if not skip(response.records, position, header):
                found += [
                    record
                    for record in read_batch(response.records, position, header)
                    if response.start <= record.offset < wanted.end
                ]
    return found


def segments_of(
    cluster: TieredCluster, options: RemoteOptions, wanted: OffsetRange
) -> tuple[PlannedSegment, ...]:
    plan = DirectPlanner(options, 10_000).plan(cluster, [wanted])  # type: ignore[arg-type]
    return plan.segments_of(wanted)


def read_directly(
    cluster: TieredCluster,
    options: RemoteOptions,
    wanted: OffsetRange,
    fetch_bytes: int,
    metrics: TaskMetrics,
) -> Iterator[FetchedData]:
    return DirectRead(
        options,
        wanted,
        segments_of(cluster, options, wanted),
        partial(from_broker, cluster),
        fetch_bytes=fetch_bytes,
        read_committed=cluster.options.read_committed,
        metrics=metrics,
    ).responses()


@pytest.mark.parametrize("read_committed", [True, False])
async def test_every_range_as_through_the_broker(
    cluster: TieredCluster, tmp_path: Path, read_committed: bool
) -> None:
    cluster.options.read_committed = read_committed
    end = cluster.scene.log.log_end_offset
    random = Random(7)
    ranges = [(0, end)] + [(random.randrange(end), random.randrange(1, end + 1)) for _ in range(60)]
    for start, stop in ranges:
        wanted = OffsetRange(TP, min(start, stop), max(start, stop), TOPIC_ID)
        metrics = TaskMetrics()
        fetch_bytes = random.choice([1, 3_000, 1 << 20])
        options = remote_options(tmp_path)
        direct = read_directly(cluster, options, wanted, fetch_bytes, metrics)
        through_broker = from_broker(cluster, wanted, 1 << 20)
        assert rows(direct, wanted, read_committed) == rows(through_broker, wanted, read_committed)
        assert metrics.remote_errors == 0
        tiered = wanted.start <= cluster.scene.log.offsets.highest_remote_offset
        assert (metrics.remote_bytes > 0) == (tiered and wanted.size > 0)


async def test_the_broker_reads_the_tail_and_open_transactions_only(
    cluster: TieredCluster, tmp_path: Path
) -> None:
    log = cluster.scene.log
    wanted = OffsetRange(TP, 0, log.log_end_offset, TOPIC_ID)
    options = remote_options(tmp_path)
    assert list(read_directly(cluster, options, wanted, 1 << 20, TaskMetrics()))
    ends = [segment.end for segment in segments_of(cluster, options, wanted)]
    tail = log.offsets.highest_remote_offset + 1
    assert set(cluster.fetched) <= {*(end - 1 for end in ends), tail}
    assert tail in cluster.fetched


def objects(path: Path, kind: str) -> list[Path]:
    return sorted((path / "remote").rglob(f"*.{kind}"))


def spoil(path: Path, fault: str) -> None:
    second = {kind: objects(path, kind)[1] for kind in ("log", "indexes", "rsm-manifest")}
    if fault == "no manifest":
        second["rsm-manifest"].unlink()
    elif fault == "no log":
        second["log"].unlink()
    elif fault == "short log":
        second["log"].write_bytes(second["log"].read_bytes()[:-100])
    elif fault == "last chunk":
        content = bytearray(second["log"].read_bytes())
        content[-1] ^= 1
        second["log"].write_bytes(content)
    elif fault == "indexes":
        content = bytearray(second["indexes"].read_bytes())
        content[:] = bytes(len(content))
        second["indexes"].write_bytes(content)


FAULTS = ["no manifest", "no log", "short log", "last chunk", "indexes"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_the_store_does_not_give_comes_from_the_broker(
    cluster: TieredCluster, tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(tmp_path, fault)
    wanted = OffsetRange(TP, 3, cluster.scene.log.log_end_offset, TOPIC_ID)
    metrics = TaskMetrics()
    direct = read_directly(cluster, remote_options(tmp_path), wanted, 2_000, metrics)
    through_broker = from_broker(cluster, wanted, 1 << 20)
    assert rows(direct, wanted, True) == rows(through_broker, wanted, True)
    assert (metrics.remote_errors, metrics.remote_bytes > 0) == (1, True)
    assert "cannot be read from the store" in caplog.text


@pytest.mark.parametrize("fault", FAULTS)
async def test_or_the_task_fails(cluster: TieredCluster, tmp_path: Path, fault: str) -> None:
    spoil(tmp_path, fault)
    wanted = OffsetRange(TP, 0, cluster.scene.log.log_end_offset, TOPIC_ID)
    options = remote_options(tmp_path, on_error="fail")
    with pytest.raises(ConnectorError, match=r"\[REMOTE_READ_FAILED\] Offsets \d+ to \d+ of t-0"):
        list(read_directly(cluster, options, wanted, 2_000, TaskMetrics()))


async def test_a_store_that_cannot_be_opened_fails_the_task(
    cluster: TieredCluster, tmp_path: Path
) -> None:
    wanted = OffsetRange(TP, 0, cluster.scene.log.log_end_offset, TOPIC_ID)
    options = remote_options(tmp_path / "elsewhere")
    with pytest.raises(ConnectorError, match=r"\[INVALID_OPTION\].*does not exist"):
        list(read_directly(cluster, options, wanted, 2_000, TaskMetrics()))
