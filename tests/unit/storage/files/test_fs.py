"""The file-system seam: the real one, and that the double in memory behaves like it."""

import errno
import os
from pathlib import Path

import pytest

from ottla.storage.errors import CorruptFile
from ottla.storage.files.fs import (
    CREATE,
    READ_ONLY,
    FileSystem,
    RealFileSystem,
    read_file,
    replace_file,
    write_fully,
)
from tests.doubles.memory_file_system import MemoryFileSystem


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    if request.param == "real":
        return RealFileSystem(), str(tmp_path)
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    return fs, "/d"


def write(fs: FileSystem, path: str, content: bytes) -> None:
    descriptor = fs.open(path, CREATE)
    write_fully(fs, descriptor, content, 0)
    fs.sync(descriptor)
    fs.close(descriptor)


def test_files_are_written_read_and_listed(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    write(fs, f"{root}/a", b"hello")
    assert fs.list_files(root) == {"a": 5}
    assert read_file(fs, f"{root}/a", 10) == b"hello"
    descriptor = fs.open(f"{root}/a", READ_ONLY)
    assert fs.size(descriptor) == 5
    assert fs.pread(descriptor, 3, 1) == b"ell"
    fs.close(descriptor)
    assert fs.exists(f"{root}/a")
    assert fs.modified_ms(f"{root}/a") >= 0
    assert fs.free_bytes(root) > 0
    assert fs.total_bytes(root) >= fs.free_bytes(root)


def test_files_are_truncated_replaced_and_removed(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    write(fs, f"{root}/a", b"hello")
    descriptor = fs.open(f"{root}/a", CREATE)
    fs.truncate(descriptor, 2)
    fs.close(descriptor)
    write(fs, f"{root}/b", b"other")
    fs.replace(f"{root}/a", f"{root}/b")
    fs.sync_directory(root)
    assert fs.list_files(root) == {"b": 2}
    fs.remove(f"{root}/b")
    assert fs.list_files(root) == {}
    with pytest.raises(FileNotFoundError):
        fs.remove(f"{root}/b")
    with pytest.raises(FileNotFoundError):
        fs.open(f"{root}/b", READ_ONLY)


def test_directories_are_made_moved_and_removed(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    fs.make_directory(f"{root}/x/y")
    fs.make_directory(f"{root}/x/y")
    write(fs, f"{root}/x/y/f", b"1")
    fs.replace(f"{root}/x/y", f"{root}/x/z")
    assert fs.list_directories(f"{root}/x") == ["z"]
    assert fs.list_files(f"{root}/x/z") == {"f": 1}
    fs.remove_tree(f"{root}/x")
    fs.remove_tree(f"{root}/x")
    assert fs.list_directories(root) == []


def test_a_link_to_another_disk_is_removed_with_the_directory_behind_it(tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk" / "t-0"
    elsewhere.mkdir(parents=True)
    (elsewhere / "00000000000000000000.log").write_bytes(b"records")
    link = tmp_path / "t-0.0a-delete"
    link.symlink_to(elsewhere)
    fs = RealFileSystem()
    fs.remove_tree(str(link))
    assert not os.path.lexists(link)
    assert not elsewhere.exists()
    assert elsewhere.parent.is_dir()
    link.symlink_to(elsewhere)  # which is gone
    fs.remove_tree(str(link))
    assert not os.path.lexists(link)


def test_an_open_file_outlives_its_name(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    write(fs, f"{root}/a", b"hello")
    descriptor = fs.open(f"{root}/a", READ_ONLY)
    fs.remove(f"{root}/a")
    assert fs.pread(descriptor, 5, 0) == b"hello"
    fs.close(descriptor)


def test_replace_file_leaves_no_temporary(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    replace_file(fs, f"{root}/c", b"one", sync=True)
    replace_file(fs, f"{root}/c", b"three", sync=False)
    assert fs.list_files(root) == {"c": 5}


def test_read_file_has_a_limit(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    write(fs, f"{root}/a", b"hello")
    with pytest.raises(CorruptFile, match="at most 4"):
        read_file(fs, f"{root}/a", 4)


def test_short_writes_are_continued() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    descriptor = fs.open("/d/a", CREATE)
    fs.fail("pwrite", short=True, times=2)
    write_fully(fs, descriptor, b"0123456789", 0)
    assert fs.content("/d/a") == b"0123456789"
    fs.close(descriptor)


def test_a_write_that_makes_no_progress_fails() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    descriptor = fs.open("/d/a", CREATE)
    fs.fail("pwrite", short=True, times=10)
    with pytest.raises(OSError, match="no progress"):
        write_fully(fs, descriptor, b"01", 0)
    fs.close(descriptor)


def test_memory_loses_what_was_not_synced() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    write(fs, "/d/synced", b"hello")
    descriptor = fs.open("/d/synced", CREATE)
    fs.pwrite(descriptor, b" world", 5)
    os.close(descriptor)
    descriptor = fs.open("/d/never", CREATE)
    os.close(descriptor)
    after = fs.after_power_failure()
    assert after.paths() == ["/d/synced"]
    assert after.content("/d/synced") == b"hello"
    assert fs.after_kill().content("/d/synced") == b"hello world"


def test_memory_runs_full() -> None:
    fs = MemoryFileSystem(room=10)
    fs.make_directory("/d")
    descriptor = fs.open("/d/a", CREATE)
    with pytest.raises(OSError) as caught:
        write_fully(fs, descriptor, b"x" * 20, 0)
    assert caught.value.errno == errno.ENOSPC
    assert len(fs.content("/d/a")) == 10
    fs.close(descriptor)


def test_a_file_system_that_does_not_count_is_not_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = RealFileSystem()
    assert 0 <= fs.free_bytes(str(tmp_path)) <= fs.total_bytes(str(tmp_path))
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, *[0] * 8)))
    assert fs.free_bytes(str(tmp_path)) == 1 << 62


def test_files_are_not_for_other_users(tmp_path: Path) -> None:
    """Whatever the umask of the process allows."""
    before = os.umask(0)
    try:
        fs, directory = RealFileSystem(), tmp_path / "logs" / "t-0"
        fs.make_directory(str(directory))
        write(fs, str(directory / "0.log"), b"record")
        replace_file(fs, str(directory / "checkpoint"), b"0", sync=False)
    finally:
        os.umask(before)
    modes = {each.name: each.stat().st_mode & 0o777 for each in directory.iterdir()}
    assert modes == {"0.log": 0o640, "checkpoint": 0o640}
    assert directory.stat().st_mode & 0o777 == 0o750


def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorruptFile, match="it is a pipe"):
        read_file(RealFileSystem(), str(tmp_path / "pipe"), 10)
