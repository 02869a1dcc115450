from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.storage.files.fs import RealFileSystem
from ottla.storage.remote.custom_metadata import CustomMetadata
from ottla.storage.remote.local_object_store import LocalObjectStore
from ottla.storage.remote.object_remote_storage import Background, ObjectRemoteStorage
from ottla.storage.remote.object_store import ObjectStore
from ottla.storage.remote.remote_storage import (
    NoRemoteIndexError,
    RemoteIndexType,
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
    RemoteStorage,
    RemoteStorageError,
)
from ottla.storage.remote.segments import RemoteLogSegmentMetadata
from ottla.storage.remote.store_settings import parse_store_settings
from tests.doubles.remote_segments import (
    INDEXES,
    LEADER_EPOCHS,
    segment_content,
    segment_files,
    segment_metadata,
)

SIZE = 10_000
CONTENT = segment_content(SIZE)


class CountingStore(LocalObjectStore):
    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        super().__init__(RealFileSystem(), str(root))
        self.root = root
        self.reads: list[tuple[str, int]] = []
        self.fail_put = ""

    def get_range(self, key: str, position: int, size: int) -> bytes:
        self.reads.append((key.rpartition(".")[2], position))
        return super().get_range(key, position, size)

    def put(self, key: str, content: object) -> int:
        if self.fail_put and key.endswith(self.fail_put):
            raise RemoteStorageError("the store is away")
        return super().put(key, content)  # type: ignore[arg-type]

    def file(self, suffix: str) -> Path:
        [path] = self.root.rglob(f"*.{suffix}")
        return path


def storage(
    store: ObjectStore, background: Background | None = None, **settings: str
) -> ObjectRemoteStorage:
    parsed = parse_store_settings({
        "storage.backend.class": "filesystem",
        "chunk.size": "1024",
        **{name.replace("_", "."): value for name, value in settings.items()},
    })  # fmt: skip
    return ObjectRemoteStorage(store, parsed, RealFileSystem(), background=background)


def copied(tmp_path: Path, **settings: str) -> tuple[CountingStore, ObjectRemoteStorage]:
    store = CountingStore(tmp_path / "remote")
    remote = storage(store, **settings)
    remote.copy_log_segment(METADATA, segment_files(tmp_path / "log", CONTENT))
    return store, remote


METADATA: RemoteLogSegmentMetadata = segment_metadata(SIZE)


@pytest.mark.parametrize("compression", ["false", "true"])
@pytest.mark.parametrize(
    ("start", "end"),
    [(0, SIZE), (0, 1), (1023, 1025), (1024, 2048), (5000, 99_999), (SIZE, SIZE + 1)],
)
def test_any_range_is_read_back(tmp_path: Path, compression: str, start: int, end: int) -> None:
    _, remote = copied(tmp_path, compression_enabled=compression)
    interface: RemoteStorage = remote
    assert interface.fetch_log_segment(METADATA, start, end) == CONTENT[start:end]


def test_compression_makes_the_object_smaller(tmp_path: Path) -> None:
    store, _ = copied(tmp_path, compression_enabled="true")
    assert store.file("log").stat().st_size < SIZE * 0.7


def test_batches_that_are_compressed_are_not_compressed_again(tmp_path: Path) -> None:
    content = bytearray(CONTENT)
    content[16], content[22] = 2, 4
    store = CountingStore(tmp_path / "remote")
    remote = storage(store, compression_enabled="true", compression_heuristic_enabled="true")
    remote.copy_log_segment(METADATA, segment_files(tmp_path / "log", bytes(content)))
    assert store.file("log").read_bytes() == content


def test_indexes_are_read_back(tmp_path: Path) -> None:
    _, remote = copied(tmp_path)
    expected = {
        RemoteIndexType.OFFSET: INDEXES["index"],
        RemoteIndexType.TIMESTAMP: INDEXES["timeindex"],
        RemoteIndexType.PRODUCER_SNAPSHOT: INDEXES["snapshot"],
        RemoteIndexType.TRANSACTION: INDEXES["txnindex"],
        RemoteIndexType.LEADER_EPOCH: LEADER_EPOCHS,
    }
    assert {kind: remote.fetch_index(METADATA, kind) for kind in RemoteIndexType} == expected


def test_indexes_that_a_segment_did_not_have(tmp_path: Path) -> None:
    remote = storage(CountingStore(tmp_path / "remote"))
    files = segment_files(tmp_path / "log", CONTENT, with_transactions=False, with_snapshot=False)
    remote.copy_log_segment(METADATA, files)
    for kind in (RemoteIndexType.TRANSACTION, RemoteIndexType.PRODUCER_SNAPSHOT):
        with pytest.raises(NoRemoteIndexError, match="has no index"):
            remote.fetch_index(METADATA, kind)


@pytest.mark.parametrize("suffix", ["rsm-manifest", "indexes"])
def test_an_object_that_is_lost_is_not_one_that_a_segment_did_not_have(
    tmp_path: Path, suffix: str
) -> None:
    store, _ = copied(tmp_path)
    store.file(suffix).unlink()
    remote = storage(store)
    for kind in RemoteIndexType:
        with pytest.raises(RemoteResourceNotFoundError, match=suffix):
            remote.fetch_index(METADATA, kind)


def test_custom_metadata(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "remote")
    remote = storage(
        store, key_prefix="before/", custom_metadata_fields_include="REMOTE_SIZE,OBJECT_PREFIX"
    )
    custom = remote.copy_log_segment(METADATA, segment_files(tmp_path / "log", CONTENT))
    total = sum(path.stat().st_size for path in store.root.rglob("*.*") if path.is_file())
    assert CustomMetadata.decode(custom) == CustomMetadata(total, "before/", None)
    # With it, the segment is found under another prefix too.
    moved = storage(store, key_prefix="now/")
    metadata = replace(METADATA, custom_metadata=custom)
    assert moved.fetch_log_segment(metadata, 0, 10) == CONTENT[:10]
    with pytest.raises(RemoteResourceNotFoundError):
        moved.fetch_log_segment(METADATA, 0, 10)


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_a_copy_that_fails_leaves_nothing_and_can_be_repeated(tmp_path: Path, suffix: str) -> None:
    store = CountingStore(tmp_path / "remote")
    store.fail_put = suffix
    remote = storage(store)
    files = segment_files(tmp_path / "log", CONTENT)
    with pytest.raises(RemoteStorageError, match="the store is away"):
        remote.copy_log_segment(METADATA, files)
    assert list(store.list("")) == []
    store.fail_put = ""
    remote.copy_log_segment(METADATA, files)
    assert remote.fetch_log_segment(METADATA, 0, SIZE) == CONTENT


def test_a_deleted_segment_is_not_found(tmp_path: Path) -> None:
    store, remote = copied(tmp_path)
    remote.fetch_log_segment(METADATA, 0, SIZE)
    remote.delete_log_segment(METADATA)
    remote.delete_log_segment(METADATA)
    assert list(store.list("")) == []
    assert remote.cache.size_bytes == 0
    with pytest.raises(RemoteResourceNotFoundError):
        remote.fetch_log_segment(METADATA, 0, 1)
    with pytest.raises(RemoteResourceNotFoundError):
        remote.fetch_index(METADATA, RemoteIndexType.OFFSET)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("compression", ["false", "true"])
def test_a_changed_chunk_is_corrupt(tmp_path: Path, compression: str) -> None:
    store, remote = copied(tmp_path, compression_enabled=compression)
    flip(store.file("log"), 100)
    with pytest.raises(RemoteObjectCorruptError, match="wrong checksum from 0 to"):
        remote.fetch_log_segment(METADATA, 0, 1)
    assert remote.fetch_log_segment(METADATA, 1024, 1025) == CONTENT[1024:1025]


def test_a_changed_index_is_corrupt(tmp_path: Path) -> None:
    store, remote = copied(tmp_path)
    flip(store.file("indexes"), 3)
    with pytest.raises(RemoteObjectCorruptError, match="wrong checksum from 0 to 84"):
        remote.fetch_index(METADATA, RemoteIndexType.OFFSET)


def test_a_short_object_is_corrupt(tmp_path: Path) -> None:
    store, remote = copied(tmp_path)
    path = store.file("log")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RemoteObjectCorruptError, match="ends at 9999"):
        remote.fetch_log_segment(METADATA, SIZE - 1, SIZE)


def test_chunks_are_cached(tmp_path: Path) -> None:
    store, remote = copied(tmp_path)
    for position in range(0, 2000, 100):
        remote.fetch_log_segment(METADATA, position, position + 100)
    assert store.reads == [("log", 0), ("log", 1024)]


def test_no_read_ahead_without_a_setting(tmp_path: Path) -> None:
    started: list[Callable[[], None]] = []
    store = CountingStore(tmp_path / "remote")
    remote = storage(store, started.append)
    remote.copy_log_segment(METADATA, segment_files(tmp_path / "log", CONTENT))
    remote.fetch_log_segment(METADATA, 0, 10)
    assert started == []


def test_the_chunks_after_a_continued_read_are_read_ahead(tmp_path: Path) -> None:
    started: list[Callable[[], None]] = []
    store = CountingStore(tmp_path / "remote")
    remote = storage(store, started.append, fetch_chunk_cache_prefetch_max_size="2048")
    remote.copy_log_segment(METADATA, segment_files(tmp_path / "log", CONTENT))
    remote.fetch_log_segment(METADATA, 5000, 5010)  # a lookup in the middle
    assert started == []
    remote.fetch_log_segment(METADATA, 5010, 5200)
    assert len(started) == 2
    remote.fetch_log_segment(METADATA, 5010, 5200)
    assert len(started) == 2  # they are on their way
    for read in started:
        read()
    store.reads.clear()
    assert remote.fetch_log_segment(METADATA, 5200, 7168) == CONTENT[5200:7168]
    assert store.reads == []


def test_a_range_without_checksums_is_one_request(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "remote")
    remote = storage(store)
    remote.copy_log_segment(METADATA, segment_files(tmp_path / "log", CONTENT))
    remote.manifest(METADATA)
    store.reads.clear()
    assert remote.fetch_unchecked(METADATA, 1000, 2100) == CONTENT[1000:2100]
    assert len(store.reads) == 1
    assert remote.fetch_unchecked(METADATA, SIZE - 5, SIZE + 5) == CONTENT[-5:]
    assert remote.fetch_unchecked(METADATA, SIZE, SIZE + 5) == b""
    compressed = storage(store, compression_enabled="true")
    compressed.copy_log_segment(METADATA, segment_files(tmp_path / "log", CONTENT))
    assert compressed.fetch_unchecked(METADATA, 0, 10) is None


def test_what_is_in_memory_is_read_without_a_request(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "remote")
    remote = storage(store)
    remote.copy_log_segment(METADATA, segment_files(tmp_path / "log", CONTENT))
    assert remote.fetch_log_segment_if_cached(METADATA, 0, 10) is None  # no manifest
    remote.fetch_log_segment(METADATA, 0, 2000)  # two chunks
    store.reads.clear()
    for start, end in ((0, 10), (0, 1024), (5, 2048), (1024, 2048), (1500, 1501), (7, 7)):
        assert remote.fetch_log_segment_if_cached(METADATA, start, end) == CONTENT[start:end]
    assert remote.fetch_log_segment_if_cached(METADATA, 2000, 2049) is None
    assert store.reads == []


def test_an_error_of_the_read_ahead_is_not_raised(tmp_path: Path) -> None:
    started: list[Callable[[], None]] = []
    store = CountingStore(tmp_path / "remote")
    remote = storage(store, started.append, fetch_chunk_cache_prefetch_max_size="1024")
    remote.copy_log_segment(METADATA, segment_files(tmp_path / "log", CONTENT))
    flip(store.file("log"), 1024)
    remote.fetch_log_segment(METADATA, 0, 10)
    for read in started:
        read()
    with pytest.raises(RemoteObjectCorruptError):
        remote.fetch_log_segment(METADATA, 1024, 1025)
