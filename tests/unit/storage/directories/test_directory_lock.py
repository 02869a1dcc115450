"""The lock of a log directory."""

from pathlib import Path

import pytest

from ottla.storage.directories.directory_lock import DirectoryLock


def test_a_lock_is_a_file_that_can_be_taken_again(tmp_path: Path) -> None:
    lock = DirectoryLock(str(tmp_path))
    assert (tmp_path / ".lock").exists()
    lock.release()
    lock.release()
    DirectoryLock(str(tmp_path)).release()


def test_no_directory_no_lock(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirectoryLock(str(tmp_path / "none"))
