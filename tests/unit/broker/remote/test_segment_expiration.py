"""SegmentExpiration: what retention deletes in remote storage, and what failures leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.remote.segment_expiration import (
    ABANDONED_COPY_MS,
    SegmentExpiration,
    delete_partition,
)
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentState,
)
from tests.doubles.storage_logs import NOW_MS
from tests.doubles.tiered_partition import HOUR_MS, PARTITION, TieredPartition

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[TieredPartition]:
    """Four segments of two records in remote storage, the last two on this disk as well."""
    scene = TieredPartition(tmp_path)
    await scene.start()
    scene.append(5)
    assert await scene.copy() == 4
    scene.log.update_config(scene.log.config.replace(local_retention_ms=-1))
    yield scene
    await scene.stop()


async def expire(scene: TieredPartition) -> int:
    return await SegmentExpiration(scene.remote, PARTITION).run(scene.log, lambda: scene.is_leader)


def starts(scene: TieredPartition) -> list[int]:
    return [each.start_offset for each in scene.metadata.cache(PARTITION).segments()]


def configure(scene: TieredPartition, **settings: object) -> None:
    scene.log.update_config(scene.log.config.replace(**settings))


async def test_without_limits_nothing_is_deleted(scene: TieredPartition) -> None:
    assert await expire(scene) == 0
    assert starts(scene) == [0, 2, 4, 6]


async def test_by_time_the_log_start_advances(scene: TieredPartition) -> None:
    configure(scene, retention_ms=HOUR_MS)
    scene.now_ms = NOW_MS + 3 * HOUR_MS + 1  # the segments are two hours apart
    assert await expire(scene) == 2
    assert starts(scene) == [4, 6]
    assert len(scene.storage.objects) == 2
    assert scene.log.log_start_offset == 4
    assert await expire(scene) == 0


async def test_by_size_local_and_remote_segments_count_once(scene: TieredPartition) -> None:
    one = scene.log.segments.first.size
    configure(scene, retention_bytes=5 * one)
    assert await expire(scene) == 0
    configure(scene, retention_bytes=3 * one)
    assert await expire(scene) == 2
    assert scene.log.log_start_offset == 4
    scene.expire_locally()
    assert await expire(scene) == 0


async def test_below_the_log_start(scene: TieredPartition) -> None:
    scene.log.truncator.delete_records_before(5)
    assert await expire(scene) == 2
    assert starts(scene) == [4, 6]
    assert scene.log.log_start_offset == 5


async def test_only_the_leader_deletes(scene: TieredPartition) -> None:
    configure(scene, retention_ms=0)
    scene.is_leader = False
    assert await expire(scene) == 0
    assert scene.log.log_start_offset == 0


@pytest.mark.parametrize("step", ["delete", "deleted"])
async def test_a_failed_deletion_is_repeated(
    scene: TieredPartition, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    configure(scene, retention_ms=HOUR_MS)
    scene.now_ms = NOW_MS + 3 * HOUR_MS + 1
    scene.storage.fail = [step]
    assert await expire(scene) == 1
    assert "Cannot delete remote segment" in caplog.text
    states = [each.state for each in scene.metadata.cache(PARTITION).segments()]
    assert states == [DELETE_STARTED, FINISHED, FINISHED]
    assert scene.metadata.cache(PARTITION).segment_at(0, 0) is None
    assert await expire(scene) == 1
    assert len(scene.storage.objects) == 2


async def test_what_a_dead_broker_began_to_copy_is_deleted_after_an_hour(
    scene: TieredPartition,
) -> None:
    before = scene.metadata.cache(PARTITION).segments()[0]
    segment_id = RemoteLogSegmentId(PARTITION, UUID(int=99))
    state = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    begun = replace(before, segment_id=segment_id, state=state, event_timestamp_ms=scene.now_ms)
    await scene.metadata.store(begun)
    scene.storage.objects[segment_id.id] = {"log": b""}
    assert await expire(scene) == 0
    scene.now_ms += ABANDONED_COPY_MS
    scene.remote.being_copied.add(segment_id)
    assert await expire(scene) == 0
    scene.remote.being_copied.clear()
    assert await expire(scene) == 1
    assert len(scene.storage.objects) == 4


async def test_segments_of_epochs_before_the_first_one_are_deleted_after_their_retention(
    scene: TieredPartition, caplog: pytest.LogCaptureFixture
) -> None:
    """The log was lost, and another broker leads: they have the only records that are left."""
    scene.log.leader_epochs.replace([(2, 0)])
    assert await expire(scene) == 0
    assert "4 remote segments up to offset 7 have leader epochs before the first" in caplog.text
    configure(scene, retention_ms=HOUR_MS)
    scene.now_ms = NOW_MS + 3 * HOUR_MS + 1
    assert await expire(scene) == 2
    scene.now_ms = NOW_MS + 8 * HOUR_MS + 1
    assert await expire(scene) == 2
    assert scene.storage.objects == {}
    assert scene.log.log_start_offset == 0


async def test_records_of_another_history_are_not_counted(scene: TieredPartition) -> None:
    scene.log.leader_epochs.replace([(0, 0), (2, 5)])
    configure(scene, retention_ms=0)
    scene.now_ms = NOW_MS + 1_000 * HOUR_MS
    assert await expire(scene) == 2
    assert starts(scene) == [4, 6]
    assert scene.log.log_start_offset == 4


async def test_a_deleted_topic_leaves_nothing(scene: TieredPartition) -> None:
    scene.storage.fail = ["delete"]
    with pytest.raises(RemoteStorageError):
        await delete_partition(scene.remote, PARTITION)
    assert scene.metadata.deletion(PARTITION) is not None
    assert await delete_partition(scene.remote, PARTITION) == 4
    assert scene.storage.objects == {}
    assert scene.metadata.deletion(PARTITION) is None


async def test_by_size_after_a_start(scene: TieredPartition) -> None:
    configure(scene, retention_bytes=5 * scene.log.segments.first.size)
    scene.log.offsets.highest_remote_offset = -1  # the copier has not run yet
    assert await expire(scene) == 0
    assert scene.log.log_start_offset == 0


async def test_by_size_segments_below_the_log_start_do_not_count(scene: TieredPartition) -> None:
    configure(scene, retention_bytes=3 * scene.log.segments.first.size)
    scene.log.truncator.delete_records_before(4)  # or a leader that ended before its deletions
    assert await expire(scene) == 2
    assert scene.log.log_start_offset == 4
