"""The lock of a log directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.storage.directories.directory_lock import DirectoryLock
from ottla.storage.errors import DirectoryInUse

OTHER_PROCESS = """
import sys
from ottla.storage.directories.directory_lock import DirectoryLock
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
