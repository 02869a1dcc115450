"""SegmentCopier: what is copied, in which order, and what each failure leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.broker.remote.lineage import highest_remote_offset
from ottla.protocol.records.batch import patch_max_timestamp
from ottla.storage.log.log import Log
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import RemoteLogSegmentState
from tests.doubles.remote_metadata_topic import UNREACHABLE
from tests.doubles.storage_logs import NOW_MS, batch_of, plain
from tests.doubles.tiered_partition import PARTITION, TieredPartition

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[TieredPartition]:
    scene = TieredPartition(tmp_path)
    await scene.start()
    yield scene
    await scene.stop()


def content(log: Log, number: int) -> bytes:
    return Path(list(log.segments)[number].log.path).read_bytes()


async def test_closed_segments_are_copied_in_order_with_their_files(scene: TieredPartition) -> None:
    scene.append(2)
    scene.append(2, epoch=3)
    assert await scene.copy() == 3
    segments = scene.metadata.cache(PARTITION).segments()
    assert [(each.start_offset, each.end_offset) for each in segments] == [(0, 1), (2, 3), (4, 5)]
    assert [each.leader_epochs for each in segments] == [{0: 0}, {0: 2}, {3: 4}]
    assert scene.states() == [FINISHED] * 3
    for number, each in enumerate(segments):
        objects = scene.storage.objects[each.segment_id.id]
        assert objects["log"] == content(scene.log, number)
        assert len(objects["log"]) == each.size_bytes
        assert len(objects["timeindex"]) == 12
    last = scene.storage.objects[segments[2].segment_id.id]
    assert last["leader-epoch-checkpoint"] == b"0\n2\n0 0\n3 4\n"
    assert scene.log.recovery_point >= 6
    assert await scene.copy() == 0
    assert scene.expire_locally() == 3
    assert (scene.log.log_start_offset, scene.log.local_log_start_offset) == (0, 6)


@pytest.mark.parametrize("lie", [-1, 4_102_444_800_000], ids=["none", "2100"])
async def test_the_newest_timestamp_of_a_segment_is_that_of_its_records(
    scene: TieredPartition, lie: int
) -> None:
    for number in range(3):
        batch = batch_of(plain(2, NOW_MS + number * 1_000, size=1_000))
        patch_max_timestamp(batch, 0, 0, lie)
        scene.log.append(batch, leader_epoch=0, now_ms=NOW_MS)
        scene.log.roll(NOW_MS)
    scene.log.update_high_watermark(scene.log.log_end_offset)
    assert await scene.copy() == 3
    segments = scene.metadata.cache(PARTITION).segments()
    newest = [NOW_MS + number * 1_000 + 1 for number in range(3)]
    assert [each.max_timestamp_ms for each in segments] == newest


async def test_what_is_not_decided_is_not_copied(scene: TieredPartition) -> None:
    scene.append(3)
    scene.log.offsets.first_unstable_offset = 3  # an open transaction
    assert await scene.copy() == 1


async def test_a_segment_below_the_log_start_is_not_copied(scene: TieredPartition) -> None:
    scene.append(4)
    scene.log.truncator.delete_records_before(3)
    assert await scene.copy() == 2
    assert [each.start_offset for each in scene.metadata.cache(PARTITION).segments()] == [2, 4]


async def test_the_quota_and_leadership_end_a_run(scene: TieredPartition) -> None:
    scene.append(4)
    scene.quota.limit = 1
    assert await scene.copy() == 1
    scene.quota.limit = 1 << 60
    scene.is_leader = False
    assert await scene.copy() == 0
    scene.is_leader = True
    scene.log.update_config(scene.log.config.replace(remote_log_copy_disable=True))
    assert await scene.copy() == 0
    scene.log.update_config(scene.log.config.replace(remote_log_copy_disable=False))
    assert await scene.copy() == 2


@pytest.mark.parametrize("step", ["copy", "copied"])
async def test_a_failed_copy_is_deleted_and_repeated(scene: TieredPartition, step: str) -> None:
    scene.append(2)
    scene.storage.fail = [step]
    with pytest.raises(RemoteStorageError):
        await scene.copy()
    assert scene.storage.objects == {}
    assert scene.states() == []
    assert scene.expire_locally() == 0
    assert await scene.copy() == 1
    assert len(scene.storage.objects) == 1
    assert scene.remote.being_copied == set()


async def test_a_failed_copy_that_cannot_be_deleted_is_found_later(scene: TieredPartition) -> None:
    scene.append(2)
    scene.storage.fail = ["copied", "delete"]
    with pytest.raises(RemoteStorageError):
        await scene.copy()
    assert scene.states() == [DELETE_STARTED]
    assert len(scene.storage.objects) == 1
    assert scene.expire_locally() == 0


@pytest.mark.parametrize("committed", [True, False])
async def test_an_unknown_outcome_of_the_last_record_loses_nothing(
    scene: TieredPartition, committed: bool
) -> None:
    scene.append(2)
    append, calls = scene.topic.append, 0

    async def lose(partition: int, value: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:  # COPY_SEGMENT_FINISHED
            if committed:
                await append(partition, value)
            raise UNREACHABLE
        return await append(partition, value)

    scene.topic.append = lose  # type: ignore[method-assign]
    with pytest.raises(RemoteStorageError):
        await scene.copy()
    assert len(scene.storage.objects) == 1  # readers may have seen it
    await scene.metadata.catch_up(PARTITION)
    assert await scene.copy() == (0 if committed else 1)
    cache = scene.metadata.cache(PARTITION)
    readable = cache.segment_at(0, 1)
    assert readable is not None
    assert readable.segment_id.id in scene.storage.objects
    assert scene.expire_locally() == 1


async def test_too_much_custom_metadata_stops_the_copies(
    scene: TieredPartition, caplog: pytest.LogCaptureFixture
) -> None:
    scene.append(3)
    scene.storage.custom_metadata = bytes(9)
    with pytest.raises(RemoteStorageError, match="9 bytes of custom metadata"):
        await scene.copy()
    assert await scene.copy() == 0
    assert scene.storage.objects == {}
    assert "Stopped copying to remote storage" in caplog.text
    scene.storage.custom_metadata = bytes(8)
    scene.copier = scene.new_copier()
    assert await scene.copy() == 2


async def test_another_leader_continues_where_the_first_one_stopped(scene: TieredPartition) -> None:
    scene.append(3)
    assert await scene.copy() == 2
    scene.append(2, epoch=1)
    scene.copier = scene.new_copier()
    scene.log.offsets.highest_remote_offset = -1
    assert await scene.copy() == 2
    epochs = scene.log.leader_epochs.entries
    cache = scene.metadata.cache(PARTITION)
    assert highest_remote_offset(cache, epochs, scene.log.log_end_offset) == 7
