"""What is read from remote segments is what the local log returned, byte for byte."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.remote.segment_reader import (
    NeedsThreadError,
    RemoteRead,
    aborted_transactions,
    floor_position,
    read_segment,
)
from ottla.protocol.records.reader import iterate_entries
from ottla.storage.files.open_files import FileSlice
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import (
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
)
from ottla.storage.remote.segments import RemoteLogSegmentMetadata
from tests.doubles.memory_remote_storage import MemoryRemoteStorage
from tests.doubles.page_cache import everything_is_cached
from tests.doubles.storage_logs import NOW_MS
from tests.doubles.tiered_partition import PARTITION, TieredPartition, append_transactions


@pytest.fixture(params=["memory", "file"])
async def scene(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TieredPartition]:
    """Segments of many batches of several sizes, in a local folder, with aborted transactions."""
    everything_is_cached(monkeypatch)
    root = tmp_path / "remote"
    root.mkdir()
    (tmp_path / "logs").mkdir()
    scene = TieredPartition(tmp_path / "logs")
    settings = {
        "storage.backend.class": "filesystem",
        "storage.root": str(root),
        "chunk.size": "1024",
    }
    storage = open_remote_storage(settings, sends_files=request.param == "file")
    scene.remote.storage = storage
    await scene.start()
    log = scene.log
    append_transactions(log, 60, batches_of_a_transaction=7)
    log.roll(NOW_MS)
    await scene.copy()
    yield scene
    await scene.stop()
    storage.close()


def segments(scene: TieredPartition) -> list[RemoteLogSegmentMetadata]:
    return scene.metadata.cache(PARTITION).segments()


def content(read: RemoteRead) -> bytes:
    records = read.records
    return records.read() if isinstance(records, FileSlice) else bytes(records)


def test_index_positions() -> None:
    index = b"".join(n.to_bytes(4, "big") for n in (3, 100, 9, 200))
    assert [floor_position(index, offset) for offset in (0, 2, 3, 8, 9, 50)] == [
        *(0, 0, 100, 100, 200, 200)
    ]
    assert floor_position(b"", 5) == 0


@pytest.mark.parametrize("max_bytes", [0, 100, 1_000, 5_000, 1 << 20])
@pytest.mark.parametrize("min_one_batch", [True, False])
async def test_every_offset_as_from_the_local_log(
    scene: TieredPartition, max_bytes: int, min_one_batch: bool
) -> None:
    log = scene.log
    assert len(segments(scene)) == 4
    for metadata in segments(scene):
        for offset in range(metadata.start_offset, metadata.end_offset + 1, 3):
            up_to = log.log_end_offset
            local = log.read(offset, max_bytes, up_to=up_to, min_one_batch=min_one_batch)
            found = read_segment(
                scene.remote.storage,
                metadata,
                offset,
                max_bytes,
                up_to=up_to,
                min_one_batch=min_one_batch,
            )
            assert content(found) == (b"" if local.slice is None else local.slice.read())


@pytest.mark.parametrize("max_bytes", [700, 5_000, 1 << 20])
async def test_every_limit_as_from_the_local_log(scene: TieredPartition, max_bytes: int) -> None:
    log, storage = scene.log, scene.remote.storage
    for metadata in segments(scene):
        offset = metadata.start_offset + 1
        for up_to in range(offset, metadata.end_offset + 3):
            local = log.read(offset, max_bytes, up_to=up_to)
            found = read_segment(storage, metadata, offset, max_bytes, up_to=up_to)
            assert content(found) == (b"" if local.slice is None else local.slice.read())


async def test_only_the_headers_at_both_ends_are_read(scene: TieredPartition) -> None:
    metadata = segments(scene)[1]
    storage, offset = scene.remote.storage, metadata.start_offset
    whole = read_segment(storage, metadata, offset, 1 << 20, up_to=1 << 40)
    assert sum(1 for _ in iterate_entries(content(whole))) > 20
    limited = read_segment(storage, metadata, offset, 1 << 20, up_to=1 << 40, max_batches=10)
    assert content(limited) == content(whole)
    assert limited[1:] == whole[1:]
    with pytest.raises(NeedsThreadError):
        read_segment(storage, metadata, offset, 1 << 20, up_to=1 << 40, max_batches=1)


async def test_records_of_one_chunk_are_not_copied(scene: TieredPartition) -> None:
    metadata, storage = segments(scene)[0], scene.remote.storage
    chunk = bytes(storage.fetch_log_segment(metadata, 0, metadata.size_bytes))

    class OneChunk:
        def fetch_log_segment(self, _: RemoteLogSegmentMetadata, start: int, end: int) -> Any:
            return memoryview(chunk)[start:end]

        def fetch_log_segment_file(self, *_: object) -> None:
            return None

        fetch_index = storage.fetch_index

    large = read_segment(OneChunk(), metadata, 0, 5_000, up_to=1 << 40).records
    assert isinstance(large, memoryview)
    assert large.obj is chunk
    small = read_segment(OneChunk(), metadata, 5, 100, up_to=1 << 40).records
    assert isinstance(small, bytes), "a view would keep the chunk in memory"


async def test_records_of_a_file_stay_there(scene: TieredPartition) -> None:
    metadata, storage = segments(scene)[1], scene.remote.storage
    of_file = storage.fetch_log_segment_file(metadata, 0, 1) is not None
    found = read_segment(storage, metadata, metadata.start_offset, 5_000, up_to=1 << 40).records
    assert isinstance(found, FileSlice) == of_file
    if not of_file:
        return
    with pytest.MonkeyPatch.context() as patch:
        # Nothing is in the page cache any more: a thread reads, the event loop does not.
        patch.setattr(FileSlice, "read_if_cached", lambda _: None)
        again = read_segment(storage, metadata, metadata.start_offset, 5_000, up_to=1 << 40)
        assert content(again) == found.read()  # type: ignore[union-attr]
        with pytest.raises(NeedsThreadError):
            read_segment(storage, metadata, 0, 5_000, up_to=1 << 40, may_block=False)


async def test_aborted_transactions_as_from_the_local_log(scene: TieredPartition) -> None:
    log, found_some = scene.log, False
    for place, metadata in enumerate(segments(scene)):
        for offset in range(metadata.start_offset, metadata.end_offset + 1, 5):
            end = log.last_stable_offset
            local = log.read(offset, 700, up_to=end, read_committed=True)
            read = read_segment(scene.remote.storage, metadata, offset, 700, up_to=end)
            later = segments(scene)[place:]
            aborted, _ = aborted_transactions(scene.remote.storage, later, offset, read.next_offset)
            pairs = sorted(((t.producer_id, t.first_offset) for t in aborted), key=lambda t: t[1])
            assert pairs == local.aborted_transactions
            found_some = found_some or bool(pairs)
    assert found_some


async def test_batches_at_or_above_the_limit_are_left_out(scene: TieredPartition) -> None:
    first = segments(scene)[0]
    storage = scene.remote.storage
    assert read_segment(storage, first, 0, 1 << 20, up_to=0) == RemoteRead(b"", 0)
    whole = read_segment(storage, first, 0, 1 << 20, up_to=1 << 40)
    assert whole.next_offset == first.end_offset + 1
    assert len(whole.records) == first.size_bytes
    assert read_segment(storage, first, 10_000, 100, up_to=1 << 40) == RemoteRead(
        b"", 10_000, has_batch=False
    )


async def test_damage_is_an_error_with_the_segment(tmp_path: Path) -> None:
    scene = TieredPartition(tmp_path)
    await scene.start()
    scene.append(2)
    await scene.copy()
    (metadata,) = segments(scene)
    objects = scene.storage.objects[metadata.segment_id.id]
    good = objects["log"]

    def read() -> RemoteRead:
        return read_segment(scene.storage, metadata, 0, 100, up_to=2)

    for damaged in (good[:-1], b"", good[:8] + b"\x7f" + good[9:], good[:16] + b"\x09" + good[17:]):
        objects["log"] = damaged
        with pytest.raises(RemoteObjectCorruptError, match=str(metadata.segment_id.id)):
            read()
    objects["log"] = good
    assert read().records == good
    objects["txnindex"] = b"\x00"
    with pytest.raises(RemoteObjectCorruptError, match="transaction index"):
        aborted_transactions(scene.storage, [metadata], 0, 2)
    del objects["txnindex"]
    assert aborted_transactions(scene.storage, [metadata], 0, 2) == ([], False)
    with pytest.raises(RemoteResourceNotFoundError):
        aborted_transactions(MemoryRemoteStorage(), [metadata], 0, 2)
    longer = replace(metadata, size_bytes=metadata.size_bytes + 1)
    with pytest.raises(RemoteObjectCorruptError):
        read_segment(scene.storage, longer, 5, 100, up_to=9)
    await scene.stop()
