"""An append with `flush.messages` that fails at any of its calls, and is sent again."""

from __future__ import annotations

import errno

import pytest

from ottla.storage.errors import DiskFull, LogDirectoryOffline, StorageError
from ottla.storage.files.fs import Buffer
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    ROOT,
    append,
    batch_of,
    end_transaction,
    fetched,
    manager_on,
    new_log,
    records_in,
)

SETTINGS: dict[str, object] = {
    "flush_messages": 1,
    "index_interval_bytes": 100,
    "segment_bytes": 1000,
}


def send(log: Log, sequence: int, *, transactional: bool) -> bool:
    """Sends one batch of a producer. True when it is a duplicate."""
    info = append(
        log, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=transactional
    )
    assert info.first_offset == sequence
    return info.duplicate


def fails_at_call(
    operation: str, number: int, code: int, *, clean: bool, transactional: bool
) -> bool:
    """Fails one call of twelve appends, retries, restarts. False without such a call."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, **SETTINGS)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    fault = fs.fail(operation, code, after=number)
    acknowledged = 0
    for sequence in range(12):
        try:
            send(log, sequence, transactional=transactional)
        except StorageError:
            fs.heal()
            manager.check_free_bytes()
            if manager.offline_directories:
                break
            send(log, sequence, transactional=transactional)
        assert log.recovery_point == log.log_end_offset, "acknowledged is on disk"
        acknowledged += 1
    if clean:
        manager.shutdown(NOW_MS)
        after = fs.after_kill()
    else:
        after = fs.after_power_failure()
    again = manager_on(after, **SETTINGS).get("t", 0)
    offsets = [record.offset for record in fetched(again)] if again is not None else []
    assert offsets == list(range(len(offsets))), "without gaps or repetitions"
    assert len(offsets) >= acknowledged, "nothing acknowledged is lost"
    if again is not None and offsets:
        assert again.producer_state.producers[7].last_sequence == len(offsets) - 1
        assert again.leader_epochs.entries == [(0, 0)]
    return fault.times == 0


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["open", "pwrite", "sync", "sync_directory", "replace"])
def test_nothing_is_lost_or_doubled(
    operation: str, code: int, clean: bool, transactional: bool
) -> None:
    number = 0
    while fails_at_call(operation, number, code, clean=clean, transactional=transactional):
        number += 1
    assert number > 0


def test_a_batch_that_is_written_but_not_flushed_is_a_duplicate_when_it_is_sent_again() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, flush_messages=1, index_interval_bytes=0)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    send(log, 0, transactional=False)
    fs.fail("pwrite", errno.ENOSPC, path_part=".index")
    with pytest.raises(DiskFull):
        send(log, 1, transactional=False)
    fs.heal()
    manager.check_free_bytes()
    assert send(log, 1, transactional=False)
    assert log.recovery_point == 2, "acknowledged after a flush only"
    assert [record.offset for record in fetched(log)] == [0, 1]


def test_a_duplicate_is_not_acknowledged_before_it_is_flushed() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, flush_messages=1, index_interval_bytes=0)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    send(log, 0, transactional=False)
    fs.fail("pwrite", errno.ENOSPC, path_part=".index", times=2)
    for _ in range(2):
        with pytest.raises(DiskFull):
            send(log, 1, transactional=False)
        manager.check_free_bytes()
    assert send(log, 1, transactional=False)


def test_a_failed_sync_takes_the_directory_offline_after_the_state_is_updated() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, flush_messages=1)
    fs.fail("sync", errno.EIO, path_part=".log")
    with pytest.raises(LogDirectoryOffline):
        send(log, 0, transactional=False)
    assert log.producer_state.producers[7].last_sequence == 0
    assert log.log_directory.is_offline


def test_a_leader_epoch_that_was_not_written_is_written_by_the_retry() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log)
    fs.fail("pwrite", errno.ENOSPC, path_part="leader-epoch-checkpoint")
    with pytest.raises(DiskFull):
        log.append(batch_of(), leader_epoch=3, now_ms=NOW_MS)
    manager.check_free_bytes()
    log.append(batch_of(), leader_epoch=3, now_ms=NOW_MS)
    assert log.leader_epochs.entries == [(0, 0), (3, 1)]
    assert fs.content(f"{ROOT}/t-0/leader-epoch-checkpoint") == b"0\n2\n0 0\n3 1\n"


def aborted_of(log: Log) -> list[tuple[int, int]]:
    """(producer id, first offset) as a read_committed fetch of the whole log lists them."""
    found = []
    for segment in log.segments:
        found += [(each.producer_id, each.first_offset) for each in segment.txn_index.entries()]
    return found


def abort_fails_at_call(
    operation: str, number: int, code: int, *, clean: bool, short: bool, flush: int
) -> bool:
    """Fails one call of four aborted transactions, retries, restarts. False without such a call."""
    fs = MemoryFileSystem()
    settings = {**SETTINGS, "segment_bytes": 500, "flush_messages": flush}
    manager = manager_on(fs, **settings)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    # Opening a file that exists needs no space.
    part = ".txnindex" if operation == "open" else ""
    fault = fs.fail(operation, code, after=number, short=short, path_part=part)
    expected = []
    for producer_id in range(4):
        steps = [
            lambda id_=producer_id: append(
                log, producer_id=id_, producer_epoch=0, base_sequence=0, transactional=True
            ),
            lambda id_=producer_id: end_transaction(log, id_, committed=False),
        ]
        for step in steps:
            end = log.log_end_offset
            try:
                step()
            except DiskFull:
                fs.heal()
                manager.check_free_bytes()
                if log.log_end_offset == end:  # not when the flush after the write failed
                    assert aborted_of(log) == expected
                    step()
        expected.append((producer_id, 2 * producer_id))
        assert manager.offline_directories == [], "a full disk is no failed disk"
    assert aborted_of(log) == expected
    is_hit = fault.times == 0
    fs.heal()
    if clean:
        manager.shutdown(NOW_MS)
    else:
        log.flusher.flush()
    after = fs.after_kill() if clean else fs.after_power_failure()
    again = manager_on(after, **settings).get("t", 0)
    assert again is not None
    assert aborted_of(again) == expected
    assert [record.offset for record in records_in(again)] == list(range(8))
    return is_hit


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("operation", "flush"),
    [("open", 1_000_000), ("pwrite", 1), ("pwrite", 1_000_000), ("short write", 1)],
)
def test_a_full_disk_interrupts_an_abort(operation: str, flush: int, clean: bool) -> None:
    """The disk stays online, and the marker is written with its index entry or not at all."""
    number = 0
    name, short = ("pwrite", True) if operation == "short write" else (operation, False)
    while abort_fails_at_call(name, number, errno.ENOSPC, clean=clean, short=short, flush=flush):
        number += 1
    assert number > 0


@pytest.mark.parametrize("part", [".txnindex", ".log"])
def test_a_marker_that_lacked_memory_is_written_by_the_retry(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    pwrite = fs.pwrite

    def fails(descriptor: int, data: Buffer, position: int) -> int:
        written = pwrite(descriptor, data, position)
        if fs.calls[-1][1].endswith(part):
            raise MemoryError
        return written

    with monkeypatch.context() as patch:
        patch.setattr(fs, "pwrite", fails)
        with pytest.raises(MemoryError):
            end_transaction(log, 7, committed=False)
    assert aborted_of(log) == []
    assert not fs.exists(log.local.active.txn_index.path)
    end_transaction(log, 7, committed=False)
    assert aborted_of(log) == [(7, 0)]
    assert log.last_stable_offset == log.log_end_offset == 2
    assert [record.offset for record in records_in(log)] == [0, 1]


@pytest.mark.parametrize("part", [".txnindex", ".log"])
def test_a_kill_between_index_entry_and_marker_leaves_no_entry(part: str) -> None:
    """Recovery removes an entry whose marker was never written, or was written in part."""
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.flusher.flush()
    fs.fail("pwrite", errno.ENOSPC, path_part=part)
    for operation in ("truncate", "remove"):
        fs.fail(operation, errno.EIO)  # as if the process had died before it could undo
    with pytest.raises((DiskFull, LogDirectoryOffline)):
        end_transaction(log, 7, committed=False)
    again = manager_on(fs.after_kill()).get("t", 0)
    assert again is not None
    assert aborted_of(again) == []
    end_transaction(again, 7, committed=False)
    assert aborted_of(again) == [(7, 0)]
