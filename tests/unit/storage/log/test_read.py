"""Reads: bounds, whole batches, aborted transactions, timestamps."""

import errno
from collections.abc import Iterator
from itertools import product
from random import Random

import pytest

from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.steps import run_at_once
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import LogClosed, LogDirectoryOffline, OffsetOutOfRange
from ottla.storage.log.batch_times import BatchTimes, ReadBudgetExceeded, read_times
from ottla.storage.log.log import Log
from ottla.storage.log.segment import Segment
from ottla.storage.records.validation_budget import ValidationBudget
from tests.doubles.compactions import next_compaction
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.record_batches import iterate_batches
from tests.doubles.storage_logs import (
    NOW_MS,
    NewRecord,
    append,
    batch_of,
    end_transaction,
    manager_on,
    new_log,
    plain,
    records_in,
)


def filled(count: int = 10, **settings: object) -> Log:
    """Batches of two records each."""
    log = new_log(**{"segment_bytes": 700, "index_interval_bytes": 100, **settings})
    for number in range(count):
        append(log, plain(2, NOW_MS + number * 10))
    return log


def bases(log: Log, offset: int, max_bytes: int, **options: object) -> list[int]:
    """The base offsets of the batches in the slice."""
    values = {"up_to": log.log_end_offset, **options}
    info = log.read(offset, max_bytes, **values)  # type: ignore[arg-type]  # options of read
    if info.slice is None:
        return []
    content = info.slice.read()
    found = [header.base_offset for _, header in iterate_batches(content, allow_partial=False)]
    assert info.first_batch_base_offset == found[0]
    return found


def test_a_slice_begins_with_the_batch_that_holds_the_offset() -> None:
    log = filled()
    assert bases(log, 0, 1 << 20)[0] == 0
    assert bases(log, 5, 1 << 20)[0] == 4


def test_a_slice_ends_with_its_segment_and_the_next_follows() -> None:
    log = filled()
    assert len(log.segments) > 1
    second = log.segments.base_offsets[1]
    assert bases(log, 0, 1 << 20)[-1] == second - 2
    assert bases(log, second, 1 << 20)[0] == second


def test_the_limit_ends_with_a_whole_batch() -> None:
    log = filled(segment_bytes=1 << 20)
    size = log.local.size_in_bytes // 10
    assert bases(log, 0, 3 * size) == [0, 2, 4]
    assert bases(log, 0, 3 * size + 1) == [0, 2, 4]
    assert bases(log, 0, 4 * size - 1) == [0, 2, 4]
    assert bases(log, 7, 2 * size) == [6, 8]


def test_the_first_batch_comes_whole_if_asked() -> None:
    log = filled()
    assert bases(log, 0, 1) == [0]
    assert bases(log, 0, 0) == [0]
    assert bases(log, 0, 1, min_one_batch=False) == []


@pytest.mark.parametrize("up_to", [0, 1, 2, 3, 4, 7, 8])
def test_nothing_at_or_above_the_bound_is_given(up_to: int) -> None:
    log = filled(segment_bytes=1 << 20)
    whole = up_to - up_to % 2
    assert bases(log, 0, 1 << 20, up_to=up_to) == list(range(0, whole, 2))


def test_offsets_outside_are_refused_and_the_end_is_empty() -> None:
    log = filled()
    info = log.read(20, 100, up_to=20)
    assert info.slice is None
    assert "slice=None" in repr(info)
    for offset in (-1, 21):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read(offset, 100, up_to=20)
        assert caught.value.log_end_offset == 20


def test_a_slice_outlives_retention() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_bytes=700, retention_ms=0)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for _ in range(10):
        append(log, 2)
    info = log.read(0, 1 << 20, up_to=20)
    assert info.slice is not None
    before = info.slice.read()
    run_at_once(manager.cleanup(NOW_MS + 1_000_000))
    manager.purge(NOW_MS + 2_000_000)
    assert log.log_start_offset == 20
    assert info.slice.read() == before


def test_aborted_transactions_are_listed_by_their_first_offset() -> None:
    log = new_log(segment_bytes=400, index_interval_bytes=0)

    def write(producer_id: int, sequence: int) -> None:
        append(
            log, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
            transactional=True,
        )  # fmt: skip

    write(1, 0)  # 0
    write(2, 0)  # 1
    append(log)  # 2
    write(1, 1)  # 3
    end_transaction(log, 2, committed=False)  # 4
    end_transaction(log, 1, committed=False)  # 5
    write(3, 0)  # 6
    end_transaction(log, 3, committed=True)  # 7
    write(2, 1)  # 8
    end_transaction(log, 2, committed=False)  # 9
    write(4, 0)  # 10, open
    assert log.last_stable_offset == 10
    assert len(log.segments) > 2

    def aborted(offset: int) -> list[tuple[int, int]]:
        return log.read(
            offset, 1 << 20, up_to=log.last_stable_offset, read_committed=True
        ).aborted_transactions

    assert aborted(0) == [(1, 0), (2, 1)]
    assert aborted(6) == []
    assert aborted(8) == [(2, 8)]
    assert log.read(0, 1 << 20, up_to=10).aborted_transactions == []


def test_offsets_by_timestamp() -> None:
    log = filled()
    assert log.offset_for_timestamp(0) == (NOW_MS, 0, 0)
    assert log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 1, 1, 0)
    assert log.offset_for_timestamp(NOW_MS + 2) == (NOW_MS + 10, 2, 0)
    assert log.offset_for_timestamp(NOW_MS + 91) == (NOW_MS + 91, 19, 0)
    assert log.offset_for_timestamp(NOW_MS + 92) is None
    assert log.max_timestamp_offset() == (NOW_MS + 91, 19, 0)
    log.truncator.delete_records_before(5)
    assert log.offset_for_timestamp(0) == (NOW_MS + 21, 5, 0)


def test_timestamps_out_of_order_give_the_first_in_offset_order() -> None:
    log = new_log(index_interval_bytes=0)
    for timestamp in (50, 10, 90, 30, 90, 20):
        append(log, [(timestamp, None, b"", [])])
    assert log.offset_for_timestamp(20) == (50, 0, 0)
    assert log.offset_for_timestamp(60) == (90, 2, 0)
    assert log.max_timestamp_offset() == (90, 2, 0)
    log.truncator.delete_records_before(3)
    assert log.max_timestamp_offset() == (90, 4, 0)
    log.truncator.delete_records_before(5)
    assert log.max_timestamp_offset() == (20, 5, 0)
    assert log.offset_for_timestamp(21) is None


def test_the_newest_record_may_be_in_the_batch_where_the_log_begins() -> None:
    log = new_log()
    append(log, [(90, None, b"", []), (50, None, b"", [])])
    append(log, [(40, None, b"", [])])
    log.truncator.delete_records_before(1)
    assert log.max_timestamp_offset() == (50, 1, 0)


def test_the_newest_record_is_found_by_the_index_also_where_the_log_begins() -> None:
    """Reading a segment of 185 MB in batches of 1 KB took a second."""
    fs = MemoryFileSystem()
    log = new_log(fs)
    for number in range(200):
        append(log, [(NOW_MS + number, None, bytes(5000), [])])
    log.truncator.delete_records_before(10)
    fs.calls.clear()
    assert log.max_timestamp_offset() == (NOW_MS + 199, 199, 0)
    assert sum(operation == "pread" for operation, _ in fs.calls) < 20


def test_an_empty_log_has_no_timestamps() -> None:
    log = new_log()
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None
    append(log, [(-1, None, b"", [])])
    assert log.max_timestamp_offset() is None


def test_whole_batches_for_loading() -> None:
    log = filled()
    found = [next(iterate_batches(bytes(b)))[1].base_offset for b in log.batches(5, 11)]
    assert found == [4, 6, 8, 10]
    assert len(list(log.batches(0))) == 10
    assert list(log.batches(20)) == []


def test_damage_in_the_log_is_an_error_not_a_guess() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, index_interval_bytes=100)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(10):
        append(log, plain(2, NOW_MS + number * 10))
    path = log.local.active.log.path
    fs.overwrite(path, fs.content(path)[:150] + bytes(300) + fs.content(path)[450:])
    log.local.active.offset_index.reset()
    for attempt in (
        lambda: log.read(5, 100, up_to=20),
        lambda: list(log.batches(0)),
        lambda: log.offset_for_timestamp(NOW_MS + 50),
    ):
        with pytest.raises(CorruptRecordError):
            attempt()


def test_a_failing_disk_goes_offline() -> None:
    fs = MemoryFileSystem()
    log = manager_on(fs).get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 2)
    append(log, 2)
    fs.fail("pread", errno.EIO)
    with pytest.raises(LogDirectoryOffline):
        log.read(1, 100, up_to=2)
    assert log.log_directory.is_offline


def test_the_batch_that_was_just_written_needs_no_read() -> None:
    fs = MemoryFileSystem()
    log = manager_on(fs).get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 2)
    append(log, 2)
    fs.fail("pread", errno.EIO)
    info = log.read(3, 1, up_to=4)
    assert info.slice is not None
    assert info.first_batch_base_offset == 2
    assert info.slice.position + info.slice.length == log.local.active.size


@pytest.mark.parametrize("seed", range(4))
def test_the_last_batch_is_found_by_memory_as_by_its_header(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    log = new_log(segment_bytes=900, index_interval_bytes=200)

    def reads() -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        end = log.log_end_offset
        for offset in range(max(0, end - 12), end + 1):
            for max_bytes, minimum, up_to in product((1, 1_000), (True, False), (end, end - 1)):
                info = log.read(offset, max_bytes, up_to=up_to, min_one_batch=minimum)
                place = info.slice and (info.slice.position, info.slice.length)
                found.append((offset, place, info.first_batch_base_offset))
        return found

    for _ in range(60):
        change = random.random()
        if change < 0.1:
            log.truncator.truncate_to(max(0, log.log_end_offset - random.randint(1, 9)))
        elif change < 0.2:
            log.roll(NOW_MS)
        else:
            base, batches = log.log_end_offset + random.choice((0, 0, 0, 3)), bytearray()
            for _ in range(random.choice((1, 1, 1, 2))):
                count = random.randint(1, 4)
                batches += batch_of(count, base_offset=base)
                base += count
            log.append_as_follower(batches, now_ms=NOW_MS)
        known = reads()
        with monkeypatch.context() as patch:
            patch.setattr(Segment, "find_last_batch", lambda *_: None)
            assert known == reads()


def test_a_deleted_log_is_closed_not_offline() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 2)
    manager.delete_async("t", 0)
    manager.purge(NOW_MS * 2)
    with pytest.raises(LogClosed):
        log.read(0, 100, up_to=2)
    assert not log.log_directory.is_offline


def test_a_timestamp_that_is_left_in_a_header_only_is_not_found() -> None:
    manager = manager_on(
        MemoryFileSystem(), cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0
    )
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for timestamp, producer_id in ((90, -1), (100, 7), (50, -1), (90, -1)):
        key = b"b" if timestamp == 90 else b"a"
        records: list[NewRecord] = [(timestamp, key, b"v", [])]
        idempotent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        append(log, records, **(idempotent if producer_id == 7 else {}))
    log.roll(NOW_MS)
    log.flusher.flush()
    cleaner = Cleaner(manager.logs)
    compaction = next_compaction(cleaner, NOW_MS)
    assert compaction is not None
    compaction.run()
    assert cleaner.finish(compaction, NOW_MS)
    assert log.segments.first.newest()[0] == 100
    assert log.max_timestamp_offset() == (90, 3, 0)
    assert log.offset_for_timestamp(95) is None
    assert log.offset_for_timestamp(90) == (90, 3, 0)


def test_a_search_gives_up_where_its_budget_ends_and_continues_with_what_is_known() -> None:
    log = new_log()
    append(log, [(NOW_MS + number % 7, b"k", b"v", []) for number in range(6_000)], codec=3)
    append(log, [(NOW_MS + 9, b"k", b"v", [])])
    times = BatchTimes(ValidationBudget())
    with pytest.raises(ReadBudgetExceeded) as needed:
        log.offset_for_timestamp(NOW_MS + 6, times)
    times.add(needed.value.key, read_times(needed.value.content))
    assert log.offset_for_timestamp(NOW_MS + 6, times) == (NOW_MS + 6, 6, 0)
    assert log.offset_for_timestamp(NOW_MS + 9, BatchTimes(ValidationBudget())) == (
        NOW_MS + 9,
        6_000,
        0,
    )


def paused(*, at: int = 1, **settings: object) -> tuple[LogManager, Log, Iterator[memoryview]]:
    """A log with two records and a key in each segment, read up to its batch number `at`."""
    manager = manager_on(MemoryFileSystem(), segment_bytes=200, **settings)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(12):
        append(log, [(NOW_MS + number, b"k%d" % (number % 3), bytes(10), [])])
    log.flusher.flush()
    assert len(log.segments) > 4
    batches = log.batches(0)
    for _ in range(at):
        next(batches)
    return manager, log, batches


def offsets_of(batches: Iterator[memoryview]) -> list[int]:
    return [next(iterate_batches(bytes(b)))[1].base_offset for b in batches]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_batches_go_on_after_retention_has_deleted_their_segments(at: int) -> None:
    manager, log, batches = paused(at=at)
    log.truncator.delete_records_before(8)
    assert run_at_once(manager.cleanup(NOW_MS)) > 3
    assert manager.purge(NOW_MS + 10**9) > 0
    found = offsets_of(batches)
    assert found[-4:] == [8, 9, 10, 11]
    assert found == sorted(set(found))
    assert manager.offline_directories == []


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_batches_go_on_after_compaction_has_merged_their_segments(at: int) -> None:
    manager, log, batches = paused(at=at, cleanup_policy=("compact",))
    cleaner = Cleaner(manager.logs)
    log.update_config(log.config.replace(segment_bytes=10_000, min_cleanable_dirty_ratio=0.0))
    segments = len(log.segments)
    compaction = next_compaction(cleaner, NOW_MS)
    assert compaction is not None
    compaction.run()
    assert cleaner.finish(compaction, NOW_MS)
    assert len(log.segments) < segments
    assert manager.purge(NOW_MS + 10**9) > 0
    kept = {record.offset for record in records_in(log)}
    found = offsets_of(batches)
    assert kept - set(range(at)) <= set(found), "the newest record of each key is there"
    assert found == sorted(set(found))
    assert manager.offline_directories == []


def test_batches_end_with_an_error_when_the_log_is_truncated() -> None:
    manager, log, batches = paused()
    log.truncator.truncate_to(1)
    with pytest.raises(OffsetOutOfRange):
        next(batches)
    assert manager.offline_directories == []
