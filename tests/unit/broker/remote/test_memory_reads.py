"""Reads of the event loop: what a worker thread would read, or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.broker.remote import memory_reads
from ottla.broker.remote.index_cache import CachedIndexes
from ottla.broker.remote.memory_reads import MemoryReads
from ottla.broker.remote.segment_reader import RemoteRead, aborted_transactions, read_segment
from ottla.storage.files.open_files import FileSlice
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import NoRemoteIndexError, RemoteIndexType
from ottla.storage.remote.segments import RemoteLogSegmentMetadata
from tests.doubles.page_cache import everything_is_cached
from tests.doubles.storage_logs import NOW_MS, batch_of, plain
from tests.doubles.tiered_partition import PARTITION, TieredPartition, append_transactions

ALL = 1 << 40


@pytest.fixture(params=["memory", "file"])
async def scene(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TieredPartition]:
    """A segment without transactions, then some with aborted ones, in a local folder."""
    everything_is_cached(monkeypatch)
    (tmp_path / "remote").mkdir()
    (tmp_path / "logs").mkdir()
    scene = TieredPartition(tmp_path / "logs")
    settings = {
        "storage.backend.class": "filesystem",
        "storage.root": str(tmp_path / "remote"),
        "chunk.size": "1024",
    }
    scene.remote.storage = open_remote_storage(settings, sends_files=request.param == "file")
    await scene.start()
    scene.append(1)
    scene.log.roll(NOW_MS)
    append_transactions(scene.log, 60, batches_of_a_transaction=7)
    scene.log.roll(NOW_MS)
    await scene.copy()
    yield scene
    await scene.stop()


def segments(scene: TieredPartition) -> list[RemoteLogSegmentMetadata]:
    return scene.metadata.cache(PARTITION).segments()


def content(read: RemoteRead | None) -> object:
    if read is None or not isinstance(read.records, FileSlice):
        return read
    return read._replace(records=read.records.read())


@pytest.mark.parametrize("max_bytes", [100, 700, 1 << 20])
async def test_what_was_read_once_is_read_from_memory(
    scene: TieredPartition, max_bytes: int
) -> None:
    indexes = CachedIndexes(scene.remote.storage)
    memory = MemoryReads(indexes)
    for metadata in segments(scene):
        for offset in range(metadata.start_offset, metadata.end_offset + 1, 3):
            limits = {"up_to": scene.log.log_end_offset - 5, "min_one_batch": True}
            first = memory.read(metadata, offset, max_bytes, **limits)  # type: ignore[arg-type]
            threads = read_segment(indexes, metadata, offset, max_bytes, **limits)  # type: ignore[arg-type]
            second = memory.read(metadata, offset, max_bytes, **limits)  # type: ignore[arg-type]
            assert content(first) in (None, content(threads))
            assert content(second) == content(threads)
    fresh = MemoryReads(CachedIndexes(scene.remote.storage))
    assert fresh.read(segments(scene)[1], 3, max_bytes, up_to=ALL, min_one_batch=True) is None


@pytest.mark.parametrize("interval", [100, 1000, 1 << 20])
async def test_a_scan_continues_where_a_read_ended(
    scene: TieredPartition, monkeypatch: pytest.MonkeyPatch, interval: int
) -> None:
    log = scene.log
    log.update_config(log.config.replace(index_interval_bytes=interval))
    for number in range(50):
        records = plain(1 + number % 3, NOW_MS, size=20 + 13 * (number % 9))
        log.append(batch_of(records), leader_epoch=9, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.roll(NOW_MS)
    await scene.copy()
    metadata = segments(scene)[-1]
    indexes = CachedIndexes(scene.remote.storage)
    of_file = scene.remote.storage.fetch_log_segment_file(metadata, 0, 1) is not None
    searches: list[int] = []

    def searched(*arguments: object, **more: object) -> RemoteRead:
        searches.append(0)
        return read_segment(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(memory_reads, "read_segment", searched)
    for max_bytes in (1, 99, 100, 101, 150, 333, 700, 2000, 3000, 1 << 20):
        memory, offset, reads = MemoryReads(indexes), metadata.start_offset, 0
        searches.clear()
        while offset <= metadata.end_offset:
            limits = {"up_to": ALL, "min_one_batch": True}
            expected = read_segment(indexes, metadata, offset, max_bytes, **limits)  # type: ignore[arg-type]
            found = memory.read(metadata, offset, max_bytes, **limits)  # type: ignore[arg-type]
            assert found is not None, (max_bytes, offset)
            assert content(found) == content(expected), (max_bytes, offset)
            offset, reads = expected.next_offset, reads + 1
        if max_bytes < 99:  # a batch at a time is no usual case
            assert len(searches) == reads
        elif of_file and max_bytes > 1000:
            assert len(searches) <= 1 + reads // 4, "the position is known"


async def test_a_scan_needs_a_thread_where_the_page_cache_has_lost_records(
    scene: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexes, metadata = CachedIndexes(scene.remote.storage), segments(scene)[1]
    memory, limits = MemoryReads(indexes), {"up_to": ALL, "min_one_batch": True}
    start = metadata.start_offset
    first = read_segment(indexes, metadata, start, 1, **limits)  # type: ignore[arg-type]
    memory.remember(metadata, first)
    in_file = isinstance(first.records, FileSlice)
    monkeypatch.setattr(FileSlice, "read_if_cached", lambda _: None)
    for max_bytes in (1, 1000, ALL) if in_file else (1,):
        found = memory.read(metadata, first.next_offset, max_bytes, **limits)  # type: ignore[arg-type]
        assert (found is None) == in_file, max_bytes


async def test_a_scan_does_not_continue_beyond_a_limit(scene: TieredPartition) -> None:
    indexes = CachedIndexes(scene.remote.storage)
    memory, metadata = MemoryReads(indexes), segments(scene)[1]
    start = metadata.start_offset
    first = read_segment(indexes, metadata, start, 1, up_to=ALL)
    memory.remember(metadata, first)
    for up_to in (first.next_offset, first.next_offset + 3, metadata.end_offset):
        limits = {"up_to": up_to, "min_one_batch": True}
        expected = read_segment(indexes, metadata, first.next_offset, ALL, **limits)  # type: ignore[arg-type]
        found = memory.read(metadata, first.next_offset, ALL, **limits)  # type: ignore[arg-type]
        assert content(found) == content(expected)


async def test_much_work_is_left_to_a_thread(
    scene: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = scene.remote.storage
    indexes = CachedIndexes(storage)
    memory, metadata = MemoryReads(indexes), segments(scene)[1]

    def read() -> object:
        return memory.read(metadata, metadata.start_offset, ALL, up_to=ALL, min_one_batch=True)

    read_segment(indexes, metadata, metadata.start_offset, ALL, up_to=ALL)
    assert read() is not None
    of_file = storage.fetch_log_segment_file(metadata, 0, 1) is not None
    for limit in ("_MAX_BATCHES",) if of_file else ("_MAX_BATCHES", "_MAX_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(memory_reads, limit, 1)
            assert read() is None


async def test_aborted_transactions_that_are_in_memory(
    scene: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexes = CachedIndexes(scene.remote.storage)
    memory = MemoryReads(indexes)
    found_some = 0
    for number, metadata in enumerate(segments(scene)):
        start, end = metadata.start_offset, metadata.end_offset + 1
        assert memory.aborted(metadata, start, end) is None
        if number == 0:  # it has no transaction index, which is not known before it is requested
            with pytest.raises(NoRemoteIndexError):
                indexes.fetch_index(metadata, RemoteIndexType.TRANSACTION)
            assert memory.aborted(metadata, start, end) is None
            indexes.first_open_offset(metadata)
            assert memory.aborted(metadata, start, end) == []
            continue
        found, is_complete = aborted_transactions(indexes, [metadata], start, end)
        open_offset = indexes.first_open_offset(metadata)
        known = memory.aborted(metadata, start, end)
        assert known == (found if is_complete or open_offset is None else None)
        found_some += bool(known)
        with monkeypatch.context() as patch:
            patch.setattr(memory_reads, "_MAX_INDEX_BYTES", 1)
            assert memory.aborted(metadata, start, end) is None
    assert found_some
