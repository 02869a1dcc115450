"""What may run in a worker thread, run there while the owner of the log continues.

On real files: the owner appends, rolls and deletes without pause; workers flush, compact,
checkpoint and purge. In the end the log has to hold what was appended.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random

from ottla.protocol.steps import run_at_once
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.cleaner.compaction import Compaction
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.inspection.fsck import PartitionCheck
from ottla.storage.log.flush import Flush
from ottla.storage.log.log import Log
from tests.doubles.compactions import next_compaction
from tests.doubles.storage_logs import NOW_MS, append, records_in

ROUNDS = 400


def started(tmp_path: Path, **settings: object) -> tuple[LogManager, Log]:
    manager = LogManager([tmp_path], LogConfig(**settings))
    manager.load(NOW_MS)
    return manager, manager.get_or_create("t", 0, now_ms=NOW_MS)


def test_flushing_while_appending(tmp_path: Path) -> None:
    manager, log = started(tmp_path, segment_bytes=5000)
    running: tuple[Flush, Future[None]] | None = None
    with ThreadPoolExecutor(1) as pool:
        for number in range(ROUNDS):
            append(log, producer_id=7, producer_epoch=0, base_sequence=number)
            if running is None:
                flush = log.flusher.begin_flush()
                if flush is not None:
                    running = flush, pool.submit(flush.run)
            elif running[1].done():
                log.flusher.finish_flush(running[0], NOW_MS)
                running = None
        if running is not None:
            running[1].result()
            log.flusher.finish_flush(running[0], NOW_MS)
    assert 0 < log.recovery_point <= log.log_end_offset
    manager.shutdown(NOW_MS)
    assert PartitionCheck(log.path, deep=True).run().problems == []


def test_compacting_while_appending(tmp_path: Path) -> None:
    manager, log = started(
        tmp_path, cleanup_policy=("compact",), segment_bytes=3000, min_cleanable_dirty_ratio=0.1
    )
    cleaner = Cleaner(manager.logs)
    random = Random(5)
    newest: dict[bytes, bytes] = {}
    running: tuple[Compaction, Future[None]] | None = None
    finished = 0
    with ThreadPoolExecutor(1) as pool:
        for number in range(3 * ROUNDS):
            key, value = b"key-%d" % random.randrange(20), b"%d" % number
            newest[key] = value
            append(log, [(NOW_MS, key, value, [])])
            if number % 50 == 0:
                log.flusher.flush()
            if running is None:
                compaction = next_compaction(cleaner, NOW_MS)
                if compaction is not None:
                    running = compaction, pool.submit(compaction.run)
            elif running[1].done():
                assert running[0].error is None
                assert cleaner.finish(running[0], NOW_MS)
                running[0].sync()
                running, finished = None, finished + 1
        if running is not None:
            running[1].result()
            assert cleaner.finish(running[0], NOW_MS)
            finished += 1
    assert finished > 0
    assert {record.key: record.value for record in records_in(log)} == newest
    assert log.log_end_offset == 3 * ROUNDS
    manager.purge(NOW_MS * 2)
    manager.shutdown(NOW_MS)
    assert PartitionCheck(log.path, deep=True).run().problems == []


def test_chores_while_logs_are_created_and_deleted(tmp_path: Path) -> None:
    manager, _ = started(tmp_path, segment_bytes=1000, retention_bytes=2000)
    manager.min_free_bytes = 1
    chores: list[Callable[[], object]] = [
        manager.checkpoint_all,
        manager.check_free_bytes,
        lambda: manager.purge(NOW_MS * 2),
    ]
    pending: Future[object] | None = None
    with ThreadPoolExecutor(1) as pool:
        for number in range(ROUNDS):
            if pending is None or pending.done():
                if pending is not None:
                    pending.result()
                pending = pool.submit(chores[number % len(chores)])
            log = manager.get_or_create("t", number % 7, now_ms=NOW_MS)
            append(log, 3)
            if number % 11 == 0:
                manager.delete_async("t", number % 7, NOW_MS)
            if number % 5 == 0:
                run_at_once(manager.cleanup(NOW_MS))
        if pending is not None:
            pending.result()
    assert manager.offline_directories == []
    manager.purge(NOW_MS * 2)
    manager.shutdown(NOW_MS)
    again = LogManager([tmp_path])
    again.load(NOW_MS)
    assert {log.name: log.log_end_offset for log in again.logs()} == {
        log.name: log.log_end_offset for log in manager.logs()
    }
    for log in again.logs():
        log.local.release()
