"""A log directory that was used before and is missing is said."""

import errno
import json

import pytest

from ottla.storage.directories.log_manager import LogManager
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS

FILE = "ottla-log-dirs.json"


def started(fs: MemoryFileSystem, *paths: str) -> LogManager:
    manager = LogManager(paths, fs=fs)
    for path in paths:
        fs.make_directory(path)
    manager.write_meta_properties(1, "c")
    manager.load(NOW_MS)
    return manager


def missing(fs: MemoryFileSystem, *paths: str) -> list[str]:
    return started(fs, *paths).known_directories.missing


def test_the_same_directories_in_another_order_and_a_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs = MemoryFileSystem()
    assert missing(fs, "/a", "/b") == []
    before = fs.content(f"/a/{FILE}")
    assert missing(fs, "/b", "/a") == []
    assert fs.content(f"/a/{FILE}") == before
    assert missing(fs, "/c", "/a", "/b") == []
    assert [record for record in caplog.records if "is missing" in record.message] == []
    assert set(json.loads(fs.content(f"/c/{FILE}"))["directories"].values()) == {"/a", "/b", "/c"}


def test_one_that_is_not_in_log_dirs_any_more(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    started(fs, "/a", "/b")
    manager = started(fs, "/a")
    assert manager.known_directories.missing == ["/b"]
    assert "Log dir /b of the last start is missing: it is not in log.dirs" in caplog.text
    manager.get_or_create("t", 0, now_ms=NOW_MS, is_new=True)
    assert "begins empty" not in caplog.text
    manager.get_or_create("t", 1, now_ms=NOW_MS)
    assert "t-1 begins empty in /a: its log may have been in /b, which is missing" in caplog.text
    # After a crash it is still missing, after an orderly stop it is not expected any more.
    assert missing(fs.after_kill(), "/a") == ["/b"]
    manager.shutdown(NOW_MS)
    assert missing(fs, "/a") == []


def test_a_disk_that_is_not_mounted(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    started(fs, "/a", "/b").shutdown(NOW_MS)
    fs.replace("/b", "/unmounted")
    assert missing(fs, "/a", "/b") == ["/b"]
    assert "another directory is in its place" in caplog.text
    fs.replace("/b", "/hidden")
    fs.replace("/unmounted", "/b")
    caplog.clear()
    # What was written below the mount point in the meantime is missing now.
    assert missing(fs, "/a", "/b") == ["/b"]
    assert "Log dir /b is back" in caplog.text
    assert "of the last start is missing" not in caplog.text
    started(fs, "/a", "/b").shutdown(NOW_MS)
    assert missing(fs, "/a", "/b") == []


def test_one_that_has_another_path_is_not_missing() -> None:
    fs = MemoryFileSystem()
    started(fs, "/a", "/b")
    fs.replace("/b", "/other")
    assert missing(fs, "/a", "/other") == []


def test_one_that_is_offline_is_not_missing_and_not_forgotten() -> None:
    fs = MemoryFileSystem()
    started(fs, "/a", "/b").shutdown(NOW_MS)
    fs.fail("open", errno.EIO, path_part="/b/")
    manager = started(fs, "/a", "/b")
    assert manager.offline_directories == ["/b"]
    assert manager.known_directories.missing == []
    manager.shutdown(NOW_MS)
    assert missing(fs, "/a") == ["/b"]


def test_without_the_file_of_an_earlier_version(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    started(fs, "/a")
    assert not fs.exists(f"/a/{FILE}")
    started(fs, "/a", "/b")
    assert "Log dir /b has no meta.properties, and /a has" in caplog.text


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"id": 1, "directories": []}'])
def test_a_file_that_is_damaged_is_written_again(content: bytes) -> None:
    fs = MemoryFileSystem()
    started(fs, "/a", "/b")
    before = fs.content(f"/b/{FILE}")
    fs.overwrite(f"/b/{FILE}", content)
    assert missing(fs, "/a", "/b") == []
    assert fs.content(f"/b/{FILE}") == before
    for path in ("/a", "/b"):
        fs.overwrite(f"{path}/{FILE}", content)
    assert missing(fs, "/a", "/b") == []
    assert set(json.loads(fs.content(f"/b/{FILE}"))["directories"].values()) == {"/a", "/b"}


@pytest.mark.parametrize("code", [errno.EISDIR, errno.EACCES, errno.EMFILE, errno.ENOSPC])
def test_something_else_in_the_place_of_the_file_takes_no_disk_offline(code: int) -> None:
    fs = MemoryFileSystem()
    started(fs, "/a", "/b")
    written = f"{FILE}.tmp" if code == errno.ENOSPC else FILE
    fs.fail("open", code, path_part=written, times=100)
    fs.fail("replace", code, path_part=FILE, times=100)
    manager = started(fs, "/a", "/b", "/c")
    assert manager.offline_directories == []
    assert manager.known_directories.missing == []
