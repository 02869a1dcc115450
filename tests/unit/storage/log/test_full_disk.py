"""A disk without any room: appends wait, all else continues, no restart is needed."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from ottla.protocol.steps import run_at_once
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import DiskFull, LogDirectoryOffline, ResourceExhausted
from ottla.storage.files.checkpoints import read_offset_checkpoint
from ottla.storage.files.layout import CLEANER_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from ottla.storage.log.log import Log
from tests.doubles.compactions import next_compaction
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
    assert log.truncator.delete_records_before(15)
    assert log.log_start_offset == 15
    assert run_at_once(manager.cleanup(NOW_MS)) > 0
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
    assert run_at_once(manager.cleanup(NOW_MS + 10_000)) > 0
    assert len(log.segments) == 1, "the active one stays"
    assert run_at_once(manager.cleanup(NOW_MS + 10_000)) == 0
    fs.heal()
    manager.check_free_bytes()
    assert run_at_once(manager.cleanup(NOW_MS + 10_000)) == 1
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


def truncate_prepared(log: Log) -> None:
    for work in log.truncator.prepare(9):
        if work is not None:
            work()
    log.truncator.truncate_to(9)


TRUNCATIONS: dict[str, Callable[[Log], object]] = {
    "truncate": lambda log: log.truncator.truncate_to(9),
    "prepare-and-truncate": truncate_prepared,
    "start-again": lambda log: log.truncator.truncate_fully_and_start_at(40),
}


def truncation_fails_at_write(name: str, number: int, *, power: bool) -> bool:
    """Fails one write of a truncation, and the next start. False without such a write."""
    fs = MemoryFileSystem()
    manager = filled(fs)
    log = manager.logs()[0]
    log.flusher.flush()
    manager.checkpoint_all()
    before = [record.offset for record in records_in(log)]
    fault = fs.fail("pwrite", errno.ENOSPC, after=number)
    is_hit = False
    try:
        TRUNCATIONS[name](log)
    except DiskFull:
        is_hit = True
        assert [record.offset for record in records_in(log)] == before, "nothing was truncated"
    assert manager.offline_directories == [], "a full disk is no failed disk"
    assert is_hit == (fault.times == 0), "a failed write was swallowed"
    fs.heal()
    manager.check_free_bytes()
    if is_hit:
        TRUNCATIONS[name](log)
    # What is appended now must be above the recovery point on disk.
    log.append(batch_of(2), leader_epoch=20, now_ms=NOW_MS)
    points = read_offset_checkpoint(fs, f"{ROOT}/{RECOVERY_POINT_CHECKPOINT}")
    assert points["t", 0] <= log.log_end_offset - 2
    expected = [(record.offset, record.value) for record in records_in(log)]
    epochs = log.leader_epochs.entries
    if power:
        log.flusher.flush()
    again = manager_on(fs.after_power_failure() if power else fs.after_kill()).logs()[0]
    assert [(record.offset, record.value) for record in records_in(again)] == expected
    assert again.leader_epochs.entries == epochs
    return is_hit


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("name", TRUNCATIONS)
def test_a_truncation_without_room_changes_nothing_and_is_made_again(
    name: str, power: bool
) -> None:
    number = 0
    while truncation_fails_at_write(name, number, power=power):
        number += 1
    assert number > 0


def test_leader_epochs_that_could_not_be_cleared_are_kept() -> None:
    fs = MemoryFileSystem()
    log = filled(fs).logs()[0]
    before = log.leader_epochs.entries
    for change in (log.leader_epochs.clear, lambda: log.leader_epochs.replace([(3, 4)])):
        fs.fail("pwrite", errno.ENOSPC, path_part="leader-epoch-checkpoint")
        with pytest.raises(OSError, match="No space"):
            change()
        assert log.leader_epochs.entries == before
        assert log.leader_epochs.latest_epoch == 11


def test_a_compaction_without_room_for_the_recovery_point_is_made_again() -> None:
    """Gaps above the recovery point on disk would be taken for lost records."""
    fs = MemoryFileSystem()
    manager = filled(fs)
    log = manager.logs()[0]
    settings = {"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0}
    log.update_config(log.config.replace(**settings))
    log.flusher.flush()
    cleaner = Cleaner(manager.logs)
    for is_full in (True, False):
        compaction = next_compaction(cleaner, NOW_MS)
        assert compaction is not None
        if is_full:
            fs.fail("pwrite", errno.ENOSPC, path_part=RECOVERY_POINT_CHECKPOINT)
        compaction.run()
        assert cleaner.finish(compaction, NOW_MS) is not is_full
        assert cleaner.uncleanable == {}
        manager.check_free_bytes()


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot"])
def test_files_that_cannot_be_renamed_are_deleted_at_once(suffix: str) -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_bytes=100)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(3):
        append(log, producer_id=7, producer_epoch=0, base_sequence=number)
    assert log.segments.base_offsets == [0, 1, 2]
    fs.fail("replace", errno.ENOSPC, path_part=suffix, times=NO_ROOM)
    assert log.truncator.truncate_to(1)
    assert not log.log_directory.is_offline
    assert not [path for path in fs.paths() if f"{2:020d}{suffix}" in path]
    fs.heal()
    append(log, producer_id=7, producer_epoch=0, base_sequence=1)
    manager.purge(NOW_MS + NO_ROOM)
    assert log.log_end_offset == 2
    assert len(fetched(log)) == 2


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
def test_a_creation_that_fails_leaves_no_directory_behind(code: int) -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    fs.fail("open", code, path_part="/t-0/")
    with pytest.raises((DiskFull, ResourceExhausted)):
        manager.get_or_create("t", 0, now_ms=NOW_MS)
    manager.check_free_bytes()
    manager.get_or_create("u", 0, now_ms=NOW_MS)
    manager.get_or_create("t", 0, now_ms=NOW_MS)
    assert [fs.exists(f"{path}/t-0") for path in ("/a", "/b")].count(True) == 1
