"""Several log directories: what happens to one that fails while it is asked."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from ottla.storage.directories.log_directories import (
    DirectoryLock,
    LogDirectories,
    MetaProperties,
    Placement,
    common_meta_properties,
    read_meta_properties,
    write_meta_properties,
)
from ottla.storage.errors import (
    CorruptFile,
    DirectoryInUse,
    InconsistentMetadata,
    LogDirectoryOffline,
)
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.log_directory import LogDirectory
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
        "from ottla.storage.directories.log_directories import DirectoryLock\n"
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


OTHER_PROCESS = """
import sys
from ottla.storage.directories.log_directories import DirectoryLock
from ottla.storage.errors import DirectoryInUse
try:
    DirectoryLock(sys.argv[1])
except DirectoryInUse:
    print("refused")
else:
    print("taken")
"""

# What Java's FileChannel.tryLock does.
OF_KAFKA = """
import fcntl, sys
file = open(sys.argv[1] + "/.lock", "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused")
else:
    print("taken", flush=True)
    sys.stdin.read()
"""


def of_other_process(directory: Path, program: str = OTHER_PROCESS) -> str:
    command = [sys.executable, "-c", program, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, input="")
    return done.stdout.strip()


def test_a_lock_is_a_file_that_can_be_taken_again(tmp_path: Path) -> None:
    lock = DirectoryLock(str(tmp_path))
    assert (tmp_path / ".lock").exists()
    lock.release()
    lock.release()
    DirectoryLock(str(tmp_path)).release()


def test_no_directory_no_lock(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirectoryLock(str(tmp_path / "none"))


def test_a_second_lock_of_the_same_process_is_refused_and_the_first_one_stays(
    tmp_path: Path,
) -> None:
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    lock = DirectoryLock(str(data))
    for path in (data, link):
        with pytest.raises(DirectoryInUse, match=f"used by this process already, as {data}"):
            DirectoryLock(str(path))
        # To close any descriptor of the file would release the lock of POSIX.
        assert of_other_process(path) == of_other_process(path, OF_KAFKA) == "refused"
    lock.release()
    assert of_other_process(data) == of_other_process(data, OF_KAFKA) == "taken"


def test_a_lock_of_kafka_is_respected(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    command = [sys.executable, "-c", OF_KAFKA, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as kafka:
        assert kafka.stdout is not None
        assert kafka.stdout.readline() == b"taken\n"
        with pytest.raises(DirectoryInUse, match="locked by another broker process"):
            DirectoryLock(str(tmp_path))
        kafka.communicate()
    DirectoryLock(str(tmp_path)).release()


def test_the_lock_holds_when_its_file_was_deleted(tmp_path: Path) -> None:
    """A usual reaction to the message that a directory is locked."""
    lock = DirectoryLock(str(tmp_path))
    (tmp_path / ".lock").unlink()
    assert of_other_process(tmp_path) == "refused"
    with pytest.raises(DirectoryInUse):
        DirectoryLock(str(tmp_path))
    lock.release()
    assert of_other_process(tmp_path) == "taken"


def test_a_refused_lock_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(IsADirectoryError):
        DirectoryLock(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before
    (tmp_path / ".lock").rmdir()
    DirectoryLock(str(tmp_path)).release()


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.make_directory("/d")
    return system


def test_what_is_written_is_read(fs: MemoryFileSystem) -> None:
    assert read_meta_properties(fs, "/d") is None
    write_meta_properties(fs, "/d", MetaProperties(5, "bOS1Lo-MQy6q2ZIuCBiq-g"))
    assert read_meta_properties(fs, "/d") == (5, "bOS1Lo-MQy6q2ZIuCBiq-g")
    text = fs.content("/d/meta.properties")
    assert text == b"#\nbroker.id=5\nversion=0\ncluster.id=bOS1Lo-MQy6q2ZIuCBiq-g\n"


@pytest.mark.parametrize("text", [b"version=1\nnode.id=1\n", b"version=0\nbroker.id=x\n"])
def test_another_mode_or_junk_is_refused(fs: MemoryFileSystem, text: bytes) -> None:
    write_meta_properties(fs, "/d", MetaProperties(5, None))
    fs.overwrite("/d/meta.properties", text)
    with pytest.raises(CorruptFile):
        read_meta_properties(fs, "/d")


def test_directories_have_to_agree() -> None:
    assert common_meta_properties({}) == (None, None)
    assert common_meta_properties(
        {"/a": MetaProperties(1, None), "/b": MetaProperties(None, "c")}
    ) == (1, "c")
    with pytest.raises(InconsistentMetadata, match=r"cluster\.id"):
        common_meta_properties({"/a": MetaProperties(1, "x"), "/b": MetaProperties(1, "y")})


@dataclass
class OneLog:
    log_directory: LogDirectory


class Scene:
    def __init__(self, *paths: str) -> None:
        self.directories = LogDirectories(MemoryFileSystem(), paths, 100)
        self.logs: list[OneLog] = []
        self.counted = 0
        self.placement = Placement(self.directories, self._every_log)

    def _every_log(self) -> Any:
        self.counted += 1
        return cast("Any", self.logs)

    def create(self, partition: int) -> str:
        directory = self.placement.choose(("t", partition))
        self.logs.append(OneLog(directory))
        self.placement.created(("t", partition), directory)
        return directory.path


def test_new_logs_are_spread_and_counted_once() -> None:
    scene = Scene("/a", "/b", "/c")
    assert [scene.create(each) for each in range(6)] == ["/a", "/b", "/c"] * 2
    assert scene.counted == 1


def test_they_are_counted_again_after_a_deletion() -> None:
    scene = Scene("/a", "/b")
    assert [scene.create(each) for each in range(4)] == ["/a", "/b"] * 2
    scene.logs = [each for each in scene.logs if each.log_directory.path == "/a"]
    scene.placement.changed()
    assert [scene.create(each) for each in range(2)] == ["/b", "/b"]


def test_one_directory_needs_no_count() -> None:
    scene = Scene("/a")
    assert [scene.create(each) for each in range(2)] == ["/a", "/a"]
    assert scene.counted == 0


def test_the_preferred_directory_is_for_one_creation() -> None:
    scene = Scene("/a", "/b")
    scene.placement.prefer(("t", 0), "/b")
    assert [scene.create(0), scene.create(1), scene.create(0)] == ["/b", "/a", "/a"]
    with pytest.raises(ValueError):
        scene.placement.prefer(("t", 0), "/elsewhere")


def test_a_directory_that_failed_gets_none() -> None:
    scene = Scene("/a", "/b")
    scene.directories.all[0].fail(OSError(5, "broken"))
    assert scene.create(0) == "/b"
    scene.directories.all[1].fail(OSError(5, "broken"))
    with pytest.raises(LogDirectoryOffline):
        scene.create(1)
