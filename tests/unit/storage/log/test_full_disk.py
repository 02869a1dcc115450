"""A disk without any room: appends wait, all else continues, no restart is needed."""

from __future__ import annotations

import errno

import pytest

from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import DiskFull, LogDirectoryOffline
from ottla.storage.files.layout import CLEANER_CHECKPOINT
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    ROOT,
    append,
    batch_of,
    fetched,
    manager_on,
    records_in,
)

NO_ROOM = 1_000_000


def full(fs: MemoryFileSystem) -> None:
    """From now on nothing can be written at all."""
    for operation in ("pwrite", "open"):
        fs.fail(operation, errno.ENOSPC, path_part=".tmp", times=NO_ROOM)
    fs.fail("pwrite", errno.ENOSPC, times=NO_ROOM)


def filled(fs: MemoryFileSystem) -> LogManager:
    manager = manager_on(fs, segment_bytes=500)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for epoch in range(12):
        log.append(batch_of(2), leader_epoch=epoch, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    return manager


def test_appends_are_refused_and_come_back_with_the_room() -> None:
    fs = MemoryFileSystem()
    manager = filled(fs)
    log = manager.logs()[0]
    full(fs)
    for _ in range(3):
        with pytest.raises(DiskFull):
            append(log)
    assert len(fetched(log)) == 24
    fs.heal()
    manager.check_free_bytes()
    assert append(log).first_offset == 24
    assert [r.offset for r in records_in(log)] == list(range(25))


def test_deleting_continues_and_is_remembered() -> None:
    fs = MemoryFileSystem()
    manager = filled(fs)
    log = manager.logs()[0]
    segments = len(log.segments)
    full(fs)
    assert log.delete_records_before(15)
    assert log.log_start_offset == 15
    assert manager.cleanup(NOW_MS) > 0
    assert len(log.segments) < segments
    assert manager.purge(NOW_MS + 10**9) > 0, "this is what makes room"
    fs.heal()
    manager.check_free_bytes()
    info = log.append(batch_of(), leader_epoch=12, now_ms=NOW_MS)
    assert info.first_offset == 24
    manager.shutdown(NOW_MS)
    again = manager_on(fs.after_kill(), segment_bytes=500).logs()[0]
    assert (again.log_start_offset, again.log_end_offset) == (15, 25)
    assert again.leader_epochs.entries[0] == (7, 15)


def test_retention_deletes_what_it_can_when_there_is_no_room_for_a_new_segment() -> None:
    fs = MemoryFileSystem()
    manager = filled(fs)
    log = manager.logs()[0]
    log.update_config(log.config.replace(retention_ms=1000))
    fs.fail("open", errno.ENOSPC, path_part=".log", times=NO_ROOM)
    assert manager.cleanup(NOW_MS + 10_000) > 0
    assert len(log.segments) == 1, "the active one stays"
    assert manager.cleanup(NOW_MS + 10_000) == 0
    fs.heal()
    manager.check_free_bytes()
    assert manager.cleanup(NOW_MS + 10_000) == 1
    assert log.log_start_offset == log.log_end_offset == 24
    assert append(log).first_offset == 24


def test_checkpoints_wait_without_taking_the_disk_offline() -> None:
    fs = MemoryFileSystem()
    manager = filled(fs)
    manager.checkpoint_all()
    before = fs.content(f"{ROOT}/replication-offset-checkpoint")
    log = manager.logs()[0]
    cleaner = Cleaner(manager.logs)
    cleaner._set_checkpoint(log, 7)
    append(log)
    full(fs)
    manager.checkpoint_all()
    cleaner.write_checkpoints()
    assert manager.offline_directories == []
    assert fs.content(f"{ROOT}/replication-offset-checkpoint") == before
    fs.heal()
    manager.check_free_bytes()
    manager.checkpoint_all()
    cleaner.write_checkpoints()
    assert fs.content(f"{ROOT}/replication-offset-checkpoint") != before
    assert b"t 0 7" in fs.content(f"{ROOT}/{CLEANER_CHECKPOINT}")


def test_a_new_log_is_refused_until_there_is_room() -> None:
    fs = MemoryFileSystem()
    manager = filled(fs)
    fs.fail("open", errno.ENOSPC, path_part="/u-0/", times=NO_ROOM)
    with pytest.raises(DiskFull):
        manager.get_or_create("u", 0, topic_id=b"u" * 16, now_ms=NOW_MS)
    assert manager.offline_directories == []
    fs.heal()
    manager.check_free_bytes()
    log = manager.get_or_create("u", 0, topic_id=b"u" * 16, now_ms=NOW_MS)
    assert append(log).first_offset == 0


def test_a_failed_disk_does_not_come_back_with_room() -> None:
    manager = filled(MemoryFileSystem())
    directory = manager.directories.all[0]
    found = manager.measure_free_bytes()
    directory.mark_full("for now")
    directory.fail(OSError(errno.EIO, "broken"))
    manager.update_free_bytes(found)
    with pytest.raises(LogDirectoryOffline):
        append(manager.logs()[0])
