"""The state of one disk."""

import errno

import pytest

from ottla.storage.errors import DiskFull, LogDirectoryOffline
from ottla.storage.files.fs import replace_file
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.set_aside import of_files
from tests.doubles.memory_file_system import MemoryFileSystem


@pytest.fixture
def directory() -> LogDirectory:
    return LogDirectory(MemoryFileSystem(room=1000), "/d")


def test_all_is_well_at_first(directory: LogDirectory) -> None:
    directory.check_online()
    directory.check_writable()
    assert not directory.is_offline
    assert not directory.is_full
    assert repr(directory) == "LogDirectory(/d)"


def test_offline_is_for_good(directory: LogDirectory, caplog: pytest.LogCaptureFixture) -> None:
    error = directory.fail(OSError(5, "broken"))
    assert isinstance(error, LogDirectoryOffline)
    assert (error.directory, "broken" in error.reason) == ("/d", True)
    directory.fail(OSError(5, "again"))
    directory.mark_full("no matter")
    directory.check_free_bytes(0)
    for check in (directory.check_online, directory.check_writable):
        with pytest.raises(LogDirectoryOffline, match="broken"):
            check()
    assert len(caplog.records) == 1


def test_full_ends_when_there_is_room(
    directory: LogDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    directory.mark_full("test")
    directory.mark_full("test")
    directory.check_online()
    with pytest.raises(DiskFull, match="test"):
        directory.check_writable()
    directory.check_free_bytes(1001)
    assert directory.is_full
    directory.check_free_bytes(500)
    directory.check_writable()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("min_free_bytes", [0, 500])
def test_a_refused_write_ends_when_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    min_free_bytes: int,
) -> None:
    """A quota leaves the disk with free bytes, of which this user gets none."""
    caplog.set_level("INFO")
    fs = MemoryFileSystem(room=4 << 20)
    fs.make_directory("/d")
    directory = LogDirectory(fs, "/d")

    def refuse(*_: object) -> int:
        raise OSError(number, "no more for you")

    with monkeypatch.context() as patch:
        patch.setattr(fs, "pwrite", refuse)
        assert isinstance(directory.write_failed(OSError(number, "no more for you")), DiskFull)
        for _ in range(3):
            directory.check_free_bytes(min_free_bytes)
            assert directory.is_full
    directory.check_free_bytes(min_free_bytes)
    directory.check_writable()
    assert fs.list_files("/d") == {}
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_a_probe_that_finds_a_broken_disk_takes_it_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs = MemoryFileSystem(room=4 << 20)
    fs.make_directory("/d")
    directory = LogDirectory(fs, "/d")
    directory.write_failed(OSError(errno.EDQUOT, "no more for you"))

    def fail(*_: object) -> int:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(fs, "open", fail)
    directory.check_free_bytes(0)
    assert directory.is_offline


def test_each_refusal_is_a_new_exception(directory: LogDirectory) -> None:
    directory.mark_full("test")
    caught = []
    for _ in range(2):
        with pytest.raises(DiskFull) as info:
            directory.check_writable()
        caught.append(info.value)
    assert caught[0] is not caught[1]


def test_what_was_discarded_is_forgotten_unless_the_disk_is_away() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/disk/t-0")
    for name in "ab":
        replace_file(fs, f"/disk/t-0/{name}.set-aside", b"", sync=False)
    directory = LogDirectory(fs, "/disk")
    directory.note_set_aside(of_files(fs.list_files("/disk/t-0"), "/disk/t-0", "t", 0))
    directory.forget_restored()
    assert len(directory.set_aside) == 2
    fs.remove("/disk/t-0/a.set-aside")
    found = directory.find_restored()
    # In another thread meanwhile.
    directory.note_set_aside(of_files(["c.set-aside"], "/disk/t-0", "t", 0))
    directory.forget_restored(found)
    assert [item.path[-11:-10] for item in directory.set_aside] == ["b", "c"]
    gone = LogDirectory(fs, "/gone")
    gone.note_set_aside(of_files(["c.set-aside"], "/gone/t-0", "t", 0))
    gone.forget_restored()
    assert len(gone.set_aside) == 1
