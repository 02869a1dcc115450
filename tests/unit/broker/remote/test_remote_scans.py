"""Scans of remote segments: what is not looked up again, and when it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.remote import remote_scans
from ottla.broker.remote.index_cache import CachedIndexes
from ottla.broker.remote.memory_reads import MemoryReads
from ottla.broker.remote.remote_log_reader import ReadParams, RemoteLogReader
from ottla.broker.remote.remote_scans import RemoteScans
from ottla.broker.remote.segment_reader import RemoteRead, read_segment
from ottla.broker.remote.statistics import TopicRemoteStatistics
from ottla.broker.runtime.tasks import WorkerPool
from ottla.protocol.records.reader import iterate_entries
from ottla.storage.files.open_files import FileSlice
from ottla.storage.remote.open_remote_storage import open_remote_storage
from tests.doubles.page_cache import everything_is_cached
from tests.doubles.storage_logs import NOW_MS, batch_of, plain
from tests.doubles.tiered_history import (
    RemoteLogsOf,
    append_history,
    content,
    local_read,
    remote_read,
)
from tests.doubles.tiered_partition import PARTITION, TieredPartition

ALL = 1 << 40


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TieredPartition]:
    everything_is_cached(monkeypatch)
    (tmp_path / "remote").mkdir()
    (tmp_path / "logs").mkdir()
    scene = TieredPartition(tmp_path / "logs")
    folder = {"storage.backend.class": "filesystem", "storage.root": str(tmp_path / "remote")}
    scene.remote.storage = open_remote_storage({**folder, "chunk.size": "1024"}, sends_files=True)
    await scene.start()
    yield scene
    await scene.stop()


@pytest.mark.parametrize("committed", [False, True])
async def test_a_scan_returns_what_the_local_log_returned(
    scene: TieredPartition, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    log = scene.log
    append_history(scene)
    for _ in range(60):  # without transactions
        log.append(batch_of(plain(3, NOW_MS)), leader_epoch=9, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.roll(NOW_MS)
    expected = []
    for max_bytes in (400, 900, 2000):
        offset = 0
        while offset < log.log_end_offset:
            wanted = ReadParams(offset, max_bytes, ALL, True, committed)
            expected.append((wanted, local_read(log, wanted)))
            read = log.read(offset, max_bytes, up_to=ALL, min_one_batch=True, read_committed=False)
            assert read.slice is not None
            offset = _end_of(read.slice)
    await scene.copy()
    assert scene.expire_locally() > 0
    pool = WorkerPool(threads=1)
    reader = RemoteLogReader(RemoteLogsOf(scene), pool, ReplicationQuota(), lambda: 0)
    continued = 0
    read_on = RemoteScans.read_on

    def counted(*given: object, **more: object) -> object:
        nonlocal continued
        found = read_on(*given, **more)  # type: ignore[arg-type]
        continued += found is not None
        return found

    monkeypatch.setattr(RemoteScans, "read_on", counted)
    for wanted, (records, aborted) in expected:
        result = reader.read_in_memory(log, wanted) or await remote_read(reader, log, wanted)
        assert content(result) == records, wanted
        assert result.aborted_transactions == aborted, wanted
    assert continued > len(expected) // 8
    assert reader.statistics.topic(log.topic).reads == len(expected)
    reader.close()
    await pool.close()


def _end_of(part: FileSlice) -> int:
    *_, (_, header) = iterate_entries(memoryview(part.read()))
    return header.next_offset


def _truncate(scene: TieredPartition) -> None:
    scene.log.offsets.truncations += 1


def _configure(scene: TieredPartition) -> None:
    scene.log.update_config(scene.log.config.replace(index_interval_bytes=77))


def _lead(scene: TieredPartition) -> None:
    scene.log.leader_epochs.assign(99, scene.log.log_end_offset)


def _delete(scene: TieredPartition) -> None:
    scene.remote.storage.delete_log_segment(scene.metadata.cache(PARTITION).segments()[0])


def _forget(scene: TieredPartition) -> None:
    scene.metadata.unassign([PARTITION])


def _nothing(_: TieredPartition) -> None:
    return


@pytest.mark.parametrize(
    ("change", "is_known"),
    [
        (_nothing, True),
        *((change, False) for change in (_truncate, _configure, _lead, _delete, _forget)),
    ],
)
async def test_a_scan_ends_when_its_segment_may_be_another_one(
    scene: TieredPartition, change: Callable[[TieredPartition], None], is_known: bool
) -> None:
    scans, first = await _scan(scene)
    change(scene)
    found = scans.read_on(scene.log, first.next_offset, 2000, ALL, read_committed=False)
    assert (found is not None) == is_known
    assert scans.read_on(scene.log, first.next_offset, 2000, ALL, read_committed=False) is None


async def test_a_scan_is_of_one_log_and_below_one_bound(scene: TieredPartition) -> None:
    for given in ("other offset", "committed", "bound", "too small"):
        scans, first = await _scan(scene)
        offset = first.next_offset + (given == "other offset")
        up_to = offset + 1 if given == "bound" else ALL
        max_bytes = 10 if given == "too small" else 2000
        committed = given == "committed"
        found = scans.read_on(scene.log, offset, max_bytes, up_to, read_committed=committed)
        assert found is None, given


async def test_a_new_record_of_the_metadata_ends_scans(scene: TieredPartition) -> None:
    scans, first = await _scan(scene)
    scene.log.append(batch_of(plain(3, NOW_MS)), leader_epoch=9, now_ms=NOW_MS)
    scene.log.update_high_watermark(scene.log.log_end_offset)
    scene.log.roll(NOW_MS)
    await scene.copy()
    assert scans.read_on(scene.log, first.next_offset, 2000, ALL, read_committed=False) is None


async def test_few_scans_are_remembered(
    scene: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_scans, "_MAX_SCANS", 0)
    scans, first = await _scan(scene)
    assert scans.read_on(scene.log, first.next_offset, 2000, ALL, read_committed=False) is None


async def _scan(scene: TieredPartition) -> tuple[RemoteScans, RemoteRead]:
    """A scan whose first read has ended."""
    log = scene.log
    for _ in range(60):
        log.append(batch_of(plain(3, NOW_MS)), leader_epoch=9, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.roll(NOW_MS)
    await scene.copy()
    metadata = scene.metadata.cache(PARTITION).segments()[0]
    indexes = CachedIndexes(scene.remote.storage)
    memory = MemoryReads(indexes)
    # All chunks are verified by this.
    read_segment(indexes, metadata, metadata.start_offset, ALL, up_to=ALL)
    first = read_segment(indexes, metadata, metadata.start_offset, 500, up_to=ALL)
    scans = RemoteScans(scene.metadata, memory)
    scans.begin(log, metadata, first, TopicRemoteStatistics(), read_committed=False)
    return scans, first
