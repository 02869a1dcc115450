"""The object that marks a store as that of a cluster, and what is refused without it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import UUID

import pytest

from ottla.storage.files.fs import Buffer
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.object_store import NAME, StoreNotProvenError
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import RemoteStorageError
from tests.doubles.remote_segments import segment_content, segment_files, segment_metadata

CONTENT = segment_content(10_000)
METADATA = segment_metadata(len(CONTENT))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "remote").mkdir()
    return tmp_path / "remote"


def opened(root: Path, cluster_id: str | None = "cluster", **more: str) -> ObjectRemoteStorage:
    settings = {
        "storage.backend.class": "filesystem",
        "storage.root": str(root),
        "chunk.size": "4096",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return open_remote_storage(settings, cluster_id=cluster_id)


def copy(storage: ObjectRemoteStorage, root: Path) -> None:
    storage.copy_log_segment(METADATA, segment_files(root.parent / "log", CONTENT))


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_the_first_use_marks_a_store(root: Path) -> None:
    storage = opened(root)
    assert not storage.is_proven
    for refused in (copy, lambda storage, _: storage.delete_log_segment(METADATA)):
        with pytest.raises(StoreNotProvenError, match=rf"folder {root} is not known as the store"):
            refused(storage, root)
    assert files(root) == []
    storage.prove([], is_unused=True)
    assert storage.is_proven
    assert files(root) == [f"{NAME}cluster"]
    copy(storage, root)
    storage.delete_log_segment(METADATA)
    storage.delete_log_segment(METADATA)  # it is not there, in the right store
    other = opened(root, "other")
    with pytest.raises(StoreNotProvenError):
        other.delete_log_segment(METADATA)


def test_an_empty_store_is_not_that_of_a_cluster_with_segments(root: Path) -> None:
    storage = opened(root)
    with pytest.raises(StoreNotProvenError, match="ottla tiered adopt"):
        storage.prove([METADATA], is_unused=False)
    assert files(root) == []
    storage.adopt()
    storage.prove([METADATA], is_unused=False)


def test_a_store_with_a_segment_of_the_cluster_is_marked(root: Path) -> None:
    copy(opened(root, None), root)
    missing = segment_metadata(10, start_offset=7, segment_id=UUID(int=9))
    storage = opened(root)
    storage.prove([missing, METADATA], is_unused=False)
    storage.delete_log_segment(METADATA)
    with pytest.raises(StoreNotProvenError):
        opened(root, key_prefix="other/").prove([METADATA], is_unused=False)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"clusterId": "other"}', b"x" * 5000])
def test_another_object_of_that_name_proves_nothing(root: Path, content: bytes) -> None:
    (root / f"{NAME}cluster").write_bytes(content)
    storage = opened(root)
    with pytest.raises(StoreNotProvenError):
        storage.prove([METADATA], is_unused=False)
    storage.prove([], is_unused=True)
    copy(storage, root)


def interrupted(
    storage: ObjectRemoteStorage,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    action: Callable[[], object],
) -> None:
    """`action` runs before a call of the store."""
    inner = getattr(storage.store, method)

    def call(*arguments: object) -> object:
        action()
        return inner(*arguments)

    monkeypatch.setattr(storage.store, method, call)


def test_a_file_system_that_is_unmounted_during_a_copy(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened(root)
    storage.prove([], is_unused=True)

    def unmount() -> None:
        if (root / storage.keys.prefix / f"{NAME}cluster").exists():
            shutil.rmtree(root)
            root.mkdir()

    interrupted(storage, monkeypatch, "put", unmount)
    with pytest.raises(RemoteStorageError):
        copy(storage, root)
    assert files(root) == []  # the disk below the mount point
    assert not storage.is_proven


def test_a_file_system_that_is_unmounted_during_a_deletion(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, away = opened(root), root.parent / "away"
    storage.prove([], is_unused=True)
    copy(storage, root)
    before = files(root)

    def unmount() -> None:
        root.rename(away)
        root.mkdir()

    interrupted(storage, monkeypatch, "delete", unmount)
    with pytest.raises(StoreNotProvenError):
        storage.delete_log_segment(METADATA)
    monkeypatch.undo()
    assert files(away) == before
    root.rmdir()
    away.rename(root)
    storage.prove([], is_unused=False)
    storage.delete_log_segment(METADATA)
    assert files(root) == [f"{NAME}cluster"]


def test_directories_that_an_operator_removed_are_made_again(root: Path) -> None:
    storage = opened(root)
    storage.prove([], is_unused=True)
    copy(storage, root)
    for path in list(root.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
    copy(storage, root)
    assert len(files(root)) == 4


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_an_upload_that_is_shorter_than_the_store_says_is_no_copy(
    root: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    storage = opened(root, None)
    put = storage.store.put

    def truncated(key: str, content: Iterable[Buffer]) -> int:
        size = put(key, content)
        if key.endswith(suffix):
            with (root / key).open("r+b") as file:
                file.truncate(size - 1)
        return size

    monkeypatch.setattr(storage.store, "put", truncated)
    with pytest.raises(RemoteStorageError, match="bytes after its copy, expected"):
        copy(storage, root)
    assert files(root) == []


def test_a_folder_that_is_gone_is_not_made_again(root: Path) -> None:
    storage = opened(root, None)
    copy(storage, root)
    for _ in range(2):  # directories that were known, and that were not
        shutil.rmtree(root, ignore_errors=True)
        with pytest.raises(RemoteStorageError, match="is not there"):
            copy(storage, root)
        assert not root.exists()
        storage = opened_after_start(root)


def opened_after_start(root: Path) -> ObjectRemoteStorage:
    """A store whose folder goes after the broker has started."""
    root.mkdir()
    return opened(root, None)
