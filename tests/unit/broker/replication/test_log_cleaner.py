"""The loops that compact logs: how many, how much memory, how fast."""

from __future__ import annotations

import errno

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.replication.log_cleaner import CleanerThrottler, LogCleaner
from ottla.broker.runtime.tasks import running_tasks
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.checkpoints import read_offset_checkpoint
from ottla.storage.files.layout import CLEANER_CHECKPOINT
from ottla.storage.log.log import Log
from tests.doubles.eventually import eventually_async
from tests.doubles.manual_timer import ManualClock
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, manager_on, records_in

SETTINGS = {"log.cleaner.backoff.ms": "1"}


def compactable(fs: MemoryFileSystem, count: int = 1) -> LogManager:
    manager = manager_on(
        fs, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, segment_bytes=300
    )
    for partition in range(count):
        log = manager.get_or_create("t", partition, now_ms=NOW_MS)
        for _ in range(20):
            append(log, 2)
        log.flusher.flush()
    return manager


def work_on(manager: LogManager, config: BrokerConfig) -> LogCleaner:
    return LogCleaner(config, ManualClock(NOW_MS), manager)


def loops() -> set[str]:
    return {task.get_name() for task in running_tasks()}


class Waits:
    """A throttle on a clock that moves only as the throttle waits."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.clock = ManualClock()
        self.clock.advance(10_000)
        self.waited: list[float] = []
        self.throttle = CleanerThrottler(lambda: self.rate, self.clock)
        self.throttle._stopped.wait = self._wait  # type: ignore[method-assign,assignment]

    def _wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.clock.advance(round(seconds * 1000))


def test_the_throttle_keeps_the_rate_but_gives_a_second_at_once() -> None:
    scene = Waits(1000.0)
    scene.throttle(1000)
    assert scene.waited == []
    for _ in range(10):
        scene.throttle(500)
    assert scene.waited == pytest.approx([0.5] * 10)
    scene.clock.advance(60_000)
    scene.throttle(1000)
    scene.throttle(100)
    assert len(scene.waited) == 11, "only the last second is made up for"


def test_the_rate_may_change_and_end() -> None:
    scene = Waits(1.7976931348623157e308)
    scene.throttle(1 << 40)
    scene.rate = 100.0
    scene.throttle(200)
    assert scene.waited == pytest.approx([1.0])
    scene.rate = 0.0
    scene.throttle(1)
    assert scene.waited == pytest.approx([1.0, 1.0]), "as if it were one byte a second"


def test_stopping_ends_the_waiting() -> None:
    throttle = CleanerThrottler(lambda: 1.0, ManualClock())
    throttle.stop()
    throttle(10**9)


async def test_logs_are_compacted_and_it_is_written_down() -> None:
    fs = MemoryFileSystem()
    manager = compactable(fs, 3)
    work = work_on(manager, BrokerConfig(SETTINGS))
    work.start()
    await eventually_async(lambda: fs.exists("/disk/cleaner-offset-checkpoint"))
    await eventually_async(lambda: all(work.cleaner.checkpoint_of(log) for log in manager.logs()))
    await work.stop()
    assert loops() == set()
    assert all(len(records_in(log)) < 40 for log in manager.logs())


async def test_a_log_that_cannot_be_compacted_does_not_hold_up_the_others() -> None:
    fs = MemoryFileSystem()
    manager = compactable(fs, 2)
    damaged, other = manager.logs()
    for segment in damaged.segments:
        segment.release()
    fs.remove(damaged.segments.first.log.path)
    work = work_on(manager, BrokerConfig(SETTINGS))
    assert next(iter(run_at_once(work.cleaner.dirty_logs(NOW_MS)))) is damaged
    await work._clean_logs()
    assert work.cleaner.checkpoint_of(damaged) is None
    assert work.cleaner.checkpoint_of(other)
    await work.stop()


async def test_all_logs_are_checked_twice_however_many_are_dirty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With thousands of dirty logs, a check of all of them for each one would take minutes."""
    manager = compactable(MemoryFileSystem(), 20)
    work = work_on(manager, BrokerConfig({"log.cleaner.backoff.ms": "100"}))
    checks = []
    original = work.cleaner.dirty_logs
    monkeypatch.setattr(work.cleaner, "dirty_logs", lambda now: checks.append(1) or original(now))
    await work._clean_logs()
    assert all(work.cleaner.checkpoint_of(log) for log in manager.logs())
    assert len(checks) == 2, "the second one finds that none is dirty any more"
    await work.stop()


async def test_the_number_of_loops_follows_the_setting_and_shares_the_memory() -> None:
    config = BrokerConfig({**SETTINGS, "log.cleaner.dedupe.buffer.size": "4000000"})
    work = work_on(manager_on(MemoryFileSystem()), config)
    work.start()
    assert loops() == {"log-cleaner-0"}
    assert work.cleaner.memory_bytes == 4_000_000
    config.update_dynamic({"log.cleaner.threads": "3"}, {})
    work.settings_changed()
    assert loops() == {"log-cleaner-0", "log-cleaner-1", "log-cleaner-2"}
    assert work.cleaner.memory_bytes == 1_333_333
    config.update_dynamic({"log.cleaner.threads": "1"}, {})
    work.settings_changed()
    await eventually_async(lambda: loops() == {"log-cleaner-0"})
    config.update_dynamic({"log.cleaner.threads": "2"}, {})
    work.settings_changed()
    assert loops() == {"log-cleaner-0", "log-cleaner-1"}
    await work.stop()
    assert loops() == set()


async def test_none_without_the_cleaner() -> None:
    work = work_on(manager_on(MemoryFileSystem()), BrokerConfig({"log.cleaner.enable": "false"}))
    work.start()
    work.settings_changed()
    assert loops() == set()
    await work.stop()


async def test_a_throttled_compaction_does_not_hold_up_the_end() -> None:
    manager = compactable(MemoryFileSystem())
    log: Log = manager.logs()[0]
    segments = log.segments.base_offsets
    # One byte a second: it would take days.
    slow = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": "1"}
    work = work_on(manager, BrokerConfig(slow))
    work.start()
    await eventually_async(lambda: work._workers.accepted > 0)
    await work.stop()
    assert log.segments.base_offsets == segments


async def test_the_checkpoint_of_a_deleted_log_leaves_the_file() -> None:
    """After a restart a log of the same name would start with it: nothing below is compacted."""
    fs = MemoryFileSystem()
    manager = compactable(fs)
    cleaner = work_on(manager, BrokerConfig(SETTINGS))
    path = f"{manager.directories.all[0].path}/{CLEANER_CHECKPOINT}"

    def stored() -> dict[tuple[str, int], int]:
        return read_offset_checkpoint(fs, path)

    cleaner.start()
    await eventually_async(lambda: fs.exists(path) and ("t", 0) in stored())
    manager.delete_async("t", 0, NOW_MS)
    cleaner.deleted(TopicPartition("t", 0))
    await eventually_async(lambda: stored() == {})
    await cleaner.stop()


async def test_a_log_that_is_being_copied_to_another_directory_is_not_compacted() -> None:
    """The copy may have a record already whose tombstone a compaction removes before it is read."""
    manager = manager_on(
        MemoryFileSystem(),
        ("/a", "/b"),
        cleanup_policy=("compact",),
        min_cleanable_dirty_ratio=0.0,
        segment_bytes=300,
        delete_retention_ms=0,
    )
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, [(NOW_MS, b"deleted", b"value", [])])
    append(log, [(NOW_MS, b"deleted", None, [])])
    for _ in range(20):
        append(log, 2)
    log.flusher.flush()
    work = work_on(manager, BrokerConfig(SETTINGS))
    copy = manager.create_future("t", 0, "/b", NOW_MS)
    copy.append_as_follower(next(log.batches(0)), now_ms=NOW_MS)
    for _ in range(3):
        await work._clean_logs()
        append(log, 5)
        log.flusher.flush()
    for batch in log.batches(copy.log_end_offset):
        copy.append_as_follower(batch, now_ms=NOW_MS)
    newest = {record.key: record.value for record in records_in(copy)}
    assert newest[b"deleted"] is None
    moved = manager.replace_current_with_future("t", 0, NOW_MS)
    moved.update_high_watermark(moved.log_end_offset)
    moved.flusher.flush()
    for _ in range(3):
        await work._clean_logs()
        append(moved, 5)
        moved.flusher.flush()
    assert b"deleted" not in {record.key for record in records_in(moved)}
    await work.stop()


async def test_a_move_to_a_disk_that_has_failed_does_not_stop_compaction() -> None:
    manager = manager_on(
        MemoryFileSystem(), ("/a", "/b"), cleanup_policy=("compact",), segment_bytes=300
    )
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for _ in range(20):
        append(log, 2)
    log.flusher.flush()
    copy = manager.create_future("t", 0, "/b", NOW_MS)
    copy.log_directory.fail(OSError(errno.EIO, "test"))
    work = work_on(manager, BrokerConfig(SETTINGS))
    await work._clean_logs()
    assert len(records_in(log)) < 40
    await work.stop()
