"""Somebody deletes or moves the directory of a log that is open: the disk has not failed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import LogClosed, LogDirectoryOffline
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.log.log import Log
from tests.doubles.storage_logs import NOW_MS, append

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)


@pytest.fixture
def manager(tmp_path: Path) -> LogManager:
    manager = LogManager([str(tmp_path / "disk")], CONFIG, RealFileSystem())
    manager.load(NOW_MS)
    for topic in ("t", "other"):
        append(create(manager, topic))
    return manager


def create(manager: LogManager, topic: str) -> Log:
    return manager.get_or_create(topic, 0, config=CONFIG, now_ms=NOW_MS)


def append_until_it_fails(log: Log) -> None:
    """Up to the next roll, appends are to files that are open."""
    for _ in range(10):
        append(log)


def test_only_its_partition_cannot_be_written(
    manager: LogManager, caplog: pytest.LogCaptureFixture
) -> None:
    log, other = create(manager, "t"), create(manager, "other")
    shutil.rmtree(log.path)
    for _ in range(2):
        with pytest.raises(LogClosed, match="t-0 was deleted or moved"):
            append_until_it_fails(log)
    assert manager.offline_directories == []
    append_until_it_fails(other)
    assert other.log_end_offset == 11
    assert caplog.text.count(f"The directory {log.path} of a log is gone") == 1


def test_it_may_be_deleted_and_created_again(manager: LogManager) -> None:
    log = create(manager, "t")
    shutil.rmtree(log.path)
    manager.delete_async("t", 0, NOW_MS)
    assert manager.get("t", 0) is None
    append_until_it_fails(create(manager, "t"))
    assert manager.offline_directories == []


def test_what_was_moved_may_be_put_back(manager: LogManager, tmp_path: Path) -> None:
    log = create(manager, "t")
    shutil.move(log.path, tmp_path / "moved")
    with pytest.raises(LogClosed):
        append_until_it_fails(log)
    end = log.log_end_offset
    manager.shutdown(NOW_MS)
    shutil.move(tmp_path / "moved", log.path)
    again = LogManager([str(tmp_path / "disk")], CONFIG, RealFileSystem())
    again.load(NOW_MS)
    assert create(again, "t").log_end_offset == end


def test_a_disk_that_is_away_has_failed(manager: LogManager, tmp_path: Path) -> None:
    log = create(manager, "t")
    shutil.move(tmp_path / "disk", tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryOffline):
        append_until_it_fails(log)
    assert manager.offline_directories == [str(tmp_path / "disk")]
