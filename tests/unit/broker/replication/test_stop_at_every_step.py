"""A clean stop between any two steps of scheduled work: nothing is missing at the next start, also
if the power fails then, and there is nothing to recover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.replication import log_dir_mover
from ottla.broker.replication.log_cleaner import LogCleaner
from ottla.broker.replication.log_dir_mover import LogDirMover
from ottla.broker.runtime.tasks import spawn, stop
from ottla.protocol.topics import TopicPartition
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import StorageError
from ottla.storage.log.flush import LogFlusher
from tests.doubles.manual_timer import ManualClock
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, manager_on, records_in

T = TypeVar("T")
DISKS = ("/a", "/b")
COMPACTED = {
    "cleanup_policy": ("compact",),
    "min_cleanable_dirty_ratio": 0.0,
    "segment_bytes": 300,
}


class Workers:
    """A worker thread that begins and ends between two steps of the loop."""

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        await asyncio.sleep(0)
        result = work(*arguments)
        await asyncio.sleep(0)
        return result

    async def close(self) -> None:
        """Nothing runs."""


Newest = dict[tuple[int, bytes | None], int]


def newest(manager: LogManager) -> Newest:
    """The offset of the last record of each partition and key."""
    return {
        (log.partition, record.key): record.offset
        for log in manager.logs()
        for record in records_in(log)
    }


def check_next_start(fs: MemoryFileSystem, before: Newest, **settings: object) -> None:
    for each in (fs.after_kill(), fs.after_power_failure()):
        again = manager_on(each, DISKS, **settings)
        assert not again.unclean_start
        assert newest(again) == before
        for log in again.logs():
            assert log.recovery_point == log.log_end_offset == 41
            names = each.list_files(log.path)
            assert not [name for name in names if name.endswith((".cleaned", ".swap"))]


def filled(fs: MemoryFileSystem, partitions: int, **settings: object) -> LogManager:
    manager = manager_on(fs, DISKS, **settings)
    for partition in range(partitions):
        log = manager.get_or_create("t", partition, now_ms=NOW_MS)
        for _ in range(20):
            append(log, 2)
        log.flusher.flush()
        append(log)  # is flushed when the log is closed
        if partition == 0:
            log.flusher.flush()  # nothing is left to flush
    return manager


async def _compacted(after: int) -> bool:
    fs = MemoryFileSystem()
    manager = filled(fs, 3, **COMPACTED)
    before = newest(manager)
    work = LogCleaner(BrokerConfig({}), ManualClock(NOW_MS), manager)
    work._workers = cast(Any, Workers())
    tasks = [spawn(work._clean_logs(), name=f"cleaner-{number}") for number in range(2)]
    for _ in range(after):
        await asyncio.sleep(0)
    was_running = not all(task.done() for task in tasks)
    await stop(*tasks)
    await work.stop()
    manager.shutdown(NOW_MS)
    check_next_start(fs, before, **COMPACTED)
    return was_running


async def _moved(after: int) -> bool:
    fs = MemoryFileSystem()
    manager = filled(fs, 2)
    before = newest(manager)
    keys = [TopicPartition("t", 0), TopicPartition("t", 1)]
    hosted = {key: SimpleNamespace(log=manager.get(*key), offline=False) for key in keys}
    replicas = SimpleNamespace(
        partitions=hosted,
        partition=lambda topic, index: hosted[TopicPartition(topic, index)],
        complete_delayed_requests=lambda partition: None,
    )
    mover = LogDirMover(manager, cast(Any, replicas), cast(Any, Workers()), _flush, lambda: NOW_MS)
    for key in keys:
        log = manager.get(*key)
        assert log is not None
        mover.move(key, next(each for each in DISKS if each != log.log_directory.path))
    task = mover._task
    assert task is not None
    for _ in range(after):
        await asyncio.sleep(0)
    was_running = not task.done()
    mover.stop()
    mover.move(keys[0], hosted[keys[0]].log.log_directory.path)
    await asyncio.gather(task, return_exceptions=True)
    assert mover._task is task
    manager.shutdown(NOW_MS)
    check_next_start(fs, before)
    return was_running


async def _flush(flushers: Iterable[LogFlusher]) -> list[StorageError | None]:
    await asyncio.sleep(0)
    for each in flushers:
        each.flush(NOW_MS)
    return [None for _ in flushers]


async def test_compaction() -> None:
    after = 0
    while await _compacted(after):
        after += 1
    assert after > 6, "a run and a sync of three logs"


async def test_moves_between_log_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dir_mover, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(log_dir_mover, "_CAUGHT_UP_SECONDS", 0)
    after = 0
    while await _moved(after):
        after += 1
    assert after > 8, "some chunks of two logs"


async def test_a_move_that_is_requested_during_the_stop_waits_for_the_next_start() -> None:
    fs = MemoryFileSystem()
    manager = filled(fs, 1)
    key = TopicPartition("t", 0)
    log = manager.get(*key)
    assert log is not None
    replicas = SimpleNamespace(partition=lambda topic, index: None)
    mover = LogDirMover(manager, cast(Any, replicas), cast(Any, Workers()), _flush, lambda: NOW_MS)
    mover.stop()
    (target,) = (each for each in DISKS if each != log.log_directory.path)
    mover.move(key, target)
    assert mover._task is None
    assert manager.get_future(*key) is not None
