from __future__ import annotations

from pathlib import Path

import pytest

from ottla.protocol.records.crc32c import crc32c
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.remote.chunk_index import decompress
from ottla.storage.remote.manifest import IndexRange
from ottla.storage.remote.remote_storage import RemoteIndexType, RemoteStorageError
from ottla.storage.remote.segment_source import IndexSource, RateLimit, SegmentSource
from tests.doubles.remote_segments import (
    INDEXES,
    LEADER_EPOCHS,
    segment_content,
    segment_files,
    segment_metadata,
)


def source(tmp_path: Path, content: bytes, sent: list[int] | None = None) -> SegmentSource:
    data = segment_files(tmp_path, content)
    acquire = (lambda _size: None) if sent is None else sent.append
    metadata = segment_metadata(len(content))
    return SegmentSource(RealFileSystem(), data.segment, metadata, 1024, acquire)


@pytest.mark.parametrize("size", [0, 1, 1024, 1025, 4000])
def test_chunks_with_checksums(tmp_path: Path, size: int) -> None:
    content = segment_content(size)
    sent: list[int] = []
    segment = source(tmp_path, content, sent)
    chunks = list(segment.chunks(compressed=False))
    assert b"".join(chunks) == content
    assert segment.checksums == [crc32c(chunk) for chunk in chunks]
    index = segment.chunk_index(compressed=False)
    assert list(index.sizes) == sent == [len(chunk) for chunk in chunks]
    assert index.fixed_size == 1024
    assert index.object_size == size


def test_compressed_chunks(tmp_path: Path) -> None:
    content = segment_content(4000)
    segment = source(tmp_path, content)
    chunks = list(segment.chunks(compressed=True))
    assert b"".join(decompress(chunk, 1024) for chunk in chunks) == content
    index = segment.chunk_index(compressed=True)
    assert index.fixed_size is None
    assert index.object_size == sum(map(len, chunks)) < 4000


@pytest.mark.parametrize(
    ("attributes", "expected"), [(0, False), (1, True), (8, False), (12, True)]
)
def test_whether_the_first_batch_is_compressed(
    tmp_path: Path, attributes: int, expected: bool
) -> None:
    batch = bytearray(100)
    batch[16] = 2
    batch[22] = attributes
    assert source(tmp_path, bytes(batch)).is_compressed() is expected
    assert not source(tmp_path, b"short").is_compressed()


def test_a_segment_of_another_size_is_an_error(tmp_path: Path) -> None:
    data = segment_files(tmp_path, bytes(100))
    segment = SegmentSource(
        RealFileSystem(), data.segment, segment_metadata(101), 1024, lambda _size: None
    )
    with pytest.raises(RemoteStorageError, match="has 100 bytes, its metadata 101"):
        list(segment.chunks(compressed=False))


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    segment = source(tmp_path, bytes(100))
    (tmp_path / "0.log").unlink()
    with pytest.raises(RemoteStorageError, match="Cannot read the segment"):
        list(segment.chunks(compressed=False))
    with pytest.raises(RemoteStorageError, match="Cannot read the segment"):
        segment.is_compressed()


def test_indexes_one_after_the_other(tmp_path: Path) -> None:
    indexes = IndexSource(RealFileSystem(), segment_files(tmp_path, b""))
    expected = [
        INDEXES["index"],
        INDEXES["timeindex"],
        INDEXES["snapshot"],
        LEADER_EPOCHS,
        INDEXES["txnindex"],
    ]
    assert indexes.contents == expected
    position = 0
    for (index_type, found), content in zip(indexes.ranges.items(), expected, strict=True):
        assert found == IndexRange(position, len(content))
        assert indexes.checksums[index_type] == crc32c(content)
        position += len(content)


def test_indexes_that_a_segment_does_not_have(tmp_path: Path) -> None:
    data = segment_files(tmp_path, b"", with_transactions=False, with_snapshot=False)
    indexes = IndexSource(RealFileSystem(), data)
    assert RemoteIndexType.TRANSACTION not in indexes.ranges
    # The format needs a snapshot.
    assert indexes.ranges[RemoteIndexType.PRODUCER_SNAPSHOT].size == 0
    (tmp_path / "0.index").unlink()
    with pytest.raises(RemoteStorageError, match="Cannot read the index"):
        IndexSource(RealFileSystem(), data)


def test_bytes_take_their_time() -> None:
    now = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    limit = RateLimit(1000, lambda: now, sleep)
    limit.acquire(500)
    limit.acquire(2000)
    limit.acquire(1)
    assert slept == [0.5, 2.0]
    now += 60  # what was not used is not saved up
    limit.acquire(1000)
    limit.acquire(1000)
    assert slept == [0.5, 2.0, 1.0]
