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
from ottla.storage.remote.remote_storage import RemoteIndexType, RemoteResourceNotFoundError
from ottla.storage.remote.segments import RemoteLogSegmentMetadata
from tests.doubles.page_cache import everything_is_cached
from tests.doubles.storage_logs import NOW_MS
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
            with pytest.raises(RemoteResourceNotFoundError):
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
