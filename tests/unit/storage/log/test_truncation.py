"""Cutting the end off a log."""

import errno

import pytest

from ottla.storage.errors import LogDirectoryOffline
from ottla.storage.files.layout import RECOVERY_POINT_CHECKPOINT
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    append,
    batch_of,
    end_transaction,
    fetched,
    manager_on,
    new_log,
)


def test_everything_from_the_offset_on_goes() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=300)
    for epoch in range(10):
        log.append(batch_of(2), leader_epoch=epoch, now_ms=NOW_MS)
    log.update_high_watermark(20)
    assert log.truncate_to(6)
    assert (log.log_end_offset, log.high_watermark) == (6, 6)
    assert [r.offset for r in fetched(log)] == list(range(6))
    assert log.leader_epochs.entries == [(0, 0), (1, 2), (2, 4)]
    info = log.append(batch_of(1), leader_epoch=20, now_ms=NOW_MS)
    assert info.first_offset == 6
    assert log.leader_epochs.entries[-1] == (20, 6)
    assert any(path.endswith(".deleted") for path in fs.paths())


def test_a_batch_that_holds_the_offset_goes_as_a_whole() -> None:
    log = new_log()
    append(log, 3)
    append(log, 3)
    assert log.truncate_to(4)
    assert log.log_end_offset == 3


def test_an_offset_at_or_above_the_end_changes_nothing() -> None:
    log = new_log()
    append(log, 3)
    log.leader_epochs.assign(4, 3)  # became leader and has not written yet
    assert not log.truncate_to(3)
    assert log.log_end_offset == 3
    assert log.leader_epochs.entries == [(0, 0)]
    with pytest.raises(ValueError, match="-1"):
        log.truncate_to(-1)


def test_an_offset_below_the_log_empties_it() -> None:
    log = new_log()
    log.truncate_fully_and_start_at(100)
    append(log, 3)
    assert log.truncate_to(40)
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    assert append(log).first_offset == 40


def test_full_truncation_restarts() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=300)
    for number in range(10):
        append(log, producer_id=7, producer_epoch=0, base_sequence=number)
    log.truncate_fully_and_start_at(5)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (5, 5, 5)
    assert log.segments.base_offsets == [5]
    assert log.producer_state.producers == {}
    assert log.producer_state.snapshots == []
    assert len(log.leader_epochs) == 0
    assert append(log).first_offset == 5


def test_producers_and_transactions_go_back_too() -> None:
    log = new_log(segment_bytes=500)
    for number in range(4):
        append(log, producer_id=7, producer_epoch=0, base_sequence=number, transactional=True)
    end_transaction(log, 7, committed=False)
    append(log, 3)
    log.offsets.high_watermark = 3
    log.truncate_to(3)
    assert log.producer_state.open_transactions() == {0: 7}
    assert log.last_stable_offset == 0
    assert log.producer_state.producers[7].last_sequence == 2
    assert [e for s in log.segments for e in s.txn_index.entries()] == []
    append(log, producer_id=7, producer_epoch=0, base_sequence=3, transactional=True)


def test_the_recovery_point_on_disk_is_lowered_first() -> None:
    """Else a crash after new appends would leave them unread by recovery."""
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 3)
    append(log, 3)
    log.flush()
    manager.checkpoint_recovery_points()
    log.truncate_to(3)
    assert fs.content(f"/disk/{RECOVERY_POINT_CHECKPOINT}") == b"0\n1\nt 0 3\n"


def test_a_failing_disk_goes_offline() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, 3)
    fs.fail("truncate", errno.EIO)
    with pytest.raises(LogDirectoryOffline):
        log.truncate_to(0)
