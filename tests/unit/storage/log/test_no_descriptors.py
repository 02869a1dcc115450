"""Without descriptors or memory an operation fails and can be retried; no disk is given up."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import Mock

import pytest

from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import LogDirectoryOffline, ResourceExhausted
from ottla.storage.log.log import Log
from ottla.storage.log.log_info import RemoteLogState
from ottla.storage.log.segment import Segment
from ottla.storage.producer.producer_entry import ProducerEntry
from ottla.storage.producer.producer_snapshot import encode_snapshot
from tests.doubles.compactions import next_compaction
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    append,
    batch_of,
    end_transaction,
    fetched,
    manager_on,
    records_in,
)

MANY = 1_000_000
SETTINGS: dict[str, object] = {"segment_bytes": 700, "index_interval_bytes": 100}


def filled(fs: MemoryFileSystem, **settings: object) -> tuple[LogManager, Log]:
    """A log with several segments, producers, epochs, an open and an aborted transaction."""
    manager = manager_on(fs, **{**SETTINGS, **settings})
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for sequence in range(6):
        append(log, 2, producer_id=7, producer_epoch=0, base_sequence=2 * sequence)
    append(log, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 8, committed=False)
    log.append(batch_of(2), leader_epoch=3, now_ms=NOW_MS)
    begun = batch_of(1, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(begun, leader_epoch=3, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    return manager, log


def produce(log: Log) -> None:
    log.append(batch_of(9), leader_epoch=5, now_ms=NOW_MS)
    log.append(batch_of(9), leader_epoch=5, now_ms=NOW_MS)


def abort(log: Log) -> None:
    end_transaction(log, 9, committed=False)


def remote_state() -> RemoteLogState:
    """Leader epochs and producers of records that are in remote storage."""
    entry = ProducerEntry(9)
    entry.last_timestamp = NOW_MS
    return RemoteLogState([(0, 0), (3, 30)], encode_snapshot([entry]), NOW_MS)


OPERATIONS: dict[str, Callable[[Log], object]] = {
    "produce": produce,
    "abort": abort,
    "fetch": fetched,
    "load": records_in,
    "flush": lambda log: log.flusher.flush(),
    "truncate": lambda log: log.truncator.truncate_to(9),
    "truncate-epoch": lambda log: (
        log.assign_epoch(9, log.log_end_offset),
        log.truncator.truncate_to(99),
    ),
    "start-again": lambda log: log.truncator.truncate_fully_and_start_at(40),
    "start-behind-remote": lambda log: log.truncator.truncate_fully_and_start_at(
        40, 3, remote_state()
    ),
    "delete-records": lambda log: log.truncator.delete_records_before(9),
}


ONE_BY_ONE = ("produce", "abort", "flush", "truncate", "start-again", "start-behind-remote")


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_directory_stays_online(name: str, code: int) -> None:
    """Nothing can be opened from the start of the operation on, until it is retried."""
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    for segment in log.segments:
        segment.release()  # as if evicted: every file must be opened again
    manager.checkpoint_all()
    before = log.log_end_offset
    fs.fail("open", code, times=MANY)
    with suppress(ResourceExhausted):
        OPERATIONS[name](log)
        before = log.log_end_offset
    assert log.log_end_offset == before
    manager.checkpoint_all()
    manager.check_free_bytes()
    assert manager.offline_directories == []
    fs.heal()
    OPERATIONS[name](log)
    expected = [(r.offset, r.value) for r in records_in(log)]
    epochs = log.leader_epochs.entries
    manager.shutdown(NOW_MS)
    again = manager_on(fs.after_kill(), **SETTINGS).get("t", 0)
    assert again is not None
    assert [(r.offset, r.value) for r in records_in(again)] == expected
    assert [entry for entry in epochs if entry[1] < again.log_end_offset] == (
        again.leader_epochs.entries
    )


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_one_call_without_a_descriptor(name: str, clean: bool) -> None:
    """Each call in turn: the operation is undone, or complete."""
    for number in range(MANY):
        fs = MemoryFileSystem()
        manager, log = filled(fs)
        manager.checkpoint_all()
        if name != "flush":
            log.flusher.flush()
        fault = fs.fail("open", errno.EMFILE, after=number)
        try:
            OPERATIONS[name](log)
        except ResourceExhausted:
            OPERATIONS[name](log)
        fs.heal()
        assert manager.offline_directories == []
        found = [(r.offset, r.value) for r in records_in(log)]
        if clean:
            manager.shutdown(NOW_MS)
        again = manager_on(fs.after_kill(), **SETTINGS).get("t", 0)
        assert again is not None
        loaded = [(r.offset, r.value) for r in records_in(again)]
        assert loaded == found
        if fault.times:
            assert number > 0
            return


def test_one_line_says_which_limit_and_how_to_raise_it(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    log.local.active.release()
    fs.fail("open", errno.EMFILE, times=MANY)
    for _ in range(5):
        with pytest.raises(ResourceExhausted, match="ulimit -n"):
            produce(log)
        manager.check_free_bytes()
    lines = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 1
    assert "LimitNOFILE" in lines[0].getMessage()
    fs.heal()
    for _ in range(2):
        manager.check_free_bytes()
    log.local.active.release()
    fs.fail("open", errno.ENFILE)
    with pytest.raises(ResourceExhausted, match=r"fs\.file-max"):
        produce(log)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2


def test_a_flush_that_could_not_open_a_file_is_made_again() -> None:
    fs = MemoryFileSystem()
    _, log = filled(fs)
    flush = log.flusher.begin_flush()
    assert flush is not None
    fs.fail("open", errno.EMFILE)
    flush.run()
    with pytest.raises(ResourceExhausted):
        log.flusher.finish_flush(flush, NOW_MS)
    assert log.recovery_point == 0
    assert log.leader_epochs.requires_flush
    log.flusher.flush()
    assert not log.leader_epochs.requires_flush
    assert log.recovery_point == log.log_end_offset


def test_a_sync_that_lacks_memory_is_a_failed_sync() -> None:
    """The kernel may have dropped the pages."""
    fs = MemoryFileSystem()
    _, log = filled(fs)
    fs.fail("sync", errno.ENOMEM)
    with pytest.raises(LogDirectoryOffline):
        log.flusher.flush()


def test_a_log_that_cannot_be_checked_now_is_compacted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs = MemoryFileSystem()
    manager, log = filled(
        fs, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, segment_bytes=300
    )
    end_transaction(log, 9, committed=True)
    log.flusher.flush()
    cleaner = Cleaner(manager.logs)
    with monkeypatch.context() as patch:
        lacking = OSError(errno.EMFILE, "Too many open files")
        patch.setattr(Segment, "rolling_timestamp", Mock(side_effect=lacking))
        assert next_compaction(cleaner, NOW_MS + 1000) is None
    assert cleaner.uncleanable == {}
    assert manager.offline_directories == []
    assert next_compaction(cleaner, NOW_MS + 1000) is not None


def test_a_failed_directory_does_not_keep_others_from_their_checkpoints() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    logs = [manager.get_or_create("t", number, now_ms=NOW_MS) for number in range(2)]
    for log in logs:
        append(log, 3)
    fs.fail("open", errno.EIO, path_part="00000000000000000007.log")
    with pytest.raises(LogDirectoryOffline):
        logs[0].truncator.truncate_fully_and_start_at(7)
    manager.checkpoint_all()
    other = logs[1].log_directory.path
    assert fs.content(f"{other}/replication-offset-checkpoint") == b"0\n1\nt 1 3\n"
