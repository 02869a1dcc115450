from __future__ import annotations

import errno
from collections.abc import Iterator
from random import Random

import pytest

from ottla.storage.remote.local_object_store import LocalObjectStore
from ottla.storage.remote.object_store import StoredObject
from ottla.storage.remote.remote_storage import (
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from tests.doubles.memory_file_system import MemoryFileSystem


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_directory("/remote")
    return fs


def test_an_object_is_read_back(fs: MemoryFileSystem) -> None:
    store = LocalObjectStore(fs, "/remote")
    assert store.put("a/b.log", [b"one", memoryview(b"two")]) == 6
    assert store.get("a/b.log", 6) == b"onetwo"
    assert store.get_range("a/b.log", 2, 3) == b"etw"
    assert store.size("a/b.log") == 6
    store.put("a/b.log", [])
    assert store.get("a/b.log", 0) == b""
    store.close()


def test_a_listing(fs: MemoryFileSystem) -> None:
    store = LocalObjectStore(fs, "/remote")
    for key in ("x/a/1.log", "x/ab/1.log", "y"):
        store.put(key, [b"content"])

    def keys(prefix: str) -> list[str]:
        return sorted(found.key for found in store.list(prefix))

    assert keys("") == ["x/a/1.log", "x/ab/1.log", "y"]
    assert keys("x/a") == ["x/a/1.log", "x/ab/1.log"]
    assert keys("x/a/") == ["x/a/1.log"]
    assert keys("none/here") == []
    assert list(store.list("y")) == [StoredObject("y", 7, 0)]


def test_what_is_deleted_is_not_there(fs: MemoryFileSystem) -> None:
    store = LocalObjectStore(fs, "/remote")
    store.put("a/b", [b"content"])
    store.delete(["a/b", "a/b", "c/d"])
    for read in (store.size, lambda key: store.get(key, 9), lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(RemoteResourceNotFoundError, match="a/b does not exist"):
            read("a/b")


def test_a_short_or_large_object_is_corrupt(fs: MemoryFileSystem) -> None:
    store = LocalObjectStore(fs, "/remote")
    store.put("a", [b"content"])
    with pytest.raises(RemoteObjectCorruptError, match="ends at 7, expected 5 bytes from 3 on"):
        store.get_range("a", 3, 5)
    with pytest.raises(RemoteObjectCorruptError, match="has 7 bytes, expected at most 6"):
        store.get("a", 6)


@pytest.mark.parametrize("key", ["../a", "a/../b", "/a", "a//b", "a/.", "a\0"])
def test_no_object_is_outside_the_folder(fs: MemoryFileSystem, key: str) -> None:
    with pytest.raises(RemoteStorageError, match="cannot be the name"):
        LocalObjectStore(fs, "/remote").put(key, [b""])


def test_an_upload_that_fails_leaves_nothing(fs: MemoryFileSystem) -> None:
    store = LocalObjectStore(fs, "/remote")

    def content() -> Iterator[bytes]:
        yield b"begin"
        raise RemoteStorageError("the disk is away")

    with pytest.raises(RemoteStorageError, match="the disk is away"):
        store.put("a/b", content())
    assert list(store.list("")) == []


@pytest.mark.parametrize("operation", ["open", "pwrite", "sync", "replace", "sync_directory"])
def test_an_error_of_the_disk_is_one_of_the_storage(fs: MemoryFileSystem, operation: str) -> None:
    store = LocalObjectStore(fs, "/remote")
    fs.fail(operation, errno.EIO)
    with pytest.raises(RemoteStorageError, match="Cannot write the object a/b"):
        store.put("a/b", [b"content"])
    fs.heal()
    store.put("a/b", [b"content"])
    assert store.get("a/b", 7) == b"content"


@pytest.mark.parametrize("seed", range(20))
def test_an_object_survives_a_power_failure(fs: MemoryFileSystem, seed: int) -> None:
    LocalObjectStore(fs, "/remote").put("x/y/z", [b"content" * 100, b"end"])
    after = LocalObjectStore(fs.after_power_failure(Random(seed)), "/remote")
    assert after.get("x/y/z", 703) == b"content" * 100 + b"end"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("operation", ["sync", "replace", "sync_directory"])
def test_an_interrupted_upload_is_there_whole_or_not_at_all(
    fs: MemoryFileSystem, operation: str, seed: int
) -> None:
    fs.fail(operation, errno.EIO)
    with pytest.raises(RemoteStorageError):
        LocalObjectStore(fs, "/remote").put("x/y/z", [b"content" * 100])
    after = LocalObjectStore(fs.after_power_failure(Random(seed)), "/remote")
    try:
        assert after.get("x/y/z", 700) == b"content" * 100
    except RemoteResourceNotFoundError:
        assert [found.key for found in after.list("")] in ([], ["x/y/z.tmp"])
