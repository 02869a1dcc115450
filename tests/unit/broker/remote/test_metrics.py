"""The metrics of remote storage: what is counted by topic, and what is left to do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.broker.metrics.statistics import HistogramReading, MetricsRegistry
from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.remote.metrics import add_remote_storage, remote_report
from ottla.broker.remote.remote_log_reader import ReadParams, RemoteLogReader
from ottla.broker.remote.statistics import PartitionProgress, RemoteStatistics
from tests.doubles.eventually import eventually_async
from tests.doubles.tiered_broker import KEY, TieredBroker
from tests.doubles.tiered_history import remote_read
from tests.doubles.tiered_partition import PARTITION


class Scene(TieredBroker):
    """A broker that leads one tiered partition, and its metrics."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reader = RemoteLogReader(
            *(self.manager, self.manager.readers, ReplicationQuota(), lambda: 1_000),
            threads=2,
            statistics=self.manager.statistics,
        )
        self.registry = MetricsRegistry()
        add_remote_storage(self.registry, self.manager, self.reader)

    def metrics(self) -> dict[str, float]:
        """By name without the prefix: the values of topic t, and those without a topic."""
        for prepare in self.registry.preparations:
            for _ in prepare():
                pass
        found: dict[str, float] = {}
        for metric in self.registry.metrics:
            value = metric.read()
            name = metric.name.removeprefix("ottla_remote_")
            if isinstance(value, int | float):
                found[name] = value
                continue
            for labels, number in dict(value).items():
                if labels in (("t",), ("copy",)):
                    assert not isinstance(number, HistogramReading)
                    found[name] = number
        return found

    async def wait_for(self, **expected: float) -> None:
        await eventually_async(lambda: self.metrics().items() >= expected.items(), self.metrics)

    def read_times(self) -> int:
        (metric,) = [each for each in self.registry.metrics if each.kind == "histogram"]
        ((_, reading),) = dict(metric.read()).items()  # type: ignore[arg-type]  # a histogram
        assert isinstance(reading, HistogramReading)
        return sum(reading.buckets)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    scene.manager.startup()
    yield scene
    await scene.stop()


async def test_copies_retention_and_reads(scene: Scene) -> None:
    log, storage = scene.scene.log, scene.scene.storage
    scene.scene.append(4)
    size = log.segments.first.size
    storage.fail = ["copy"]
    scene.manager.on_leadership([scene.replica], [])
    # A segment is in the metadata before its copy is counted.
    await scene.wait_for(metadata_count=3, size_bytes=3 * size, failing_partitions=0)
    await scene.wait_for(copies=4, copy_errors=1, copied_bytes=3 * size)
    await scene.wait_for(copy_lag_segments=0, copy_lag_bytes=0)
    await scene.wait_for(delete_lag_segments=0, delete_lag_bytes=0)
    assert scene.metrics()["task_idle_ratio"] > 0

    assert scene.scene.expire_locally() == 3
    # The last segment is closed, too, and copied.
    await scene.wait_for(metadata_count=4)
    result = await remote_read(scene.reader, log, ReadParams(0, 1_000, 6, True, False))
    storage.fail = ["fetch"]
    await remote_read(scene.reader, log, ReadParams(2, 1_000, 6, True, False))
    found = scene.metrics()
    assert (found["reads"], found["read_errors"]) == (2, 1)
    assert found["read_bytes"] == len(result.records)
    assert scene.read_times() == 2
    await scene.wait_for(reads_pending=0, reader_idle_ratio=1)

    storage.fail = ["delete"]
    log.update_config(log.config.replace(retention_bytes=2 * size))
    await scene.wait_for(metadata_count=2, size_bytes=2 * size)
    # What the failed copy left, two expired segments, and one of them again.
    await scene.wait_for(deletes=4, delete_errors=1)


async def test_the_lag_while_the_store_is_away(scene: Scene) -> None:
    scene.scene.append(4)
    size = scene.scene.log.segments.first.size
    storage = scene.scene.storage
    storage.fail = ["copy"] * 100_000
    scene.manager.on_leadership([scene.replica], [])
    await eventually_async(lambda: scene.metrics().get("copy_errors", 0) > 1)
    found = scene.metrics()
    assert (found["copy_lag_segments"], found["copy_lag_bytes"]) == (3, 3 * size)
    storage.fail = []
    await eventually_async(lambda: scene.metrics()["copy_lag_segments"] == 0)
    await eventually_async(lambda: scene.metrics()["size_bytes"] == 3 * size)
    storage.fail = ["delete"] * 100_000
    log = scene.scene.log
    log.update_config(log.config.replace(retention_bytes=1))
    await eventually_async(lambda: scene.metrics()["delete_lag_segments"] == 3)
    assert scene.metrics()["delete_lag_bytes"] == 3 * size
    storage.fail = []
    await eventually_async(lambda: scene.metrics()["metadata_count"] == 0)


async def test_a_partition_that_is_not_led_any_more_has_no_lag(scene: Scene) -> None:
    scene.scene.append(3)
    scene.manager.on_leadership([scene.replica], [])
    await eventually_async(lambda: scene.metrics().get("metadata_count") == 2)
    scene.replica.is_leader = False
    scene.manager.on_leadership([], [scene.replica])
    assert "metadata_count" not in scene.metrics()
    assert scene.metrics()["copies"] == 2
    scene.manager.on_stopped(KEY, is_deleted=True, with_topic=False)
    assert "copies" not in scene.metrics()
    assert scene.scene.metadata.is_initialized(PARTITION) is False


class Logs:
    """Two partitions of topic a, and one of b that is not led here."""

    def __init__(self) -> None:
        self.statistics = RemoteStatistics()
        self.statistics.topic("a").copies = 3
        self.statistics.topic("b").reads = 1

    def progress(self) -> list[tuple[str, PartitionProgress]]:
        found = []
        for size in (10, 5):
            progress = PartitionProgress()
            progress.size_bytes = size
            found.append(("a", progress))
        return found

    def problem(self) -> str | None:
        return "the store is away"


def test_counts_and_sums_by_topic() -> None:
    report = json.loads(remote_report(Logs()))
    assert report["problem"] == "the store is away"
    topics = report["topics"]
    assert (topics["a"]["copies"], topics["a"]["size_bytes"]) == (3, 15)
    assert topics["b"]["reads"] == 1
    assert "size_bytes" not in topics["b"]
