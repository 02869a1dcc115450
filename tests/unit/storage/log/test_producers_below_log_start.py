"""Producers of which every record was deleted: they are known as long as the log is not emptied."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from ottla.protocol.steps import run_at_once
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import DiskFull
from ottla.storage.log.log import Log
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

IDLE, BUSY = 1, 2


def data(log: Log, producer: int, sequence: int, *, transactional: bool = False) -> int:
    info = append(
        log,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=transactional,
    )
    return info.first_offset


class Disk:
    """A log whose first segment begins at 0 or above it, and that starts in its middle.

    The records of `IDLE` are below the log start, and `BUSY` has some above it.
    """

    def __init__(self, first: int, *, transactional: bool = False) -> None:
        self.fs = MemoryFileSystem()
        self.manager = self._load()
        self.log = self.manager.get_or_create("t", 0, now_ms=NOW_MS)
        data(self.log, IDLE, 0, transactional=transactional)
        data(self.log, BUSY, 0)
        if first:
            self.log.roll(NOW_MS)
        for sequence in range(1, 5):
            data(self.log, BUSY, sequence)
        self.log.flusher.flush(NOW_MS)
        self.log.truncator.delete_records_before(3)
        run_at_once(self.log.retention.delete_old_segments(NOW_MS))
        assert (self.log.log_start_offset, self.log.segments.base_offsets) == (3, [first])

    def _load(self) -> LogManager:
        return manager_on(self.fs)

    def restart(self, *, clean: bool) -> Log:
        if clean:
            self.manager.shutdown(NOW_MS)
        else:
            self.manager.checkpoint_all()
            self.fs = self.fs.after_kill()
        self.manager = self._load()
        log = self.manager.get("t", 0)
        assert log is not None
        self.log = log
        return log


def knows_both(log: Log, busy_sequence: int) -> None:
    found = log.producer_state.producers
    assert {each: entry.last_sequence for each, entry in found.items()} == {
        IDLE: 0,
        BUSY: busy_sequence,
    }
    again = batch_of(1, producer_id=IDLE, producer_epoch=0, base_sequence=0)
    assert log.append(again, leader_epoch=0, now_ms=NOW_MS).duplicate


def knows_what_is_above(log_start_offset: int, log: Log) -> None:
    """The producers and transactions above it only, and all records can be read."""
    log.update_high_watermark(log.log_end_offset)
    assert list(log.producer_state.producers) == [BUSY]
    assert log.last_stable_offset == log.log_end_offset
    assert len(fetched(log)) == log.log_end_offset - log_start_offset


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("prepared", [True, False])
def test_after_a_truncation(first: int, prepared: bool) -> None:
    log = Disk(first).log
    if prepared:
        for work in log.truncator.prepare(4):
            if work is not None:
                work()
    log.truncator.truncate_to(4)
    knows_both(log, 2)
    log.truncator.truncate_to(3)  # the snapshot of the first segment is still there
    knows_both(log, 1)


@pytest.mark.parametrize("first", [0, 2])
def test_after_a_truncation_below_the_log_start(first: int) -> None:
    log = Disk(first).log
    assert log.truncator.truncate_to(2)
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    knows_both(log, 0)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_after_a_restart(first: int, clean: bool) -> None:
    disk = Disk(first)
    knows_both(disk.restart(clean=clean), 4)
    knows_both(disk.restart(clean=not clean), 4)
    disk.log.truncator.truncate_to(4)
    knows_both(disk.log, 2)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_where_every_record_is_deleted(first: int, clean: bool) -> None:
    disk = Disk(first)
    disk.log.truncator.delete_records_before(disk.log.log_end_offset)
    knows_both(disk.restart(clean=clean), 4)


@pytest.mark.parametrize("clean", [True, False])
def test_a_producer_of_which_only_the_marker_is_left_sends_its_next_batch(clean: bool) -> None:
    """Kafka Streams deletes what it has read, up to the marker, and continues in the same epoch."""
    disk = Disk(0)
    data(disk.log, 7, 0, transactional=True)
    at = end_transaction(disk.log, 7, committed=True).first_offset
    disk.log.truncator.delete_records_before(at)
    log = disk.restart(clean=clean)
    if not clean:
        assert log.producer_state.producers[7].last_sequence == 0
    data(log, 7, 1, transactional=True)


@pytest.mark.parametrize("restart", [None, True, False])
@pytest.mark.parametrize("first", [0, 2])
def test_an_open_transaction_limits_nothing_below_the_log_start(
    first: int, restart: bool | None
) -> None:
    """It began below the log start, and ends as before."""
    disk = Disk(first, transactional=True)
    if restart is None:
        disk.log.truncator.truncate_to(4)
    else:
        disk.restart(clean=restart)
    log = disk.log
    log.update_high_watermark(log.log_end_offset)
    assert log.producer_state.open_transactions() == {0: IDLE}
    assert log.last_stable_offset == log.log_start_offset == 3
    end_transaction(log, IDLE, committed=False)
    assert log.last_stable_offset == log.log_end_offset
    (aborted,) = log.aborted_transactions(3, log.log_end_offset)
    assert (aborted.producer_id, aborted.first_offset) == (IDLE, 0)


def test_a_transaction_that_ended_above_the_first_segment_is_not_open() -> None:
    log = new_log()
    data(log, IDLE, 0, transactional=True)
    log.roll(NOW_MS)
    end_transaction(log, IDLE, committed=True)
    for sequence in range(4):
        data(log, BUSY, sequence)
    log.truncator.delete_records_before(3)
    run_at_once(log.retention.delete_old_segments(NOW_MS))
    assert log.segments.base_offsets == [1]
    log.truncator.truncate_to(5)
    log.update_high_watermark(5)
    assert (log.producer_state.open_transactions(), log.last_stable_offset) == ({}, 5)


def test_a_log_that_begins_again_at_the_offset_of_a_snapshot_has_no_producers() -> None:
    """Also after a kill before all files of the old records were removed."""
    disk = Disk(2)
    disk.log.roll(NOW_MS)
    base = disk.log.log_end_offset
    assert disk.log.producer_state.snapshots == [2, base]
    states = killed_at_each_removal(
        disk.fs, lambda: disk.log.truncator.truncate_fully_and_start_at(base)
    )
    assert disk.log.producer_state.producers == {}
    emptied = 0
    for each in states:
        log = manager_on(each).get("t", 0)
        assert log is not None
        if log.segments.base_offsets == [base] and log.log_start_offset == base:
            emptied += 1
            assert log.producer_state.producers == {}
    assert emptied


def test_a_full_truncation_that_fails_keeps_the_snapshot() -> None:
    disk = Disk(2)
    disk.fs.fail("pwrite", errno.ENOSPC, path_part="leader-epoch", times=2)
    with pytest.raises(DiskFull):
        disk.log.truncator.truncate_fully_and_start_at(2)
    assert disk.log.producer_state.snapshots == [2]
    disk.fs.heal()
    disk.log.truncator.truncate_to(4)
    assert sorted(disk.log.producer_state.producers) == [IDLE, BUSY]


@pytest.mark.parametrize("damaged", [0, 1])
@pytest.mark.parametrize("then", ["recovery", "truncation"])
def test_damage_below_the_log_start_leaves_what_is_above(damaged: int, then: str) -> None:
    """DeleteRecords raises the recovery point without a sync: a power failure may leave zeros. The
    end of the transaction, and the last batch of the producer that is idle, are behind them."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, index_interval_bytes=0)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    data(log, IDLE, 0, transactional=True)
    end_transaction(log, IDLE, committed=True)
    data(log, 3, 0)
    for sequence in range(4):
        data(log, BUSY, sequence)
    log.truncator.delete_records_before(3)
    position = log.local.active.position_of(damaged)
    path = log.local.active.log.path
    log.local.active.finish()  # its indexes are on the disk
    content = bytearray(fs.content(path))
    content[position : position + 70] = bytes(70)
    if then == "recovery":
        manager.checkpoint_all()
        fs = fs.after_kill()
        fs.overwrite(path, bytes(content))
        reopened = manager_on(fs, index_interval_bytes=0).get("t", 0)
        assert reopened is not None
        log = reopened
        assert log.log_end_offset == 7
    else:
        fs.overwrite(path, bytes(content))
        log.truncator.truncate_to(6)
    knows_what_is_above(3, log)


def test_damage_behind_a_snapshot_below_the_log_start_leaves_the_indexes() -> None:
    """The first batch after a clean stop: nothing has synced it. A look-up must not rebuild the
    indexes, which would end there."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, index_interval_bytes=0)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    data(log, IDLE, 0)
    manager.shutdown(NOW_MS)
    manager = manager_on(fs, index_interval_bytes=0)
    (log,) = manager.logs()
    assert log.producer_state.snapshots == [1]
    for sequence in range(4):
        data(log, BUSY, sequence)
    log.truncator.delete_records_before(3)
    position = log.local.active.position_of(1)
    path = log.local.active.log.path
    log.local.active.finish()
    manager.checkpoint_all()
    fs = fs.after_kill()
    content = bytearray(fs.content(path))
    content[position : position + 70] = bytes(70)
    fs.overwrite(path, bytes(content))
    (log,) = manager_on(fs, index_interval_bytes=0).logs()
    assert log.log_end_offset == 5
    assert [record.offset for record in fetched(log)] == [3, 4]
    assert list(log.producer_state.producers) == [BUSY]


@pytest.mark.parametrize("lost", ["batch", "content", "segment"])
@pytest.mark.parametrize("then", ["recovery", "truncation"])
def test_records_that_are_lost_below_the_log_start(lost: str, then: str) -> None:
    """Of the segment before, a power failure has left its front. The end of the transaction was
    behind it."""
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    data(log, 3, 0)
    log.roll(NOW_MS)
    data(log, IDLE, 0, transactional=True)
    end_transaction(log, IDLE, committed=True)
    log.roll(NOW_MS)
    for sequence in range(4):
        data(log, BUSY, sequence)
    log.truncator.delete_records_before(4)
    size = log.segments.first.size
    path = log.segments.after(log.segments.first).log.path  # type: ignore[union-attr]
    snapshots = [log.producer_state.snapshot_path(offset) for offset in (1, 3)]
    content = fs.content(path)
    content = content[:size] if lost == "batch" else b""
    if then == "recovery":
        manager.checkpoint_all()
        fs = fs.after_kill()
        for each in snapshots:
            fs.remove(each)
        fs.overwrite(path, content)
        if lost == "segment":
            fs.remove(path)
        (log,) = manager_on(fs).logs()
        assert log.log_end_offset == 7
    else:
        for offset in (1, 3):
            log.producer_state.delete_snapshot(offset)
        segment = log.segments.after(log.segments.first)
        assert segment is not None
        segment.log.truncate(len(content))
        if lost == "segment":
            log.segments.remove(segment)
        log.truncator.truncate_to(6)
    knows_what_is_above(4, log)


def test_a_snapshot_without_segments_is_not_used() -> None:
    disk = Disk(2)
    disk.manager.checkpoint_all()
    disk.log.truncator.delete_records_before(4)
    disk.log.roll(NOW_MS)
    disk.log.truncator.delete_records_before(6)
    disk.manager.checkpoint_all()
    assert disk.log.producer_state.snapshots == [2, 6]
    disk.fs = disk.fs.after_kill()
    for path in disk.fs.paths():
        if path.endswith((".log", "index")):
            disk.fs.remove(path)
    log = manager_on(disk.fs).get("t", 0)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    assert (log.producer_state.producers, log.producer_state.snapshots) == ({}, [])


@pytest.mark.parametrize("tiered", [True, False])
def test_a_kill_while_segments_are_deleted(tiered: bool) -> None:
    """Snapshots of deleted segments go, and what is open stays open."""
    remote = {"remote_storage_enable": True, "local_retention_bytes": 1} if tiered else {}
    settings = {"retention_bytes": 1, **remote}
    fs = MemoryFileSystem()
    manager = manager_on(fs, **settings)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    data(log, IDLE, 0)
    data(log, 3, 0, transactional=True)
    data(log, 4, 0, transactional=True)
    manager.shutdown(NOW_MS)  # its snapshot is inside the first segment
    manager = manager_on(fs, **settings)
    (log,) = manager.logs()
    log.roll(NOW_MS)
    end_transaction(log, 3, committed=True)
    log.roll(NOW_MS)
    for sequence in range(3):
        data(log, BUSY, sequence)
    log.roll(NOW_MS)
    data(log, BUSY, 3)
    log.flusher.flush(NOW_MS)
    manager.checkpoint_all()
    if tiered:
        log.offsets.highest_remote_offset = log.log_end_offset - 1
    states = killed_at_each_removal(
        fs, lambda: run_at_once(log.retention.delete_old_segments(NOW_MS))
    )
    assert log.segments.base_offsets == [7]
    assert len(states) > 6
    firsts = set()
    for each in states:
        (again,) = manager_on(each, **settings).logs()
        first = again.segments.first.base_offset
        firsts.add(first)
        assert all(snapshot >= first for snapshot in again.producer_state.snapshots)
        for _ in range(2):
            again.update_high_watermark(again.log_end_offset)
            assert sorted(again.producer_state.producers) == [IDLE, BUSY, 3, 4]
            assert again.producer_state.open_transactions() == {2: 4}
            assert again.last_stable_offset == max(2, again.log_start_offset)
            again.truncator.truncate_to(again.log_end_offset - 1)
    assert firsts >= {3, 4, 7}


def killed_at_each_removal(
    fs: MemoryFileSystem, work: Callable[[], object]
) -> list[MemoryFileSystem]:
    """What a kill leaves after each file that `work` removes or renames."""
    states = []
    remove, replace = fs.remove, fs.replace

    def watched(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: str) -> None:
            function(*arguments)
            states.append(fs.after_kill())

        return call

    fs.remove, fs.replace = watched(remove), watched(replace)  # type: ignore[method-assign]
    work()
    fs.remove, fs.replace = remove, replace  # type: ignore[method-assign]
    return states


@pytest.mark.parametrize("recovered", [True, False])
def test_a_log_of_a_broker_that_had_forgotten_a_transaction_opens(recovered: bool) -> None:
    """It accepted a batch outside of the transaction, which is open from below the log start on."""
    disk = Disk(0, transactional=True)
    disk.log.producer_state.forget(3)
    if not recovered:
        data(disk.log, IDLE, 1)
        disk.log.flusher.flush(NOW_MS)
    disk.manager.checkpoint_all()
    if recovered:
        data(disk.log, IDLE, 1)
    data(disk.log, 3, 0, transactional=True)
    end_transaction(disk.log, 3, committed=True)
    disk.fs = disk.fs.after_kill()
    log = manager_on(disk.fs).get("t", 0)
    assert log is not None
    log.update_high_watermark(9)
    assert (log.log_end_offset, log.last_stable_offset) == (9, 9)
    assert log.producer_state.producers[IDLE].last_sequence == 1
