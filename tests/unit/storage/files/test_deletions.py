"""Delayed deletion."""

import errno

import pytest

from ottla.storage.files.deletions import Deletions
from tests.doubles.memory_file_system import MemoryFileSystem


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.make_directory("/d/x")
    for path in ("/d/a", "/d/b", "/d/x/c"):
        system.close(system.open(path, 64))  # O_CREAT
    return system


def test_each_at_its_time(fs: MemoryFileSystem) -> None:
    deletions = Deletions(fs)
    deletions.add("/d/a", 100)
    deletions.add("/d/b", 200)
    deletions.add("/d/x", 200, is_directory=True)
    assert deletions.purge(99) == 0
    assert deletions.purge(100) == 1
    assert fs.paths() == ["/d/b", "/d/x/c"]
    assert deletions.purge(500) == 2
    assert fs.paths() == []
    assert len(deletions) == 0


def test_what_is_gone_already_is_fine_and_what_fails_is_said(
    fs: MemoryFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    deletions = Deletions(fs)
    deletions.add("/d/none", 0)
    deletions.add("/d/a", 0)
    fs.fail("remove", errno.EIO, path_part="/d/a")
    deletions.purge(0)
    assert len(deletions) == 0
    assert caplog.text.count("Could not delete") == 1


def test_what_is_due_below_a_renamed_directory_is_deleted_there(fs: MemoryFileSystem) -> None:
    deletions = Deletions(fs)
    deletions.add("/d/x/c", 100)
    deletions.add("/d/xx", 100)  # not below it
    deletions.rename_under("/d/x", "/d/y")
    fs.replace("/d/x", "/d/y")
    assert len(deletions) == 2
    assert deletions.purge(99) == 0
    assert fs.paths() == ["/d/a", "/d/b", "/d/y/c"]
    assert deletions.purge(100) == 2
    assert fs.paths() == ["/d/a", "/d/b"]


@pytest.mark.parametrize(
    "fault",
    [("remove_tree", errno.EMFILE), ("remove_tree", errno.ENFILE), ("remove", errno.ENOMEM)],
)
def test_what_lacks_descriptors_is_deleted_at_the_next_time(
    fs: MemoryFileSystem, caplog: pytest.LogCaptureFixture, fault: tuple[str, int]
) -> None:
    deletions = Deletions(fs)
    deletions.add("/d/a", 0)
    deletions.add("/d/x", 0, is_directory=True)
    fs.fail(*fault)
    assert deletions.purge(0) == 1
    assert len(deletions) == 1
    assert "Could not delete" in caplog.text
    assert deletions.purge(0) == 1
    assert fs.paths() == ["/d/b"]
    assert len(deletions) == 0


def test_a_new_file_of_the_name_of_one_that_is_being_deleted_is_deleted_as_well(
    fs: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is compacted again and again, and has one name for what it replaces."""
    deletions = Deletions(fs)
    deletions.add("/d/a", 0)
    remove = fs.remove

    def remove_and_replace(path: str) -> None:
        remove(path)
        fs.replace("/d/b", path)
        deletions.add(path, 0)

    monkeypatch.setattr(fs, "remove", remove_and_replace)
    assert deletions.purge(0) == 1
    monkeypatch.undo()
    assert deletions.purge(0) == 1
    assert fs.paths() == ["/d/x/c"]
