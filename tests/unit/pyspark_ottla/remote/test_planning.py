"""Which offsets are planned to come from the store, and where tasks are cut."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.options.remote_options import RemoteOptions
from pyspark_ottla.remote import planning
from pyspark_ottla.remote.planning import DirectPlan, DirectPlanner
from pyspark_ottla.remote.segment import PlannedSegment
from tests.doubles.tiered_cluster import TP, TieredCluster, tiered_transactions
from tests.doubles.tiered_partition import PARTITION


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[TieredCluster]:
    async with tiered_transactions(tmp_path) as scene:
        yield TieredCluster(scene)


def plan(cluster: TieredCluster, start: int, end: int, on_error: str = "broker") -> DirectPlan:
    wanted = OffsetRange(TP, start, end)
    options = RemoteOptions("direct", on_error)
    return DirectPlanner(options, 1_000).plan(cluster, [wanted])  # type: ignore[arg-type]


def segment(start: int, end: int, size: int) -> PlannedSegment:
    return PlannedSegment("0", "t", 0, "1", start, end, size, None)


def cuts(found: DirectPlan, start: int, end: int) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in found.cut([OffsetRange(TP, start, end)])]


def test_tasks_are_cut_between_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "TASK_BYTES", 100)
    sizes = [40, 60, 150, 30, 30]
    found = DirectPlan({
        TP: [segment(10 * n, 10 * n + 10, size) for n, size in enumerate(sizes)]
    })  # fmt: skip
    assert cuts(found, 0, 70) == [(0, 20), (20, 30), (30, 50), (50, 70)]
    assert cuts(found, 5, 45) == [(5, 20), (20, 30), (30, 45)]
    assert cuts(found, 60, 70) == [(60, 70)]
    assert [each.start for each in found.segments_of(OffsetRange(TP, 10, 21))] == [10, 20]
    assert found.segments_of(OffsetRange(TP, 50, 70)) == ()


async def test_the_copied_segments_are_planned(cluster: TieredCluster) -> None:
    log = cluster.scene.log
    found = plan(cluster, 0, log.log_end_offset)
    segments = found.segments_of(OffsetRange(TP, 0, log.log_end_offset))
    assert len(segments) == 3
    assert segments[-1].end == log.offsets.highest_remote_offset + 1 < log.log_end_offset
    assert cuts(found, 0, log.log_end_offset) == [
        (0, segments[-1].end),
        (segments[-1].end, log.log_end_offset),
    ]


async def test_the_tail_needs_no_look_at_the_metadata(cluster: TieredCluster) -> None:
    log = cluster.scene.log
    found = plan(cluster, log.offsets.highest_remote_offset + 1, log.log_end_offset)
    assert found.segments_of(OffsetRange(TP, 0, log.log_end_offset)) == ()
    assert cluster.requests == {"offsets": 2}


async def test_a_leader_that_does_not_know_the_tiered_end_yet(cluster: TieredCluster) -> None:
    cluster.latest_tiered = -1
    assert cluster.scene.expire_locally() > 0
    assert len(plan(cluster, 0, 50).segments_of(OffsetRange(TP, 0, 50))) > 0


async def test_segments_of_another_history_are_not_planned(cluster: TieredCluster) -> None:
    """After an unclean election: the log has other records from the second epoch on."""
    log = cluster.scene.log
    end = log.log_end_offset
    log.leader_epochs.truncate_from_end(log.leader_epochs.entries[1][1])
    log.leader_epochs.assign(9, log.offsets.highest_remote_offset + 1)
    segments = plan(cluster, 0, end).segments_of(OffsetRange(TP, 0, end))
    all_of_one_epoch = [
        metadata
        for metadata in cluster.scene.metadata.cache(PARTITION).segments()
        if set(metadata.leader_epochs) == {0}
    ]
    assert len(segments) == len(all_of_one_epoch) < 3


async def test_errors_of_planning(cluster: TieredCluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.metadata_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert plan(cluster, 0, 50).segments_of(OffsetRange(TP, 0, 50)) == ()
    assert "read through the broker" in caplog.text
    with pytest.raises(ConnectorError, match="NOT_AUTHORIZED"):
        plan(cluster, 0, 50, on_error="fail")
