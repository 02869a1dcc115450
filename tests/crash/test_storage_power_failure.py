"""A power failure at any moment: what was flushed is there, and nothing that was never written.

Runs in memory: the file system forgets what was not synced, keeps torn parts of it, and loses
names that were not synced either. A failing run prints its seed.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from random import Random

import pytest

from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import StorageError
from ottla.storage.log.log import Log
from tests.doubles.compactions import next_compaction
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.seeds import seeds
from tests.doubles.storage_logs import NOW_MS, NewRecord, batch_of, manager_on, records_in

SEEDS = seeds(20, 2933404341, 1400811593)
SETTINGS = {"segment_bytes": 900, "index_interval_bytes": 100, "retention_ms": -1}


def value_at(offset: int) -> bytes:
    return Random(offset).randbytes(offset % 60)


class Life:
    """A broker's storage through several power failures."""

    settings: Mapping[str, object] = SETTINGS

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.fs = MemoryFileSystem()
        self.durable = 0
        # The highest log end since the last flush: the removal of segments that were truncated
        # may be lost.
        self.written = 0
        self.manager, self.log = self.start()
        self.manager.checkpoint_all()

    def start(self) -> tuple[LogManager, Log]:
        manager = manager_on(self.fs, **self.settings)
        return manager, manager.get_or_create("t", 0, topic_id=b"i" * 16, now_ms=NOW_MS)

    def append(self) -> None:
        log = self.log
        for _ in range(self.random.randint(1, 8)):
            first = log.log_end_offset
            count = self.random.randint(1, 4)
            records = [
                (NOW_MS + o, b"%d" % o, value_at(o), []) for o in range(first, first + count)
            ]
            batch = batch_of(list(records), producer_id=5, producer_epoch=0, base_sequence=first)
            log.append(batch, leader_epoch=first // 50, now_ms=NOW_MS)
        log.update_high_watermark(log.log_end_offset)
        self.written = max(self.written, log.log_end_offset)

    def flush(self) -> None:
        flush = self.log.flusher.begin_flush()
        if flush is None:
            return
        if self.random.random() < 0.5:
            self.append()  # the loop continues while a worker syncs
        flush.run()
        self.log.flusher.finish_flush(flush, NOW_MS)
        self.durable = self.log.recovery_point
        self.written = self.log.log_end_offset
        if self.random.random() < 0.5:
            self.manager.checkpoint_all()

    def fail(self) -> None:
        """What was flushed is there. What was not may be missing between segments."""
        self.fs = self.fs.after_power_failure(self.random)
        self.manager, self.log = self.start()
        log = self.log
        assert self.durable <= log.log_end_offset <= self.written
        found = records_in(log)
        left = [r.offset for r in found]
        assert left == sorted(set(left))
        assert left[: self.durable] == list(range(self.durable))
        if len(left) < log.log_end_offset:
            assert log.offsets.missing_from in range(self.durable, log.log_end_offset)
        assert all(r.value == value_at(r.offset) for r in found)
        for epoch, start in log.leader_epochs.entries:
            assert start <= log.log_end_offset
            assert start // 50 == epoch
        if left:
            assert log.producer_state.producers[5].last_offset == left[-1]
        if log.offsets.missing_from is not None:
            # As a follower that fetches them again.
            log.truncator.truncate_to(log.offsets.missing_from)
            assert log.offsets.missing_from is None
        for offset in range(log.log_end_offset):
            segment = log.segments.floor(offset)
            assert segment is not None
            place = segment.find_batch(offset)
            assert place is not None
            assert place.base_offset <= offset <= place.last_offset

    def kill(self) -> None:
        """Of the process only: the next one has files that are not synced."""
        end = self.log.log_end_offset
        self.manager, self.log = self.start()
        assert self.log.log_end_offset == end

    def truncate(self) -> None:
        log = self.log
        log.offsets.high_watermark = 0
        log.truncator.truncate_to(self.random.randint(0, log.log_end_offset))
        log.update_high_watermark(log.log_end_offset)
        self.durable = min(self.durable, log.log_end_offset)

    def stop(self) -> None:
        self.manager.shutdown(NOW_MS)
        self.durable = self.log.log_end_offset
        self.fail()


class CompactedLife(Life):
    """The same with a compacted log: of each key the newest record has to be there."""

    settings: Mapping[str, object] = {
        **SETTINGS,
        "cleanup_policy": ("compact",),
        "min_cleanable_dirty_ratio": 0.0,
    }

    def __init__(self, seed: int) -> None:
        # The key at each offset, None where the record was lost.
        self.history: list[bytes | None] = []
        super().__init__(seed)

    def append(self) -> None:
        log = self.log
        for _ in range(self.random.randint(1, 8)):
            first = log.log_end_offset
            del self.history[first:]
            keys = [b"k%d" % self.random.randrange(8) for _ in range(self.random.randint(1, 4))]
            records: list[NewRecord] = [
                (NOW_MS, key, value_at(first + i), []) for i, key in enumerate(keys)
            ]
            log.append(batch_of(records), leader_epoch=0, now_ms=NOW_MS)
            self.history += keys
        log.update_high_watermark(log.log_end_offset)

    def compact(self) -> None:
        cleaner = Cleaner(self.manager.logs)
        compaction = next_compaction(cleaner, NOW_MS)
        if compaction is None:
            return
        compaction.run()
        if self.random.random() < 0.8:
            assert cleaner.finish(compaction, NOW_MS)
            self.check_keys()
        if self.random.random() < 0.5:
            compaction.sync()

    def fail(self) -> None:
        self.fs = self.fs.after_power_failure(self.random)
        self.manager, self.log = self.start()
        assert self.durable <= self.log.log_end_offset <= len(self.history)
        self.forget_lost()
        self.check_keys()

    def forget_lost(self) -> None:
        """What was not flushed may be missing between segments, as with Kafka.

        In a compacted log a gap there means nothing: a follower's has one where its leader
        compacted. Within a segment, or behind its last batch, it is found out.
        """
        left = {record.offset for record in records_in(self.log)}
        for offset in range(self.durable, self.log.log_end_offset):
            if offset not in left:
                self.history[offset] = None

    def check_keys(self) -> None:
        end = self.log.log_end_offset
        found = {record.key: record for record in records_in(self.log)}
        history = enumerate(self.history[:end])
        newest = {key: offset for offset, key in history if key is not None}
        assert {key: record.offset for key, record in found.items()} == newest
        assert all(record.value == value_at(record.offset) for record in found.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_power_failures_of_a_compacted_log(seed: int) -> None:
    print(f"OTTLA_TEST_SEED={seed}")
    life = CompactedLife(seed)
    for _ in range(40):
        (step,) = life.random.choices(
            ("append", "flush", "compact", "fail", "stop"), (10, 3, 4, 2, 1)
        )
        getattr(life, step)()
    life.fail()


@pytest.mark.parametrize("seed", SEEDS)
def test_power_failures(seed: int) -> None:
    print(f"OTTLA_TEST_SEED={seed}")
    life = Life(seed)
    for _ in range(40):
        (step,) = life.random.choices(
            ("append", "flush", "fail", "stop", "kill", "truncate"), (10, 4, 2, 1, 1, 1)
        )
        getattr(life, step)()
    life.fail()


@pytest.mark.parametrize("seed", SEEDS)
def test_failing_calls(seed: int) -> None:
    """Any call fails at any moment: an acknowledged append survives a kill."""
    print(f"OTTLA_TEST_SEED={seed}")
    random = Random(seed)
    fs = MemoryFileSystem()
    manager = manager_on(fs, **SETTINGS)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    operation = random.choice(("pwrite", "open", "sync", "replace", "truncate", "pread"))
    code = random.choice((errno.EIO, errno.ENOSPC, errno.EROFS))
    fs.fail(operation, code, after=random.randint(0, 60), times=random.choice((1, 3, 1000)))
    responded = 0
    for number in range(80):
        try:
            value = value_at(log.log_end_offset)
            log.append(batch_of([(NOW_MS, b"k", value, [])]), leader_epoch=0, now_ms=NOW_MS)
            responded = log.log_end_offset
            if number % 10 == 0:
                log.flusher.flush()
            log.log_directory.check_free_bytes(0)
            log.read(random.randrange(responded), 500, up_to=responded)
        except StorageError:
            log.log_directory.check_free_bytes(0)
    fs.heal()
    again = manager_on(fs.after_kill(), **SETTINGS).get("t", 0)
    assert again is not None
    # One append may have been written whole and then been refused: its index could not be.
    assert responded <= again.log_end_offset <= responded + 1
    found = records_in(again)
    assert [r.offset for r in found] == list(range(again.log_end_offset))
    assert all(r.value == value_at(r.offset) for r in found)
