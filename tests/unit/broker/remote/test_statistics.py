"""What is counted of copies and deletions, and that it is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.broker.remote.remote_problems import RemoteProblems
from ottla.broker.remote.statistics import add_remote_storage
from ottla.storage.remote.remote_storage import RemoteStorageError
from tests.doubles.tiered_partition import PARTITION, TieredPartition


async def test_copies_and_deletions_are_counted(tmp_path: Path) -> None:
    scene = TieredPartition(tmp_path)
    await scene.start()
    problems = RemoteProblems()
    registry = MetricsRegistry()
    add_remote_storage(registry, scene.remote.statistics, problems)
    reading = {metric.name: metric.read for metric in registry.metrics}
    scene.append(3)
    assert await scene.copy() == 2
    segments = scene.metadata.cache(PARTITION).segments()
    scene.append(1)
    scene.storage.fail = ["copy", "delete"]
    with pytest.raises(RemoteStorageError) as caught:
        await scene.copy()
    problems.failed(PARTITION, "copy", caught.value)
    await scene.remote.delete(segments[0])
    assert reading["ottla_remote_copies"]() == 3
    assert reading["ottla_remote_copied_bytes"]() == sum(each.size_bytes for each in segments)
    assert reading["ottla_remote_copy_errors"]() == 1
    assert reading["ottla_remote_deletes"]() == 2
    assert reading["ottla_remote_delete_errors"]() == 1
    assert reading["ottla_remote_failing_partitions"]() == {
        ("copy",): 1,
        ("expiration",): 0,
        ("deletion",): 0,
    }
    await scene.stop()
