"""A deleted log whose directory cannot be renamed at once."""

import errno

import pytest

from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import DiskFull, LogDirectoryOffline
from ottla.storage.files.set_aside import Note, Reason
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, manager_on

TOPIC_ID, OTHER_ID = b"i" * 16, b"o" * 16
TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def deleted(code: int, *, stray: bool = False) -> tuple[MemoryFileSystem, LogManager]:
    """A manager that has deleted the log t-0 while renames fail."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    append(manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS), 3)
    fs.fail("replace", code, path_part="t-0", times=100)
    manager.delete_async("t", 0, NOW_MS, Note(Reason.TOPIC_GONE, "a test") if stray else None)
    return fs, manager


@pytest.mark.parametrize("code", TRANSIENT)
@pytest.mark.parametrize("stray", [False, True])
def test_a_lack_takes_no_directory_offline_and_the_rename_is_retried(
    code: int, stray: bool
) -> None:
    fs, manager = deleted(code, stray=stray)
    assert manager.get("t", 0) is None
    assert manager.offline_directories == []
    manager.check_free_bytes()
    assert fs.list_directories("/a") == ["t-0"]
    fs.heal()
    manager.check_free_bytes()
    (name,) = fs.list_directories("/a")
    assert name.endswith("-stray" if stray else "-delete")
    manager.purge(NOW_MS * 2)
    assert fs.list_directories("/a") == ([name] if stray else [])


def test_the_partition_is_not_created_again_before() -> None:
    """Else the next start would find two logs of it, of different topics."""
    fs, manager = deleted(errno.ENOSPC)
    with pytest.raises(DiskFull):
        manager.get_or_create("t", 0, topic_id=OTHER_ID, now_ms=NOW_MS)
    assert manager.get("t", 0) is None
    fs.heal()
    log = manager.get_or_create("t", 0, topic_id=OTHER_ID, now_ms=NOW_MS)
    assert (log.log_end_offset, log.topic_id) == (0, OTHER_ID)
    names = sorted(fs.list_directories("/a") + fs.list_directories("/b"))
    assert [name.partition(".")[0] for name in names] == ["t-0", "t-0"]


def test_a_broken_disk_takes_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    append(manager.get_or_create("t", 0, now_ms=NOW_MS), 3)
    fs.fail("replace", errno.EIO)
    with pytest.raises(LogDirectoryOffline):
        manager.delete_async("t", 0, NOW_MS)
    assert manager.offline_directories == ["/a"]
    fs.heal()
    manager.check_free_bytes()
    assert fs.list_directories("/a") == ["t-0"]
