"""Segments whose bytes are not what they have to be; equal rows are tested with `reading`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any
from uuid import UUID

import pytest

from ottla.protocol.records.builder import build_batch
from ottla.storage.remote.chunk_index import Chunk
from ottla.storage.remote.manifest import SegmentManifest
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import (
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
)
from ottla.storage.remote.segments import RemoteLogSegmentMetadata
from pyspark_ottla.read.fetch import FetchedData
from pyspark_ottla.remote.segment import planned
from pyspark_ottla.remote.segment_stream import SegmentStream
from tests.doubles.remote_segments import segment_files, segment_metadata
from tests.doubles.tiered_cluster import store_settings


def batch(first: int, count: int, size: int = 100) -> bytes:
    return bytes(build_batch([(1000, None, bytes(size), None)] * count, base_offset=first))


class Copied:
    """A segment with these bytes in a folder; its indexes are no real ones."""

    def __init__(
        self,
        path: Path,
        content: bytes,
        *,
        end_offset: int,
        with_checksums: bool = True,
        offset_index: bytes | None = None,
        compressed: bool = False,
    ) -> None:
        (path / "remote").mkdir()
        settings = store_settings(path) | {"compression.enabled": str(compressed).lower()}
        self.storage = open_remote_storage(settings)
        metadata = segment_metadata(len(content), start_offset=0, segment_id=UUID(int=1))
        self.metadata: RemoteLogSegmentMetadata = metadata
        self.end_offset = end_offset
        files = segment_files(path / "local", content)
        if offset_index is not None:
            files.offset_index.write_bytes(offset_index)
        self.storage.copy_log_segment(metadata, files)
        if not with_checksums:
            manifest = self.storage.manifest(metadata)
            object.__setattr__(manifest, "checksums", None)

    def read(self, start: int, end: int, aborted_at: Any = None) -> list[FetchedData]:
        segment = planned(self.metadata)._replace(end=self.end_offset)
        stream = SegmentStream(self.storage, segment, 1000, aborted_at)
        return list(stream.responses(start, end))


@pytest.fixture(params=[True, False], ids=["checksums", "no checksums"])
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    def copy(content: bytes, end_offset: int) -> Copied:
        return Copied(tmp_path, content, end_offset=end_offset, with_checksums=request.param)

    return copy


def test_a_batch_larger_than_a_fetch(copied: Any) -> None:
    content = batch(0, 2) + batch(2, 50) + batch(52, 3)
    found = copied(content, 55).read(0, 55)
    assert b"".join(data.records for data in found) == content
    assert found[0].start == 0


def test_reading_ends_with_the_range(copied: Any) -> None:
    content = b"".join(batch(3 * n, 3) for n in range(100))
    found = copied(content, 300).read(0, 4)
    assert b"".join(data.records for data in found) == content[: 2 * len(batch(0, 3))]


def test_a_gap_at_the_end_of_a_range_ends_it(copied: Any) -> None:
    content = batch(0, 3) + batch(10, 3) + b"".join(batch(20 + 3 * n, 3) for n in range(50))
    found = copied(content, 170).read(0, 8)
    assert b"".join(data.records for data in found) == batch(0, 3)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (batch(0, 3) + batch(3, 50)[:-10], "a batch of"),
        (batch(0, 3) + batch(3, 3)[:40], "ends within a batch"),
        (batch(0, 3) + batch(1, 3), "a batch with offset 1"),
        (batch(0, 9) + batch(9, 3), "a batch with offset 9"),
        (bytes(200), "magic 0"),
    ],
)
def test_wrong_bytes_are_found(copied: Any, content: bytes, problem: str) -> None:
    with pytest.raises(RemoteObjectCorruptError, match=problem):
        copied(content, 10).read(0, 10)


def test_without_checksums_the_crc_of_each_batch_is_checked(tmp_path: Path) -> None:
    content = bytearray(batch(0, 3) + batch(3, 3))
    content[-1] ^= 1
    copied = Copied(tmp_path, bytes(content), end_offset=6, with_checksums=False)
    with pytest.raises(RemoteObjectCorruptError, match="corrupt"):
        copied.read(0, 6)


def indexed(batches: list[bytes], every: int) -> bytes:
    """The offset index of batches of three records, with an entry for some of them."""
    entries, position = [], 0
    for number, content in enumerate(batches):
        if number and number % every == 0:
            entries.append(pack(">ii", 3 * number + 2, position))
        position += len(content)
    return b"".join(entries)


def test_pieces_end_where_the_offset_index_has_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch(3 * n, 3) for n in range(40)]
    content = b"".join(batches)
    copied = Copied(tmp_path, content, end_offset=120, offset_index=indexed(batches, 2))
    ranges: list[tuple[int, int]] = []
    fetch = copied.storage.fetch_unchecked

    def noted(metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes | None:
        ranges.append((start, end))
        return fetch(metadata, start, end)

    monkeypatch.setattr(copied.storage, "fetch_unchecked", noted)
    found = copied.read(0, 120)
    assert b"".join(data.records for data in found) == content
    assert len(found) == len(ranges) > 10
    size = len(batches[0])
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert [end % size for _, end in ranges] == [0] * len(ranges)
    assert all(data.is_verified for data in found)


def test_bytes_that_were_wrong_on_the_way_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch(3 * n, 3) for n in range(40)]
    content = b"".join(batches)
    copied = Copied(tmp_path, content, end_offset=120, offset_index=indexed(batches, 2))
    fetch = copied.storage.fetch_unchecked

    def damaged(metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes | None:
        found = fetch(metadata, start, end)
        assert found is not None
        return found[:100] + bytes([found[100] ^ 1]) + found[101:]

    monkeypatch.setattr(copied.storage, "fetch_unchecked", damaged)
    assert b"".join(data.records for data in copied.read(0, 120)) == content


def test_each_chunk_of_a_compressed_segment_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch(3 * n, 3) for n in range(40)]
    content, index = b"".join(batches), indexed(batches, 2)
    copied = Copied(tmp_path, content, end_offset=120, offset_index=index, compressed=True)
    read, numbers = copied.storage.read_chunk, []

    def noted(key: str, manifest: SegmentManifest, chunk: Chunk) -> bytes:
        numbers.append(chunk.number)
        return read(key, manifest, chunk)

    monkeypatch.setattr(copied.storage, "read_chunk", noted)
    assert b"".join(data.records for data in copied.read(0, 120)) == content
    assert numbers == list(range(len(copied.storage.manifest(copied.metadata).chunk_index)))


def test_a_segment_of_another_size(tmp_path: Path) -> None:
    copied = Copied(tmp_path, batch(0, 3), end_offset=3, with_checksums=True)
    segment = planned(copied.metadata)._replace(size_bytes=7)
    stream = SegmentStream(copied.storage, segment, 1000, None)
    with pytest.raises(RemoteObjectCorruptError, match="its metadata 7"):
        list(stream.responses(0, 3))


@pytest.mark.parametrize("lost", ["rsm-manifest", "indexes"])
def test_what_was_aborted_is_not_known_without_the_indexes(tmp_path: Path, lost: str) -> None:
    copied = Copied(tmp_path, batch(0, 3), end_offset=3)
    copied.read(0, 3)  # the manifest is in memory
    [path] = (tmp_path / "remote").rglob(f"*.{lost}")
    path.unlink()
    if lost == "rsm-manifest":
        copied.storage = open_remote_storage(store_settings(tmp_path))
    with pytest.raises(RemoteResourceNotFoundError):
        copied.read(0, 3, lambda _: [])
