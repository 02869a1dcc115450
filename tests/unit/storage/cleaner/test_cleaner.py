"""Which log is compacted, and what happens when that fails."""

import errno
from threading import Thread

import pytest

from ottla.protocol.steps import run_at_once
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.layout import CLEANER_CHECKPOINT
from ottla.storage.log.batch_scan import CorruptLog
from ottla.storage.log.log import Log
from tests.doubles.compactions import next_compaction
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, end_transaction, manager_on, records_in

HOUR = 3_600_000


def manager_with(fs: MemoryFileSystem, count: int = 1, **settings: object) -> LogManager:
    values = {
        "cleanup_policy": ("compact",), "segment_bytes": 400, "min_cleanable_dirty_ratio": 0.5,
        **settings,
    }  # fmt: skip
    manager = manager_on(fs, **values)
    for partition in range(count):
        manager.get_or_create("t", partition, now_ms=NOW_MS)
    return manager


def fill(log: Log, count: int, timestamp: int = NOW_MS) -> None:
    for number in range(count):
        append(log, [(timestamp + number, b"k%d" % (number % 3), bytes(20), [])])
    log.flusher.flush()  # what a crash could take away is not compacted


def clean(cleaner: Cleaner, now_ms: int = NOW_MS) -> bool:
    compaction = next_compaction(cleaner, now_ms)
    if compaction is None:
        return False
    compaction.run()
    finished = cleaner.finish(compaction, now_ms)
    compaction.sync()
    return finished


def test_the_dirtiest_log_comes_first_and_each_once() -> None:
    manager = manager_with(MemoryFileSystem(), 3)
    cleaner = Cleaner(manager.logs)
    first, second, third = manager.logs()
    fill(first, 40)
    assert clean(cleaner)
    fill(first, 10)
    fill(second, 40)
    assert cleaner.cleanable_range(second, NOW_MS).ratio == 1.0
    assert cleaner.cleanable_range(third, NOW_MS).ratio == 0.0
    running = next_compaction(cleaner, NOW_MS)
    assert running is not None
    assert running.log is second
    other = next_compaction(cleaner, NOW_MS)
    assert other is None or other.log is first


def test_a_log_has_to_be_dirty_enough_or_overdue() -> None:
    manager = manager_with(MemoryFileSystem(), min_cleanable_dirty_ratio=1.0)
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 40)
    assert not clean(cleaner)
    log.update_config(log.config.replace(max_compaction_lag_ms=HOUR))
    assert not clean(cleaner, NOW_MS + HOUR)
    assert clean(cleaner, NOW_MS + HOUR + 1)
    assert not clean(cleaner, NOW_MS + 9 * HOUR)


def test_young_records_wait() -> None:
    manager = manager_with(MemoryFileSystem(), min_compaction_lag_ms=HOUR)
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 20, NOW_MS - 3 * HOUR)
    fill(log, 20, NOW_MS)
    cleanable = cleaner.cleanable_range(log, NOW_MS)
    assert 15 < cleanable.uncleanable_offset <= 20
    assert clean(cleaner)
    assert cleaner.checkpoint_of(log) == cleanable.uncleanable_offset


def test_open_transactions_and_the_high_watermark_hold_it_back() -> None:
    manager = manager_with(MemoryFileSystem())
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 12)
    append(
        log, [(NOW_MS, b"k", b"", [])], producer_id=7, producer_epoch=0, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    fill(log, 30)
    assert cleaner.cleanable_range(log, NOW_MS).uncleanable_offset <= 12
    log.offsets.high_watermark = 5
    assert cleaner.cleanable_range(log, NOW_MS).uncleanable_offset <= 5


def test_plain_logs_are_not_compacted() -> None:
    manager = manager_with(MemoryFileSystem(), cleanup_policy=("delete",))
    fill(manager.logs()[0], 40)
    assert next_compaction(Cleaner(manager.logs), NOW_MS) is None


def test_checkpoints_survive_a_restart_and_follow_truncation() -> None:
    fs = MemoryFileSystem()
    manager = manager_with(fs)
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 40)
    assert clean(cleaner)
    done = cleaner.checkpoint_of(log)
    assert done == log.local.active.base_offset
    cleaner.write_checkpoints()
    assert fs.content("/disk/cleaner-offset-checkpoint") == f"0\n1\nt 0 {done}\n".encode()
    assert Cleaner(manager.logs).checkpoint_of(log) == done
    log.truncator.truncate_to(5)
    cleaner.truncated(log)
    assert cleaner.checkpoint_of(log) == log.log_end_offset
    cleaner.forget("t", 0)
    assert cleaner.checkpoint_of(log) is None
    cleaner.write_checkpoints()
    assert fs.content("/disk/cleaner-offset-checkpoint") == b"0\n0\n"
    assert cleaner._unsynced == {}, "the compaction has the offset map of the deleted log"


def test_a_checkpoint_outside_of_the_log_is_not_used() -> None:
    manager = manager_with(MemoryFileSystem())
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 20)
    cleaner._set_checkpoint(log, 10**6)
    assert cleaner.cleanable_range(log, NOW_MS).first_dirty_offset == 0


def test_a_log_that_cannot_be_compacted_is_marked_and_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs = MemoryFileSystem()
    manager = manager_with(fs, 2)
    cleaner = Cleaner(manager.logs)
    bad, good = manager.logs()
    fill(bad, 41)
    fill(good, 40)
    path = bad.segments.first.log.path
    content = bytearray(fs.content(path))
    content[80] ^= 1
    fs.overwrite(path, bytes(content))
    results = [clean(cleaner), clean(cleaner), clean(cleaner)]
    assert sorted(results) == [False, False, True]
    assert ("t", 0) in cleaner.uncleanable
    assert cleaner.checkpoint_of(good) is not None
    assert caplog.text.count("is uncleanable until the next start") == 1
    cleaner.forget("t", 0)
    assert cleaner.uncleanable == {}


@pytest.mark.parametrize("with_batches", [False, True])
def test_a_damaged_transaction_index_does_not_stop_other_logs(with_batches: bool) -> None:
    fs = MemoryFileSystem()
    manager = manager_with(fs, 2)
    bad, good = manager.logs()
    append(bad, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(bad, 7, committed=False)
    fill(bad, 41)
    fill(good, 40)
    manager.shutdown(NOW_MS)
    fs = fs.after_kill()
    manager = manager_with(fs, 2)
    path = bad.segments.first.txn_index.path
    fs.overwrite(path, b"\xff" + fs.content(path)[1:])
    if with_batches:  # or it is rebuilt
        path = bad.segments.first.log.path
        fs.overwrite(path, bytes(100) + fs.content(path)[100:])
    for log in manager.logs():
        log.update_high_watermark(log.log_end_offset)
    cleaner = Cleaner(manager.logs)
    assert clean(cleaner)
    assert clean(cleaner) is not with_batches
    assert list(cleaner.uncleanable) == ([("t", 0)] if with_batches else [])


def test_the_files_of_a_new_log_are_no_reason_against_its_compaction() -> None:
    """The log was moved away and back, or deleted and created again, while it was compacted."""
    fs = MemoryFileSystem()
    manager = manager_with(fs)
    cleaner = Cleaner(manager.logs)
    (old,) = manager.logs()
    fill(old, 41)
    compaction = next_compaction(cleaner, NOW_MS)
    assert compaction is not None
    manager.delete_async("t", 0, NOW_MS)
    log = manager.get_or_create("t", 0, config=old.config, now_ms=NOW_MS)
    append(log, 1)
    compaction.run()
    assert isinstance(compaction.error, CorruptLog)
    assert not cleaner.finish(compaction, NOW_MS)
    assert cleaner.uncleanable == {}


def test_too_little_memory_for_one_batch_is_said() -> None:
    manager = manager_with(MemoryFileSystem())
    with pytest.raises(ValueError, match="too few"):
        Cleaner(manager.logs, memory_bytes=200)
    cleaner = Cleaner(manager.logs, memory_bytes=300)
    (log,) = manager.logs()
    for _ in range(5):
        append(log, [(NOW_MS, b"key %d" % n, bytes(20), []) for n in range(8)])
    log.flusher.flush()
    assert not clean(cleaner)
    assert "dedupe.buffer.size" in cleaner.uncleanable["t", 0]


def test_no_room_stops_it_for_now() -> None:
    fs = MemoryFileSystem()
    manager = manager_with(fs)
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 40)
    fs.fail("pwrite", errno.ENOSPC, path_part=".cleaned")
    assert not clean(cleaner)
    assert cleaner.uncleanable == {}
    assert log.log_directory.is_full
    assert not any(path.endswith(".cleaned") for path in fs.paths())
    log.log_directory.check_free_bytes(0)
    assert clean(cleaner)


def test_a_failing_disk_goes_offline() -> None:
    fs = MemoryFileSystem()
    manager = manager_with(fs)
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 40)
    fs.fail("pread", errno.EIO)
    assert not clean(cleaner)
    assert log.log_directory.is_offline
    assert next_compaction(cleaner, NOW_MS) is None
    cleaner._set_checkpoint(log, 5)
    cleaner.write_checkpoints()


def test_cancelling_is_retried_later() -> None:
    manager = manager_with(MemoryFileSystem())
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 40)
    compaction = next_compaction(cleaner, NOW_MS)
    assert compaction is not None
    cleaner.cancel("t", 0)
    compaction.run()
    assert not cleaner.finish(compaction, NOW_MS)
    assert clean(cleaner)


def test_a_damaged_checkpoint_means_from_the_beginning(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager = manager_with(fs)
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    cleaner._set_checkpoint(log, 5)
    cleaner.write_checkpoints()
    fs.overwrite("/disk/cleaner-offset-checkpoint", b"junk")
    assert Cleaner(manager.logs).checkpoint_of(log) is None
    assert "from the beginning" in caplog.text


def test_what_is_not_on_disk_yet_is_left_alone() -> None:
    fs = MemoryFileSystem()
    manager = manager_with(fs)
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 20)
    flushed = log.recovery_point
    for number in range(20):
        append(log, [(NOW_MS, b"k%d" % (number % 3), bytes(20), [])])
    assert cleaner.cleanable_range(log, NOW_MS).uncleanable_offset <= flushed
    assert clean(cleaner)
    # Recovery has to know that the gaps are not lost records, whatever was written down before.
    assert b"t 0 %d" % flushed in fs.content("/disk/recovery-point-offset-checkpoint")


def test_many_logs_are_checked_in_steps() -> None:
    manager = manager_with(MemoryFileSystem(), 40)
    steps = Cleaner(manager.logs).dirty_logs(NOW_MS)
    assert sum(1 for _ in steps) == 40


def test_a_log_that_is_not_dirty_any_more_is_left_out() -> None:
    """Another thread has compacted it since the logs were checked, or it was deleted."""
    manager = manager_with(MemoryFileSystem(), 2)
    cleaner = Cleaner(manager.logs)
    for log in manager.logs():
        fill(log, 40)
    first, second = run_at_once(cleaner.dirty_logs(NOW_MS))
    compaction = cleaner.begin(first, NOW_MS)
    assert compaction is not None
    assert cleaner.compactions == 1
    compaction.run()
    assert cleaner.finish(compaction, NOW_MS)
    assert cleaner.compactions == 0
    assert cleaner.begin(first, NOW_MS) is None
    manager.delete_async(second.topic, second.partition, NOW_MS)
    assert cleaner.begin(second, NOW_MS) is None


def test_nothing_is_compacted_before_the_first_checkpoint_is_written() -> None:
    """Recovery takes gaps for lost records in a log that was never compacted."""
    fs = MemoryFileSystem()
    manager = manager_with(fs)
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 40)
    fs.fail("replace", errno.ENOSPC, path_part=CLEANER_CHECKPOINT)
    assert not clean(cleaner)
    assert len(records_in(log)) == 40
    assert manager.offline_directories == []
    manager.check_free_bytes()
    assert clean(cleaner)
    assert len(records_in(log)) < 40
    assert fs.exists(f"/disk/{CLEANER_CHECKPOINT}")


def test_a_compaction_that_could_not_begin_leaves_the_first_checkpoint_to_the_next() -> None:
    fs = MemoryFileSystem()
    manager = manager_with(fs)
    (log,) = manager.logs()
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, committed=False)
    fill(log, 40)
    manager.shutdown(NOW_MS)
    manager = manager_with(fs.after_kill())
    fs = manager.fs
    (log,) = manager.logs()
    log.update_high_watermark(log.log_end_offset)
    cleaner = Cleaner(manager.logs)
    fs.fail("open", errno.EMFILE, path_part=".txnindex")
    assert not clean(cleaner)
    assert cleaner.uncleanable == {}
    assert cleaner.checkpoint_of(log) is None
    fs.heal()
    log.log_directory.check_free_bytes(0)
    compaction = next_compaction(cleaner, NOW_MS)
    assert compaction is not None
    assert compaction.is_first


def test_two_threads_do_not_write_a_checkpoint_file_at_once() -> None:
    """Both would write the same temporary file, and the second one would not find it."""
    other_done = []

    class OtherThread(MemoryFileSystem):
        def replace(self, source: str, target: str) -> None:
            if target.endswith(CLEANER_CHECKPOINT) and not threads:
                cleaner._set_checkpoint(log, 3)
                threads.append(Thread(target=cleaner.write_checkpoints))
                threads[0].start()
                threads[0].join(0.1)
                other_done.append(not threads[0].is_alive())
            super().replace(source, target)

    threads: list[Thread] = []
    fs = OtherThread()
    manager = manager_with(fs)
    cleaner = Cleaner(manager.logs)
    (log,) = manager.logs()
    fill(log, 4)
    cleaner._set_checkpoint(log, 2)
    cleaner.write_checkpoints()
    threads[0].join()
    assert other_done == [False]
    assert manager.offline_directories == []
    assert fs.content(f"/disk/{CLEANER_CHECKPOINT}") == b"0\n1\nt 0 3\n"
