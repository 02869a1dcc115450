"""What a log knows of its producers after a compaction that removed the end of a transaction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.protocol.steps import run_at_once
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.cleaner.compaction import Compaction
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.log.log import Log
from tests.doubles.compactions import next_compaction
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, end_transaction, manager_on

DAY_MS = 86_400_000
DIRECTORIES = ("/a", "/b")
SETTINGS = {
    "cleanup_policy": ("compact", "delete"),
    "retention_ms": -1,
    "min_cleanable_dirty_ratio": 0.0,
    "delete_retention_ms": 0,
    "segment_bytes": 500,
}


def record(log: Log, key: bytes, size: int = 310) -> None:
    append(log, [(NOW_MS, key, bytes(size), [])])


def transactional(log: Log, sequence: int, key: bytes) -> None:
    append(
        log,
        [(NOW_MS, key, b"v", [])],
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )


def started(fs: MemoryFileSystem | None = None) -> tuple[LogManager, Log]:
    manager = manager_on(fs or MemoryFileSystem(), DIRECTORIES, **SETTINGS)
    return manager, manager.get_or_create("t", 0, now_ms=NOW_MS)


def compact(cleaner: Cleaner, log: Log, days: int) -> None:
    """One compaction on each of these days, with something to compact."""
    for day in range(days):
        compaction = begun(cleaner, day)
        assert cleaner.finish(compaction, NOW_MS + day * DAY_MS)
        compaction.sync()
        record(log, b"c%d" % day)
        log.roll(NOW_MS)
        log.flusher.flush(NOW_MS)


def begun(cleaner: Cleaner, day: int) -> Compaction:
    compaction = next_compaction(cleaner, NOW_MS + day * DAY_MS)
    assert compaction is not None
    compaction.run()
    assert compaction.error is None
    return compaction


def nothing_is_open(log: Log) -> None:
    log.update_high_watermark(log.log_end_offset)
    assert log.producer_state.open_transactions() == {}
    assert log.last_stable_offset == log.log_end_offset


def over_two_segments(log: Log, *, committed: bool = True) -> None:
    """A transaction that is open at the second segment, of which only the marker is left soon."""
    transactional(log, 0, b"k")
    record(log, b"a")
    log.roll(NOW_MS)
    end_transaction(log, 7, committed=committed)
    record(log, b"k")
    record(log, b"b")
    log.roll(NOW_MS)
    transactional(log, 1, b"x")
    end_transaction(log, 7, committed=True)
    log.flusher.flush(NOW_MS)


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_has_ended_after_a_truncation(committed: bool) -> None:
    manager, log = started()
    over_two_segments(log, committed=committed)
    compact(Cleaner(manager.logs), log, 5)
    assert 2 in log.segments.base_offsets
    log.truncator.truncate_to(3)
    nothing_is_open(log)


def test_a_transaction_has_ended_although_a_snapshot_inside_a_segment_has_it_open() -> None:
    """The snapshot of a clean stop is at no segment's base offset."""
    fs = MemoryFileSystem()
    manager, log = started(fs)
    transactional(log, 0, b"k")
    manager.shutdown(NOW_MS)
    manager, log = started(fs)
    assert log.producer_state.snapshots == [1]
    end_transaction(log, 7, committed=True)
    for key in (b"k", b"b", b"b"):
        record(log, key)
    transactional(log, 1, b"x")
    end_transaction(log, 7, committed=True)
    log.roll(NOW_MS)
    log.flusher.flush(NOW_MS)
    compact(Cleaner(manager.logs), log, 5)
    log.truncator.truncate_to(3)
    nothing_is_open(log)


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_has_ended_in_a_log_that_was_moved(committed: bool) -> None:
    manager, log = started()
    transactional(log, 0, b"k")
    log.roll(NOW_MS)
    end_transaction(log, 7, committed=committed)
    record(log, b"other")
    log.roll(NOW_MS)
    record(log, b"last")
    log.flusher.flush(NOW_MS)
    log.truncator.delete_records_before(1)
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 1
    compact(Cleaner(manager.logs), log, 3)
    nothing_is_open(log)
    there = next(each for each in DIRECTORIES if each != log.log_directory.path)
    copy = manager.create_future("t", 0, there, NOW_MS)
    for batch in log.batches(log.log_start_offset):
        copy.append_as_follower(bytearray(batch), now_ms=NOW_MS)
    nothing_is_open(manager.replace_current_with_future("t", 0, NOW_MS))


@pytest.mark.parametrize("clean", [True, False])
def test_a_transaction_has_ended_after_a_restart(clean: bool) -> None:
    """Also if the newest snapshot, the only one that is left, is damaged."""
    fs = MemoryFileSystem()
    manager, log = started(fs)
    over_two_segments(log)
    compact(Cleaner(manager.logs), log, 5)
    if clean:
        manager.shutdown(NOW_MS)
    fs = fs.after_kill()
    for path in fs.paths():
        if path.endswith(".snapshot"):
            fs.overwrite(path, b"damaged")
    _, log = started(fs)
    nothing_is_open(log)
    log.truncator.truncate_to(3)
    nothing_is_open(log)


def test_a_transaction_has_ended_after_a_kill_in_the_replacement() -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    over_two_segments(log)
    cleaner = Cleaner(manager.logs)
    compact(cleaner, log, 1)
    states: list[MemoryFileSystem] = []

    def watched(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: str) -> None:
            function(*arguments)
            states.append(fs.after_kill())

        return call

    fs.remove, fs.replace = watched(fs.remove), watched(fs.replace)  # type: ignore[method-assign]
    compact(cleaner, log, 3)
    assert len(states) > 20
    for each in states:
        _, log = started(each)
        nothing_is_open(log)
        log.truncator.truncate_to(3)
        nothing_is_open(log)


@pytest.mark.parametrize("clean", [True, False])
def test_a_transaction_has_ended_in_a_log_that_kafka_compacted(clean: bool) -> None:
    """Kafka keeps the snapshot of the first segment that a compaction replaces."""
    fs = MemoryFileSystem()
    manager, log = started(fs)
    over_two_segments(log)
    path = log.producer_state.snapshot_path(2)
    content = fs.content(path)
    cleaner = Cleaner(manager.logs)
    compact(cleaner, log, 5)
    cleaner.write_checkpoints()
    if clean:
        manager.shutdown(NOW_MS)
    fs = fs.after_kill()
    fs._create(path)
    fs.overwrite(path, content)
    _, log = started(fs)
    assert log.producer_state.snapshots[-1] >= log.local.active.base_offset
    nothing_is_open(log)
    log.truncator.truncate_to(3)
    nothing_is_open(log)


def test_a_compaction_deletes_the_snapshots_of_what_it_leaves_out() -> None:
    """Retention deletes the first segment of a group meanwhile. The marker of a transaction that is
    open in the snapshot of the second one may be in a later group."""
    manager, log = started()
    for number in range(8):
        transactional(log, number, b"k")
        end_transaction(log, 7, committed=True)
        record(log, b"a", 250)
    log.flusher.flush(NOW_MS)
    active = log.local.active.base_offset
    assert log.producer_state.snapshots == log.segments.base_offsets[1:]
    cleaner = Cleaner(manager.logs)
    compaction = begun(cleaner, 0)
    log.truncator.delete_records_before(log.segments.base_offsets[1])
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 1
    assert cleaner.finish(compaction, NOW_MS)
    assert log.producer_state.snapshots == [active]


def test_a_compaction_that_runs_when_a_move_begins_is_dropped() -> None:
    """The copy has the transaction, or a record, whose marker, or tombstone, it would remove."""
    fs = MemoryFileSystem()
    manager, log = started(fs)
    over_two_segments(log)
    cleaner = Cleaner(
        manager.logs, is_moving=lambda log: manager.get_future(log.topic, log.partition) is not None
    )
    compact(cleaner, log, 1)
    there = next(each for each in DIRECTORIES if each != log.log_directory.path)
    compaction = begun(cleaner, 1)
    copy = manager.create_future("t", 0, there, NOW_MS)
    copy.append_as_follower(bytearray(next(log.batches(0))), now_ms=NOW_MS)
    batches = [bytes(each) for each in log.batches(0)]
    assert not cleaner.finish(compaction, NOW_MS + DAY_MS)
    assert [bytes(each) for each in log.batches(0)] == batches
    assert not any(path.endswith(".cleaned") for path in fs.paths())
    manager.abandon_future("t", 0, NOW_MS)
    assert cleaner.finish(begun(cleaner, 1), NOW_MS + DAY_MS)
