from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest

from ottla.storage.remote.inventory import delete_orphans, take_inventory, verify_segment
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.segments import RemoteLogSegmentState
from tests.doubles.remote_segments import segment_content, segment_files, segment_metadata

CONTENT = segment_content(5000)
FIRST = segment_metadata(5000)
SECOND = segment_metadata(5000, segment_id=UUID(int=7))
DELETED = SECOND.with_state(RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, 1, 3000)
HOUR_MS = 3_600_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "remote").mkdir()
    return tmp_path / "remote"


@pytest.fixture
def remote(root: Path, tmp_path: Path) -> ObjectRemoteStorage:
    settings = {
        "storage.backend.class": "filesystem",
        "storage.root": str(root),
        "chunk.size": "1024",
        "key.prefix": "p/",
    }
    storage = open_remote_storage(settings)
    for metadata in (FIRST, SECOND):
        storage.copy_log_segment(metadata, segment_files(tmp_path / "log", CONTENT))
    for path in root.rglob("*.*"):
        os.utime(path, (1000, 1000))
    return storage


def file(root: Path, suffix: str) -> Path:
    [path] = root.rglob(f"*tqimKZ5wStOEOwRzT3L5oQ.{suffix}")
    return path


def test_objects_of_no_live_segment_are_orphans(root: Path, remote: ObjectRemoteStorage) -> None:
    file(root, "log").with_name(file(root, "log").name + ".tmp").write_bytes(b"interrupted")
    (root / "p" / "README").write_bytes(b"not ours")
    inventory = take_inventory(remote, [FIRST, DELETED], 1_000_000 + HOUR_MS, HOUR_MS)
    assert inventory.live_objects == 3
    assert inventory.foreign == 1
    # The interrupted upload has the time of now, which is after the time of this test.
    assert [found.key.rpartition(".")[2] for found in inventory.young] == ["tmp"]
    assert len(inventory.orphans) == 3
    delete_orphans(remote, inventory.orphans)
    assert take_inventory(remote, [FIRST], 1_000_000 + HOUR_MS, HOUR_MS).orphans == []
    assert remote.fetch_log_segment(FIRST, 0, 5000) == CONTENT
    assert list(verify_segment(remote, FIRST, read_content=True)) == []


def test_young_objects_are_kept(remote: ObjectRemoteStorage) -> None:
    inventory = take_inventory(remote, [FIRST], 1_000_000 + HOUR_MS - 1, HOUR_MS)
    assert inventory.orphans == []
    assert len(inventory.young) == 3


def test_segments_that_are_copied_or_deleted_now_are_live(remote: ObjectRemoteStorage) -> None:
    deleting = SECOND.with_state(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1, 3000)
    inventory = take_inventory(remote, [FIRST, deleting], 1_000_000 + HOUR_MS, HOUR_MS)
    assert inventory.live_objects == 6
    assert inventory.live_bytes > 10_000


def test_intact_segments(remote: ObjectRemoteStorage) -> None:
    assert list(verify_segment(remote, FIRST, read_content=False)) == []
    assert list(verify_segment(remote, FIRST, read_content=True)) == []


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_a_missing_object(root: Path, remote: ObjectRemoteStorage, suffix: str) -> None:
    file(root, suffix).unlink()
    [problem] = verify_segment(remote, FIRST, read_content=False)
    assert f".{suffix} does not exist" in problem


@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_a_short_object(root: Path, remote: ObjectRemoteStorage, suffix: str) -> None:
    path = file(root, suffix)
    path.write_bytes(path.read_bytes()[:-1])
    [problem] = verify_segment(remote, FIRST, read_content=False)
    assert "bytes, expected" in problem


@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_changed_bytes(root: Path, remote: ObjectRemoteStorage, suffix: str) -> None:
    content = bytearray(file(root, suffix).read_bytes())
    content[5] ^= 1
    file(root, suffix).write_bytes(content)
    assert list(verify_segment(remote, FIRST, read_content=False)) == []
    [problem] = verify_segment(remote, FIRST, read_content=True)
    assert "wrong checksum from 0 to" in problem


def test_a_manifest_of_another_segment(remote: ObjectRemoteStorage) -> None:
    [problem] = verify_segment(remote, segment_metadata(4999), read_content=False)
    assert "a segment with 5000 bytes, the metadata of one with 4999" in problem
