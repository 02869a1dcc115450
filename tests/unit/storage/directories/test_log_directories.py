"""Several log directories: what happens to one that fails while it is asked."""

import errno
from pathlib import Path

import pytest

from ottla.storage.directories.log_directories import LogDirectories
from ottla.storage.directories.meta_properties import MetaProperties
from ottla.storage.errors import DirectoryInUse, LogDirectoryOffline
from ottla.storage.files.fs import RealFileSystem
from tests.doubles.memory_file_system import MemoryFileSystem


def made(fs: MemoryFileSystem, *paths: str) -> LogDirectories:
    for path in paths:
        fs.make_directory(path)
    return LogDirectories(fs, paths, 100)


def test_the_one_with_the_fewest_logs_is_chosen() -> None:
    directories = made(MemoryFileSystem(), "/a", "/b", "/c")
    assert directories.choose({"/a": 2, "/b": 1, "/c": 3}, None).path == "/b"
    assert directories.choose({"/a": 2, "/b": 1, "/c": 3}, "/c").path == "/c"
    directories.find("/c").fail(OSError("broken"))
    assert directories.choose({"/a": 2, "/b": 1}, "/c").path == "/b"
    for directory in directories.all:
        directory.fail(OSError("broken"))
    with pytest.raises(LogDirectoryOffline):
        directories.choose({}, None)


@pytest.mark.parametrize("act", ["read", "write", "mark", "checkpoint"])
def test_one_that_fails_goes_offline_and_the_others_are_served(act: str) -> None:
    fs = MemoryFileSystem()
    directories = made(fs, "/a", "/b")
    meta = MetaProperties(1, "c")
    directories.write_meta_properties(meta)
    fs.fail("open", errno.EIO, path_part="/a/")
    if act == "read":
        assert directories.read_meta_properties() == meta
    elif act == "write":
        directories.write_meta_properties(MetaProperties(2, "c"))
        assert b"broker.id=2" in fs.content("/b/meta.properties")
    elif act == "mark":
        directories.mark_clean(5)
        assert fs.exists("/b/.kafka_cleanshutdown")
    else:
        directories.write_checkpoint("x-offset-checkpoint", {"/a": {}, "/b": {}})
        assert fs.exists("/b/x-offset-checkpoint")
    assert [d.path for d in directories.online()] == ["/b"]


def test_checkpoints_are_written_only_where_given() -> None:
    fs = MemoryFileSystem()
    made(fs, "/a", "/b").write_checkpoint("x", {"/b": {("t", 0): 1}})
    assert not fs.exists("/a/x")
    assert fs.exists("/b/x")


def test_locks_keep_a_second_process_out(tmp_path: Path) -> None:
    """Within one process a POSIX lock can be taken twice, so the other one is a real process."""
    import subprocess
    import sys

    directories = LogDirectories(RealFileSystem(), [tmp_path / "d"], 100)
    directories.lock()
    script = (
        "import sys\n"
        "from ottla.storage.directories.directory_lock import DirectoryLock\n"
        "from ottla.storage.errors import DirectoryInUse\n"
        "try:\n    DirectoryLock(sys.argv[1])\n"
        "except DirectoryInUse as error:\n    print('refused', error)\n"
        "else:\n    print('taken')\n"
    )

    def other() -> str:
        command = [sys.executable, "-c", script, str(tmp_path / "d")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert other().startswith(f"refused log dir {tmp_path / 'd'} is locked by another broker")
    directories.unlock()
    assert other() == "taken\n"
    assert DirectoryInUse.__doc__


def test_a_directory_that_cannot_be_locked_is_offline(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    directories = LogDirectories(RealFileSystem(), [tmp_path / "file" / "d"], 100)
    directories.lock()
    assert directories.online() == []
