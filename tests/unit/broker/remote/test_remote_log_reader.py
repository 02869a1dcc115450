"""Reads of remote storage return what the local log returned before its segments were deleted."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.remote.remote_log_reader import (
    ReadParams,
    RemoteLogReader,
    TooManyReadsError,
)
from ottla.broker.runtime.tasks import WorkerPool
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.remote.chunk_cache import ChunkCache
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import RemoteIndexType, RemoteStorageError
from ottla.storage.remote.segments import RemoteLogSegmentMetadata
from tests.doubles.eventually import eventually_async
from tests.doubles.storage_logs import NOW_MS, batch_of, marker, plain
from tests.doubles.tiered_history import (
    RemoteLogsOf,
    append_history,
    content,
    local_read,
    remote_read,
)
from tests.doubles.tiered_partition import PARTITION, TieredPartition

ALL = 1 << 40


class Scene:
    """A partition with its reader; time stands still unless `now_ms` is set."""

    def __init__(self, path: Path) -> None:
        self.tiered = TieredPartition(path)
        self.log = self.tiered.log
        self.storage = self.tiered.storage
        self.quota = ReplicationQuota()
        self.pools: list[WorkerPool] = []
        self.now_ms = 100_000
        self.reader = self.new_reader()

    def new_reader(self, **limits: int) -> RemoteLogReader:
        logs, workers = RemoteLogsOf(self.tiered), WorkerPool(threads=limits.get("threads", 2))
        self.pools.append(workers)
        return RemoteLogReader(logs, workers, self.quota, lambda: self.now_ms, **limits)

    async def close(self) -> None:
        self.reader.close()
        for pool in self.pools:
            await pool.close()
        await self.tiered.stop()

    async def tier(self) -> None:
        await self.tiered.copy()
        assert self.tiered.expire_locally() > 0


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    await scene.tiered.start()
    yield scene
    await scene.close()


def params(
    offset: int, max_bytes: int = 1 << 20, *, first: bool = True, committed: bool = False
) -> ReadParams:
    return ReadParams(offset, max_bytes, ALL, first, committed)


async def test_every_read_is_that_of_the_local_log(scene: Scene) -> None:
    append_history(scene.tiered)
    log, choose = scene.log, random.Random(5)
    end = log.log_end_offset
    wanted = [
        ReadParams(
            choose.randrange(end),
            choose.choice([0, 100, 700, 5_000, 1 << 20]),
            choose.choice([end, choose.randrange(end)]),
            choose.random() < 0.7,
            choose.random() < 0.7,
        )
        for _ in range(100)
    ]
    before = {each: local_read(log, each) for each in wanted}
    await scene.tier()
    assert log.local_log_start_offset == end
    found_aborted = False
    for each in wanted:
        result = await remote_read(scene.reader, log, each)
        assert result.error is None
        records, aborted = before[each]
        assert content(result) == records, each
        if records:
            assert result.aborted_transactions == aborted, each
            found_aborted = found_aborted or bool(aborted)
    assert found_aborted


async def test_what_is_in_memory_is_read_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "remote").mkdir()
    folder = {"storage.backend.class": "filesystem", "storage.root": str(tmp_path / "remote")}
    storage = open_remote_storage({**folder, "chunk.size": "1024"})
    scene.tiered.remote.storage = storage
    reader = scene.reader = scene.new_reader()
    await scene.tiered.start()
    append_history(scene.tiered)
    await scene.tier()
    wanted = [
        params(offset, 700, committed=offset % 2 == 0)
        for offset in range(0, scene.log.log_end_offset, 5)
    ]
    for each in wanted:
        assert reader.read_in_memory(scene.log, each) is None, "nothing was read before"
    slow = [await remote_read(reader, scene.log, each) for each in wanted]
    statistics = reader.statistics.topic(scene.log.topic)
    reads, read_bytes = statistics.reads, statistics.read_bytes
    at_once = 0
    for each, result in zip(wanted, slow, strict=True):
        found = reader.read_in_memory(scene.log, each)
        if found is not None:
            assert content(found) == content(result), each
            assert found.aborted_transactions == result.aborted_transactions, each
            at_once += 1
            read_bytes += len(found.records)
    assert at_once > len(wanted) / 2
    assert (statistics.reads, statistics.read_bytes) == (reads + at_once, read_bytes)
    await eventually_async(lambda: reader.pending == 0)
    await scene.close()


async def test_the_end_of_a_transaction_is_in_the_local_log(scene: Scene) -> None:
    log = scene.log
    batch = batch_of(2, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    scene.tiered.append(2)
    aborted = marker(9, committed=False)
    log.append(aborted, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)
    log.roll(NOW_MS)
    log.append(batch_of(1), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    await scene.tiered.copy()
    wanted = params(0, 10, committed=True)
    before = local_read(log, wanted)
    assert before[1] == [(9, 0)]
    # Only the first segment leaves the disk: the marker is local.
    log.offsets.advance_local_log_start(2)
    result = await remote_read(scene.reader, log, wanted)
    assert (content(result), result.aborted_transactions) == before


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("number", [0, 1], ids=["segment", "next segment"])
async def test_what_was_aborted_is_not_returned_when_its_marker_is_deleted_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int, *, is_known: bool
) -> None:
    """As by DeleteRecords, after the records were read and before the transactions are. The
    metadata of this broker may lag behind that, or the store has lost the segment."""
    log, remote, storage = scene.log, scene.reader._remote, scene.storage
    batch = batch_of(2, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)
    aborted = marker(9, committed=False)
    log.append(aborted, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.roll(NOW_MS)
    log.append(batch_of(1), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.roll(NOW_MS)
    await scene.tier()
    wanted = params(0, 10, committed=True)
    assert (await remote_read(scene.new_reader(), log, wanted)).aborted_transactions == [(9, 0)]

    deleted = scene.tiered.metadata.cache(PARTITION).segments()[number]
    fetch_index, segment_at = storage.fetch_index, remote.segment_at

    def fetch(metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType) -> bytes:
        if index_type is RemoteIndexType.TRANSACTION:
            storage.objects.pop(deleted.segment_id.id, None)
        return fetch_index(metadata, index_type)

    def find(log: Log, offset: int) -> RemoteLogSegmentMetadata | None:
        found = segment_at(log, offset)
        is_deleted = deleted.segment_id.id not in storage.objects
        return None if is_known and is_deleted and found == deleted else found

    monkeypatch.setattr(storage, "fetch_index", fetch)
    monkeypatch.setattr(remote, "segment_at", find)
    result = await remote_read(scene.reader, log, wanted)
    assert isinstance(result.error, RemoteStorageError)
    assert content(result) == b""
    assert result.aborted_transactions is None


async def test_a_long_scan_reads_each_index_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_history(scene.tiered)
    await scene.tier()
    reads: list[tuple[object, RemoteIndexType]] = []
    fetch_index = scene.storage.fetch_index

    def counting(metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType) -> bytes:
        reads.append((metadata.segment_id.id, index_type))
        return fetch_index(metadata, index_type)

    monkeypatch.setattr(scene.storage, "fetch_index", counting)
    for offset in range(0, scene.log.log_end_offset, 9):
        await remote_read(scene.reader, scene.log, params(offset, 500, committed=True))
    present = [each for each in reads if each[1] is not RemoteIndexType.TRANSACTION]
    assert len(present) == len(set(present))
    assert 0 < scene.reader.indexes.size_bytes < 64 << 20


async def test_records_of_another_history_are_left_out(scene: Scene) -> None:
    """A leader copied what an unclean election removed afterwards."""
    tiered = scene.tiered
    tiered.append(1)
    tiered.log.roll(NOW_MS)
    tiered.log.update_config(tiered.log.config.replace(segment_ms=1 << 40))
    tiered.append(2, epoch=1)
    tiered.log.roll(NOW_MS)
    await tiered.copy()
    (_, second) = tiered.metadata.cache(PARTITION).segments()
    assert (second.start_offset, second.end_offset) == (2, 5)
    log = tiered.log
    log.truncator.truncate_to(4)
    log.append(batch_of(2), leader_epoch=2, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    expected = local_read(log, params(2, committed=False)._replace(up_to=4))
    log.roll(NOW_MS)
    log.offsets.advance_local_log_start(4)
    result = await remote_read(scene.reader, log, params(2))
    assert content(result) == expected[0]


async def test_a_gap_at_the_end_of_the_last_segment_is_followed_by_local_records(
    scene: Scene,
) -> None:
    """Compaction removed the last records once, before the topic had tiered storage."""
    scene.tiered.append(3)
    await scene.tiered.copy()
    log = scene.log
    log.offsets.advance_local_log_start(2)
    (first, _) = scene.tiered.metadata.cache(PARTITION).segments()
    expected = local_read(log, params(2))
    short = replace(first, size_bytes=0)
    scene.reader._remote.segment_at = lambda log, offset: short  # type: ignore[method-assign]
    result = await remote_read(scene.reader, log, params(1))
    assert content(result) == expected[0] != b""


async def test_a_segment_after_a_gap_that_is_not_known_is_not_skipped(scene: Scene) -> None:
    """It was deleted meanwhile, or the metadata of this broker lag behind."""
    scene.tiered.append(4)
    await scene.tiered.copy()
    log = scene.log
    log.offsets.advance_local_log_start(4)
    first = scene.tiered.metadata.cache(PARTITION).segments()[0]
    short = replace(first, size_bytes=0)
    found = {1: short}
    scene.reader._remote.segment_at = lambda log, offset: found.get(offset)  # type: ignore[method-assign]
    result = await remote_read(scene.reader, log, params(1))
    assert isinstance(result.error, RemoteStorageError)
    assert content(result) == b""


async def test_a_store_that_is_away_is_one_log_line(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.tiered.append(3)
    await scene.tier()
    caplog.set_level(logging.INFO, "ottla.remote")
    caplog.clear()
    for _ in range(3):
        scene.storage.fail = ["fetch"]
        result = await remote_read(scene.reader, scene.log, params(0))
        assert isinstance(result.error, RemoteStorageError)
        assert content(result) == b""
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "Cannot read offset 0 of partition t-0 from remote storage" in caplog.text
    result = await remote_read(scene.reader, scene.log, params(0))
    assert result.error is None
    assert "Remote storage can be read again" in caplog.text
    assert scene.reader.statistics.total("read_errors") == 3
    assert scene.reader.statistics.total("read_bytes") == len(content(result))


@pytest.mark.parametrize("damage", ["missing segment", "missing object", "snapshot"])
async def test_what_is_missing_or_corrupt_is_an_error(scene: Scene, damage: str) -> None:
    append_history(scene.tiered)
    await scene.tier()
    segments = scene.tiered.metadata.cache(PARTITION).segments()
    for segment in segments:
        objects = scene.storage.objects[segment.segment_id.id]
        if damage == "missing object":
            del objects["log"]
        elif damage == "snapshot":
            objects[RemoteIndexType.PRODUCER_SNAPSHOT.value] = b"\x00" * 20
    if damage == "missing segment":
        scene.reader._remote.segment_at = lambda log, offset: None  # type: ignore[method-assign]
    for offset in (0, 30):
        wanted = params(offset, 100, committed=True)
        result = await remote_read(scene.reader, scene.log, wanted)
        assert result.error is not None


async def test_fetches_of_the_same_records_share_a_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.tiered.append(3)
    await scene.tier()
    entered, go_on, calls = threading.Event(), threading.Event(), []
    fetch = scene.storage.fetch_log_segment

    def slow(metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        calls.append(start)
        entered.set()
        assert go_on.wait(60)
        return fetch(metadata, start, end)

    monkeypatch.setattr(scene.storage, "fetch_log_segment", slow)
    first = scene.reader.read(scene.log, params(0))
    second = scene.reader.read(scene.log, params(0))
    assert first is second
    await eventually_async(entered.is_set)
    # Both fetches expire; the thread continues, and the next fetch has its result.
    first.release()
    second.release()
    assert scene.reader.pending == 1
    third = scene.reader.read(scene.log, params(0))
    go_on.set()
    await eventually_async(lambda: third.is_done)
    assert len(content(third.result())) > 0
    assert len(set(calls)) == len(calls) - calls.count(0) + 1
    await eventually_async(lambda: scene.reader.pending == 0)


async def test_the_next_segment_is_read_ahead_at_the_end_of_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.tiered.append(4)
    await scene.tier()
    first, second, *_ = scene.tiered.metadata.cache(PARTITION).segments()
    indexes = scene.reader.indexes
    wanted = params(0, 100)
    await remote_read(scene.reader, scene.log, wanted)
    assert indexes.index_if_cached(first, RemoteIndexType.OFFSET) is not None
    assert indexes.index_if_cached(second, RemoteIndexType.OFFSET) is None
    monkeypatch.setattr(scene.storage, "read_ahead_bytes", 1, raising=False)
    await remote_read(scene.reader, scene.log, wanted)
    await eventually_async(
        lambda: indexes.index_if_cached(second, RemoteIndexType.TRANSACTION) is not None
    )
    assert indexes.index_if_cached(second, RemoteIndexType.OFFSET) is not None


async def test_reads_that_wait_are_bounded_and_cancelled(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.tiered.append(4)
    await scene.tier()
    entered, go_on = threading.Event(), threading.Event()

    def blocked(*_: object) -> bytes:
        entered.set()
        assert go_on.wait(60)
        raise RemoteStorageError("away")

    monkeypatch.setattr(scene.storage, "fetch_index", blocked)
    reader = scene.new_reader(threads=1, max_pending_tasks=2)
    running = reader.read(scene.log, params(0))
    await eventually_async(entered.is_set)
    waiting = [reader.read(scene.log, params(offset)) for offset in (1, 2)]
    with pytest.raises(TooManyReadsError):
        reader.read(scene.log, params(3))
    for read in waiting:
        read.release()
    await eventually_async(lambda: reader.pending == 1)
    assert all(read.is_done and read.result().error is None for read in waiting)
    assert not running.is_done
    go_on.set()
    await eventually_async(lambda: running.is_done)


async def test_the_quota_stops_reads_until_the_rate_is_lower(scene: Scene) -> None:
    append_history(scene.tiered)
    await scene.tier()
    scene.quota.limit = 10
    assert not scene.reader.is_throttled()
    await remote_read(scene.reader, scene.log, params(0))
    assert scene.reader.is_throttled()
    scene.now_ms += 3_600_000
    assert not scene.reader.is_throttled()


async def test_timestamps_as_in_the_local_log(scene: Scene) -> None:
    append_history(scene.tiered, 40)
    log = scene.log
    log.append(batch_of(plain(2, NOW_MS + 9_000)), leader_epoch=2, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    wanted = [*range(NOW_MS - 1, NOW_MS + 1_200, 37), NOW_MS + 9_000, NOW_MS + 9_002]
    before = {each: log.offset_for_timestamp(each) for each in wanted}
    await scene.tier()
    start = log.local_log_start_offset
    assert start > 100
    remote = 0
    for each, expected in before.items():
        found = await scene.reader.offset_for_timestamp(log, each, 60)
        if expected is not None and expected[1] < start:
            remote += 1
            assert found == expected
        else:
            assert found is None
    assert remote > 20
    log.truncator.delete_records_before(50)
    found = await scene.reader.offset_for_timestamp(log, 0, 60)
    assert found is not None
    assert found[1] == 50
    scene.storage.fail = ["fetch"]
    scene.reader.indexes._cache = ChunkCache(0)
    with pytest.raises(RemoteStorageError):
        await scene.reader.offset_for_timestamp(log, 0, 60)


async def test_epochs_below_the_local_log_start_are_known(scene: Scene) -> None:
    append_history(scene.tiered)
    before = [scene.log.end_offset_for_epoch(epoch) for epoch in range(4)]
    await scene.tier()
    assert [scene.log.end_offset_for_epoch(epoch) for epoch in range(4)] == before
