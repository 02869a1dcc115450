"""Segments that are sent from the objects of a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.storage.remote import object_files
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import (
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
)
from tests.doubles.page_cache import everything_is_cached
from tests.doubles.remote_segments import segment_content, segment_files, segment_metadata

SIZE = 10_000
CONTENT = segment_content(SIZE)
METADATA = segment_metadata(SIZE)
MODIFIED = 10**18


@pytest.fixture(autouse=True)
def _known_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    everything_is_cached(monkeypatch)


def opened(tmp_path: Path, **settings: str) -> ObjectRemoteStorage:
    root = tmp_path / "remote"
    root.mkdir(exist_ok=True)
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return open_remote_storage(
        {
            "storage.backend.class": "filesystem",
            "storage.root": str(root),
            "chunk.size": "1024",
            **names,
        },
        sends_files=True,
    )


def copied(tmp_path: Path, **settings: str) -> ObjectRemoteStorage:
    storage = opened(tmp_path, **settings)
    storage.copy_log_segment(METADATA, segment_files(tmp_path / "log", CONTENT))
    as_before(file_of(tmp_path))
    return storage


def file_of(tmp_path: Path) -> Path:
    [path] = tmp_path.glob("remote/**/*.log")
    return path


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def as_before(path: Path) -> None:
    """The file system does not tell that the file changed: its disk decays, or its memory."""
    os.utime(path, ns=(MODIFIED, MODIFIED))


@pytest.mark.parametrize(
    ("start", "end"), [(0, SIZE), (0, 1), (1023, 1025), (1024, 2048), (5000, 99_999)]
)
def test_any_range_is_a_part_of_the_object(tmp_path: Path, start: int, end: int) -> None:
    storage = copied(tmp_path)
    assert storage.fetch_log_segment_file_if_cached(METADATA, start, end) is None
    part = storage.fetch_log_segment_file(METADATA, start, end)
    assert part is not None
    assert part.read() == CONTENT[start:end]
    again = storage.fetch_log_segment_file_if_cached(METADATA, start, end)
    assert again is not None
    assert (again.fd, again.position, again.length) == (part.fd, part.position, part.length)
    assert storage.fetch_log_segment(METADATA, start, end) == CONTENT[start:end]
    assert storage.cache.size_bytes == 0, "no chunk is in memory"
    assert storage.fetch_log_segment_file(METADATA, end, end) is None


def test_a_chunk_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_files, "_PIECE_BYTES", 100)
    storage, reads = copied(tmp_path), []
    read_into = storage.store.read_into  # type: ignore[attr-defined]  # a folder

    def counted(key: str, descriptor: int, position: int, buffer: memoryview) -> None:
        reads.append((position, len(buffer)))
        read_into(key, descriptor, position, buffer)

    monkeypatch.setattr(storage.store, "read_into", counted)
    for position in range(0, 1000, 100):
        storage.fetch_log_segment_file(METADATA, position, position + 50)
    assert reads == [(position, min(100, 1024 - position)) for position in range(0, 1024, 100)]


def test_a_chunk_is_verified_again_when_the_disk_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, path = copied(tmp_path), file_of(tmp_path)
    storage.fetch_log_segment_file(METADATA, 0, 4096)
    flip(path, 1025)
    as_before(path)
    assert storage.fetch_log_segment_file(METADATA, 1024, 1030) is not None, "it is known"
    asked = []

    def is_cached(_: int, position: int, length: int) -> bool:
        asked.append((position, length))
        return False

    monkeypatch.setattr(object_files, "is_cached", is_cached)
    with pytest.raises(RemoteObjectCorruptError, match="wrong checksum from 1024 to 2048"):
        storage.fetch_log_segment_file(METADATA, 1026, 1030)
    assert asked == [(1026, 4)]


def test_a_file_that_was_written_to_is_verified_again(tmp_path: Path) -> None:
    storage, path = copied(tmp_path), file_of(tmp_path)
    storage.fetch_log_segment_file(METADATA, 0, 4096)
    flip(path, 5)
    os.utime(path, ns=(0, 1))
    assert storage.fetch_log_segment_file_if_cached(METADATA, 0, 10) is None
    with pytest.raises(RemoteObjectCorruptError, match="wrong checksum from 0 to 1024"):
        storage.fetch_log_segment_file(METADATA, 0, 10)


def test_a_good_copy_in_place_of_a_corrupt_object_is_read(tmp_path: Path) -> None:
    storage, path = copied(tmp_path), file_of(tmp_path)
    good = path.read_bytes()
    flip(path, 5)
    with pytest.raises(RemoteObjectCorruptError):
        storage.fetch_log_segment_file(METADATA, 0, 10)
    copy = path.with_name("copy")
    copy.write_bytes(good)
    copy.rename(path)
    part = storage.fetch_log_segment_file(METADATA, 0, 10)
    assert part is not None
    assert part.read() == CONTENT[:10]


def test_a_wrong_checksum_is_compared_with_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, path = copied(tmp_path), file_of(tmp_path)
    flip(path, 5)
    dropped = []

    def drop_cached(_: int, position: int, length: int) -> None:
        dropped.append((position, length))
        flip(path, 5)  # the bytes of the disk are the right ones

    monkeypatch.setattr(object_files, "drop_cached", drop_cached)
    assert storage.fetch_log_segment_file(METADATA, 0, 10) is not None
    assert dropped == [(0, 1024)]


def test_damage_and_a_missing_object_are_errors(tmp_path: Path) -> None:
    storage, path = copied(tmp_path), file_of(tmp_path)
    os.truncate(path, SIZE - 1)
    with pytest.raises(RemoteObjectCorruptError, match="ends at 9999"):
        storage.fetch_log_segment_file(METADATA, SIZE - 1, SIZE)
    path.unlink()
    fresh = opened(tmp_path)
    with pytest.raises(RemoteResourceNotFoundError, match="does not exist"):
        fresh.fetch_log_segment_file(METADATA, 0, 10)


def test_a_deleted_segment_is_closed(tmp_path: Path) -> None:
    storage = copied(tmp_path)
    part = storage.fetch_log_segment_file(METADATA, 0, 100)
    storage.delete_log_segment(METADATA)
    assert part is not None
    assert part.read() == CONTENT[:100], "a response that is being sent keeps it open"
    with pytest.raises(RemoteResourceNotFoundError):
        storage.fetch_log_segment_file(METADATA, 0, 100)


def test_few_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_files, "_MAX_OPEN", 0)
    storage = copied(tmp_path)
    part = storage.fetch_log_segment_file(METADATA, 0, 100)
    assert part is not None
    descriptor = part.fd
    del part
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_segments_that_cannot_be_sent_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed = copied(tmp_path, compression_enabled="true")
    assert compressed.fetch_log_segment_file(METADATA, 0, 100) is None
    assert compressed.fetch_log_segment(METADATA, 0, 100) == CONTENT[:100]
    monkeypatch.setattr(object_files, "knows_what_is_cached", lambda _: False)
    elsewhere = copied(tmp_path)
    assert elsewhere.fetch_log_segment_file(METADATA, 0, 100) is None
    assert elsewhere.fetch_log_segment(METADATA, 0, 100) == CONTENT[:100]
    assert elsewhere.fetch_log_segment_if_cached(METADATA, 0, 100) == CONTENT[:100]


def test_the_next_chunks_are_verified_ahead(tmp_path: Path) -> None:
    started: list[Callable[[], None]] = []
    copied(tmp_path)
    storage = open_remote_storage(
        {
            "storage.backend.class": "filesystem",
            "storage.root": str(tmp_path / "remote"),
            "chunk.size": "1024",
            "fetch.chunk.cache.prefetch.max.size": "2048",
        },
        background=started.append,
        sends_files=True,
    )
    storage.fetch_log_segment_file(METADATA, 0, 10)
    for read in started:
        read()
    assert storage.fetch_log_segment_file_if_cached(METADATA, 0, 3072) is not None
    assert storage.fetch_log_segment_file_if_cached(METADATA, 0, 3073) is None
