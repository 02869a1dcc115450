from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.remote.index_cache import CachedIndexes
from ottla.storage.files.fs import RealFileSystem, read_file
from ottla.storage.remote.remote_storage import (
    NoRemoteIndexError,
    RemoteIndexType,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from ottla.storage.remote.segments import RemoteLogSegmentMetadata
from tests.doubles.storage_logs import NOW_MS, batch_of
from tests.doubles.tiered_partition import PARTITION, TieredPartition


async def copied(tmp_path: Path) -> tuple[TieredPartition, RemoteLogSegmentMetadata]:
    """A partition, and its one segment in remote storage."""
    scene = TieredPartition(tmp_path)
    await scene.start()
    scene.append(2)
    await scene.copy()
    (segment,) = scene.metadata.cache(PARTITION).segments()
    return scene, segment


async def test_an_index_is_read_once_and_errors_are_not_kept(tmp_path: Path) -> None:
    scene, segment = await copied(tmp_path)
    cached = CachedIndexes(scene.storage)
    scene.storage.fail = ["fetch"]
    with pytest.raises(RemoteStorageError):
        cached.fetch_index(segment, RemoteIndexType.TIMESTAMP)
    index = cached.fetch_index(segment, RemoteIndexType.TIMESTAMP)
    assert index == scene.storage.fetch_index(segment, RemoteIndexType.TIMESTAMP)
    scene.storage.fail = ["fetch"]
    assert cached.fetch_index(segment, RemoteIndexType.TIMESTAMP) == index
    assert cached.size_bytes == len(index)
    scene.storage.fail = []
    with pytest.raises(NoRemoteIndexError):
        cached.fetch_index(segment, RemoteIndexType.TRANSACTION)
    assert cached.fetch_log_segment(segment, 0, 10) == scene.storage.fetch_log_segment(
        segment, 0, 10
    )
    none = CachedIndexes(scene.storage, 1)
    none.fetch_index(segment, RemoteIndexType.TIMESTAMP)
    assert none.size_bytes == 0
    await scene.stop()


async def test_what_a_missing_segment_has_is_not_known(tmp_path: Path) -> None:
    """Neither that it has no aborted transaction nor that it has no producers is kept."""
    scene, segment = await copied(tmp_path)
    cached = CachedIndexes(scene.storage)
    objects = scene.storage.objects.pop(segment.segment_id.id)
    with pytest.raises(RemoteResourceNotFoundError):
        cached.fetch_index(segment, RemoteIndexType.TRANSACTION)
    assert cached.index_if_cached(segment, RemoteIndexType.TRANSACTION) is None
    with pytest.raises(RemoteResourceNotFoundError):
        cached.first_open_offset(segment)
    scene.storage.objects[segment.segment_id.id] = objects
    assert cached.first_open_offset(segment) is None
    with pytest.raises(NoRemoteIndexError):
        cached.fetch_index(segment, RemoteIndexType.TRANSACTION)
    assert cached.index_if_cached(segment, RemoteIndexType.TRANSACTION) == b""
    await scene.stop()


async def test_the_oldest_open_transaction_at_the_end_of_a_segment(tmp_path: Path) -> None:
    scene = TieredPartition(tmp_path)
    await scene.start()
    scene.append(1)
    scene.log.roll(NOW_MS)
    for producer in (5, 6):
        batch = batch_of(
            1, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
        )
        scene.log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    scene.log.update_high_watermark(scene.log.log_end_offset)
    await scene.copy()
    (first,) = scene.metadata.cache(PARTITION).segments()
    cached = CachedIndexes(scene.storage)
    assert cached.first_open_offset(first) is None
    # As it would be at the end of the next segment.
    scene.log.roll(NOW_MS)
    path = scene.log.producer_state.snapshot_path(scene.log.log_end_offset)
    snapshot = read_file(RealFileSystem(), path, 1 << 20)
    objects = scene.storage.objects[first.segment_id.id]
    objects[RemoteIndexType.PRODUCER_SNAPSHOT.value] = snapshot
    assert CachedIndexes(scene.storage).first_open_offset(first) == 2
    assert cached.first_open_offset(first) is None  # read once
    del objects[RemoteIndexType.PRODUCER_SNAPSHOT.value]
    assert CachedIndexes(scene.storage).first_open_offset(first) == -1
    await scene.stop()
