"""A flush syncs everything that a restart after a power failure needs."""

import errno

import pytest

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


def test_after_a_power_failure_everything_flushed_is_there() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_bytes=600, index_interval_bytes=100)
    log = manager.get_or_create("t", 0, topic_id=b"i" * 16, now_ms=NOW_MS)
    for number in range(20):
        append(
            log, producer_id=7, producer_epoch=0, base_sequence=number, transactional=number > 10
        )
    end_transaction(log, 7, committed=False)
    log.flush()
    manager.checkpoint_all()
    append(log)
    before = fetched(log)[:-1]
    again = manager_on(fs.after_power_failure(), segment_bytes=600).get("t", 0)
    assert again is not None
    assert fetched(again) == before
    assert again.topic_id == b"i" * 16
    assert again.leader_epochs.entries == [(0, 0)]
    assert [e for s in again.segments for e in s.txn_index.entries()] == [
        e for s in log.segments for e in s.txn_index.entries()
    ]
    assert again.producer_state.producers[7].last_sequence == 19


def test_only_segments_above_the_recovery_point_are_synced() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=300)
    for _ in range(10):
        append(log)
    log.flush()
    for _ in range(3):
        append(log)
    fs.calls.clear()
    log.flush()
    synced = {path for operation, path in fs.calls if operation == "sync" and ".log" in path}
    assert synced <= {segment.log.path for segment in log.segments.from_offset(10)}


def test_files_that_went_meanwhile_do_not_matter() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=300)
    for number in range(10):
        append(log, producer_id=7, producer_epoch=0, base_sequence=number)
    flush = log.begin_flush()
    assert flush is not None
    fs.replace(log.path, "/disk/elsewhere")
    flush.run()
    assert flush.error is None


@pytest.mark.parametrize("when", ["before the flush", "while it runs"])
def test_the_directory_is_renamed_meanwhile(when: str) -> None:
    """At the end of a move between log directories: nothing would read the files again after a
    power failure, because they are below the recovery point."""
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, committed=False)
    flush = log.begin_flush()
    assert flush is not None
    path = f"{log.path}-moved"
    fs.replace(log.path, path)
    fs.sync_directory("/disk")
    if when == "before the flush":
        log.move_to(path)
        flush.run()
    else:
        flush.run()
        log.move_to(path)
    log.finish_flush(flush, NOW_MS)
    assert log.recovery_point == 2
    (segment,) = log.segments
    assert segment.txn_index.path.startswith(path)
    after = fs.after_power_failure()
    for file in (segment.log.path, segment.txn_index.path):
        assert after.content(file) == fs.content(file)


def test_an_error_is_kept_for_the_owner() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log)
    flush = log.begin_flush()
    assert flush is not None
    fs.fail("sync", errno.EIO)
    flush.run()
    assert flush.error is not None
    assert flush.error.errno == errno.EIO


def test_a_truncation_meanwhile_does_not_move_the_recovery_point_behind_the_end() -> None:
    log = new_log()
    append(log)
    append(log)
    flush = log.begin_flush()
    assert flush is not None
    log.offsets.high_watermark = 0
    log.truncate_to(1)
    flush.run()
    log.finish_flush(flush, NOW_MS)
    assert log.recovery_point == 1


def test_a_truncation_meanwhile_leaves_what_was_written_after_it_unflushed() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for _ in range(10):
        log.append(batch_of(), leader_epoch=0, now_ms=NOW_MS)
    flush = log.begin_flush()
    assert flush is not None
    flush.run()
    log.truncate_to(5)
    for _ in range(6):
        log.append(batch_of(), leader_epoch=1, now_ms=NOW_MS)
    log.finish_flush(flush, NOW_MS)
    assert log.recovery_point == 5
    manager.checkpoint_all()
    again = manager_on(fs.after_kill()).get("t", 0)
    assert again is not None
    assert fetched(again) == fetched(log)
    log.flush()
    assert log.recovery_point == 11


def test_starting_again_meanwhile_leaves_what_was_written_after_it_unflushed() -> None:
    log = new_log()
    append(log, 10)
    flush = log.begin_flush()
    assert flush is not None
    flush.run()
    log.truncate_fully_and_start_at(3)
    append(log, 10)
    log.finish_flush(flush, NOW_MS)
    assert log.recovery_point == 3
