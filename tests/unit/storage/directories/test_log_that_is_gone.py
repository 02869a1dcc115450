"""Somebody deletes or moves the directory of a log that is open: the disk has not failed."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.protocol.steps import run_at_once
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import LogDirectoryOffline, LogGone
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.log.log import Log
from tests.doubles.compactions import next_compaction
from tests.doubles.storage_logs import NOW_MS, append

COMPACTED = LogConfig(segment_bytes=400, cleanup_policy=("compact",))
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


def confirm_gone(manager: LogManager) -> list[Log]:
    return run_at_once(manager.confirm_gone())


def append_until_it_fails(log: Log) -> None:
    """Up to the next roll, appends are to files that are open."""
    for _ in range(10):
        append(log)


def test_only_its_partition_cannot_be_written(
    manager: LogManager, caplog: pytest.LogCaptureFixture
) -> None:
    log, other = create(manager, "t"), create(manager, "other")
    shutil.rmtree(log.path)
    for newly_gone in ([log], []):
        with pytest.raises(LogGone, match="t-0 was deleted or moved"):
            append_until_it_fails(log)
        assert confirm_gone(manager) == newly_gone
    assert manager.offline_directories == []
    assert (manager.gone_logs, log.is_offline, other.is_offline) == ([log.path], True, False)
    append_until_it_fails(other)
    assert other.log_end_offset == 11
    assert caplog.text.count(f"The directory {log.path} of a log was deleted or moved") == 1


def test_it_may_be_deleted_and_created_again(manager: LogManager) -> None:
    log = create(manager, "t")
    shutil.rmtree(log.path)
    manager.find_gone()
    assert (confirm_gone(manager), manager.is_gone("t", 0)) == ([log], True)
    with pytest.raises(LogGone):
        create(manager, "t")
    manager.delete_async("t", 0, NOW_MS)
    assert (manager.get("t", 0), manager.gone_logs, manager.is_gone("t", 0)) == (None, [], False)
    append_until_it_fails(create(manager, "t"))
    assert manager.offline_directories == []


def test_what_was_moved_may_be_put_back(manager: LogManager, tmp_path: Path) -> None:
    log = create(manager, "t")
    shutil.move(log.path, tmp_path / "moved")
    with pytest.raises(LogGone):
        append_until_it_fails(log)
    confirm_gone(manager)
    end = log.log_end_offset
    manager.shutdown(NOW_MS)
    shutil.move(tmp_path / "moved", log.path)
    again = LogManager([str(tmp_path / "disk")], CONFIG, RealFileSystem())
    again.load(NOW_MS)
    # Not closed, so it is recovered.
    assert (create(again, "t").log_end_offset, again.unclean_start) == (end, True)


def test_one_that_was_put_back_may_be_deleted_and_created_again(
    manager: LogManager, tmp_path: Path
) -> None:
    log = create(manager, "t")
    shutil.move(log.path, tmp_path / "moved")
    manager.find_gone()
    assert confirm_gone(manager) == [log]
    shutil.move(tmp_path / "moved", log.path)
    manager.delete_async("t", 0, NOW_MS)
    assert manager.gone_logs == []
    append_until_it_fails(create(manager, "t"))


def test_a_pause_between_two_that_are_gone(manager: LogManager) -> None:
    """Thousands may be. One that is deleted at a pause is none of them."""
    logs = [create(manager, topic) for topic in ("t", "other")]
    for log in logs:
        shutil.rmtree(log.path)
    manager.find_gone()
    steps = manager.confirm_gone()
    next(steps)
    next(steps)
    manager.delete_async("other", 0, NOW_MS)
    manager.find_gone()  # in a worker thread, at the same time
    assert run_at_once(steps) == logs[:1]
    assert manager.gone_logs == [logs[0].path]


def test_it_is_found_without_an_operation(manager: LogManager) -> None:
    """Appends to its open file go on, and nothing would be left of them."""
    log, other = create(manager, "t"), create(manager, "other")
    manager.find_gone()
    assert confirm_gone(manager) == []
    shutil.rmtree(log.path)
    append(log)
    manager.find_gone()
    assert confirm_gone(manager) == [log]
    manager.find_gone()
    assert confirm_gone(manager) == []
    assert not other.is_offline
    assert not any(each is log for each in manager.flushes_due(NOW_MS + 10**9))


def test_a_log_that_is_renamed_meanwhile_is_not_gone(manager: LogManager) -> None:
    """An operation in a worker thread may look for it between the two steps of a rename."""
    log = create(manager, "t")
    renamed = f"{log.path}-elsewhere"
    shutil.move(log.path, renamed)
    manager.find_gone()
    shutil.move(renamed, log.path)
    assert confirm_gone(manager) == []
    assert not log.is_offline


@pytest.mark.parametrize("how", ["compaction", "flush", "retention", "truncation"])
def test_no_operation_takes_the_disk_for_failed(manager: LogManager, how: str) -> None:
    log = create(manager, "t")
    append_until_it_fails(log)
    if how == "compaction":
        log.flusher.flush(NOW_MS)
        log.update_config(COMPACTED)
    shutil.rmtree(log.path)
    with suppress(LogGone):
        if how == "compaction":
            compaction = next_compaction(Cleaner(manager.logs, memory_bytes=1 << 16), NOW_MS)
            assert compaction is not None
            compaction.run()
            compaction.commit(NOW_MS)
        elif how == "flush":
            log.flusher.flush(NOW_MS)
        elif how == "retention":
            log.update_config(LogConfig(segment_bytes=400, retention_bytes=1))
            run_at_once(log.retention.delete_old_segments(NOW_MS))
        else:
            log.truncator.truncate_to(2)
    assert manager.offline_directories == []


def test_a_disk_with_another_one_in_its_place_has_failed(
    manager: LogManager, tmp_path: Path
) -> None:
    """As after `umount`: what was below the mount is an empty directory."""
    log = create(manager, "t")
    shutil.move(tmp_path / "disk", tmp_path / "elsewhere")
    (tmp_path / "disk").mkdir()
    with pytest.raises(LogDirectoryOffline, match="is offline"):
        append_until_it_fails(log)
    assert (confirm_gone(manager), manager.gone_logs) == ([], [])
    assert manager.offline_directories == [str(tmp_path / "disk")]


def test_a_disk_that_is_away_has_failed(manager: LogManager, tmp_path: Path) -> None:
    log = create(manager, "t")
    shutil.move(tmp_path / "disk", tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryOffline):
        append_until_it_fails(log)
    assert manager.offline_directories == [str(tmp_path / "disk")]
