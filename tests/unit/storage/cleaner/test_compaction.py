"""One compaction: grouping, committing, cancelling, crashing."""

import errno
from random import Random

import pytest

from ottla.protocol.steps import run_at_once
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.cleaner.compaction import Compaction, CompactionCancelled, finish_swap
from ottla.storage.cleaner.offset_map import BYTES_PER_KEY
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import LogDirectoryOffline
from ottla.storage.log.log import Log
from tests.doubles.compactions import next_compaction
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, NewRecord, append, fetched, manager_on, records_in

SETTINGS = {
    "cleanup_policy": ("compact",),
    "segment_bytes": 600,
    "index_interval_bytes": 100,
    "min_cleanable_dirty_ratio": 0.0,
}


def started(fs: MemoryFileSystem, **settings: object) -> tuple[LogManager, Log]:
    manager = manager_on(fs, **{**SETTINGS, **settings})
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    return manager, log


def fill(log: Log, count: int = 60, keys: int = 7, seed: int = 1) -> None:
    random = Random(seed)
    for number in range(count):
        record: NewRecord = (
            NOW_MS + number, b"key-%d" % random.randrange(keys), b"%d" % number, [],
        )  # fmt: skip
        append(log, [record])


def newest(log: Log) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records_in(log)}


def compaction_of(log: Log, memory: int = 1 << 20, **options: object) -> Compaction:
    values = {"first_dirty_offset": 0, "uncleanable_offset": log.local.active.base_offset}
    return Compaction(log, **{**values, **options}, memory_bytes=memory, now_ms=NOW_MS)  # type: ignore[arg-type]  # as given


def test_the_newest_record_of_each_key_stays() -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log)
    before, end = newest(log), log.log_end_offset
    offsets = {record.offset: record for record in records_in(log)}
    compaction = compaction_of(log)
    compaction.run()
    assert compaction.error is None
    assert compaction.commit(NOW_MS)
    compaction.sync()
    assert newest(log) == before
    assert log.log_end_offset == end
    assert all(offsets[record.offset] == record for record in records_in(log))
    closed = [r.key for r in records_in(log) if r.offset < log.local.active.base_offset]
    assert len(closed) == len(set(closed)) == 7
    assert fetched(log, max_bytes=100) == records_in(log)
    assert compaction.stats.bytes_written < compaction.stats.bytes_read
    assert "keys=7" in repr(compaction.stats)


def test_small_segments_become_one() -> None:
    _, log = started(MemoryFileSystem())
    fill(log)
    before = len(log.segments)
    compaction = compaction_of(log)
    compaction.run()
    compaction.commit(NOW_MS)
    assert before > 5
    again = compaction_of(log)
    again.run()
    again.commit(NOW_MS)
    assert len(log.segments) == 2
    assert log.segments.base_offsets[0] == 0


def test_a_group_is_no_larger_than_a_segment() -> None:
    _, log = started(MemoryFileSystem(), segment_index_bytes=40)
    fill(log, keys=1000)
    compaction = compaction_of(log)
    groups = compaction._sources
    compaction._map.latest_offset = 10**6
    for group in compaction._groups():
        assert sum(source.size for source in group) <= 600
        assert sum(source.index_bytes for source in group) <= 40
    assert sum(map(len, compaction._groups())) == len(groups)


def test_appends_and_rolls_go_on_meanwhile() -> None:
    _, log = started(MemoryFileSystem())
    fill(log, 30)
    compaction = compaction_of(log)
    fill(log, 30, seed=2)
    compaction.run()
    fill(log, 30, seed=3)
    before = newest(log)
    assert compaction.commit(NOW_MS)
    assert newest(log) == before
    assert log.log_end_offset == 90


def test_files_are_synced_before_they_are_put_in_place() -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log)
    log.flusher.flush()
    before = newest(log)
    compaction = compaction_of(log)
    compaction.run()
    compaction.commit(NOW_MS)
    compaction.sync()
    again = manager_on(fs.after_power_failure(), **SETTINGS).get("t", 0)
    assert again is not None
    assert newest(again) == before


@pytest.mark.parametrize("step", range(60))
def test_a_crash_at_any_step_loses_nothing(step: int) -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log, 40)
    before = newest(log)
    compaction = compaction_of(log)
    compaction.run()
    for operation in ("replace", "open"):
        fs.fail(operation, errno.EIO, after=step, times=1000)
    try:
        compaction.commit(NOW_MS)
    except Exception:
        pass
    else:
        fs.heal()
    fs.heal()
    again = manager_on(fs.after_kill(), **SETTINGS).get("t", 0)
    assert again is not None
    assert newest(again) == before
    assert again.log_end_offset == 40
    left = again.log_directory.fs.list_files(again.path)
    assert not [path for path in left if path.endswith((".swap", ".cleaned"))]


@pytest.mark.parametrize("step", range(9))
def test_no_space_for_a_name_is_no_failure_of_the_disk(
    step: int, caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log, 90, keys=40)
    before = newest(log)
    compaction = compaction_of(log)
    compaction.run()
    assert len([path for path in fs.paths() if path.endswith(".log.cleaned")]) >= 3
    fs.fail("replace", errno.ENOSPC, path_part=".cleaned", after=step)
    assert not compaction.commit(NOW_MS)
    assert isinstance(compaction.error, OSError)
    assert "Compaction is retried later" in caplog.text
    assert log.log_directory.append_error is None
    assert newest(log) == before
    assert not [path for path in fs.paths() if path.endswith((".swap", ".cleaned"))]
    append(log, [(NOW_MS, b"key-0", b"last", [])])
    again = manager_on(fs.after_kill(), **SETTINGS).get("t", 0)
    assert again is not None
    assert newest(again) == {**before, b"key-0": b"last"}
    retried = compaction_of(log)
    retried.run()
    assert retried.commit(NOW_MS)
    assert newest(log) == {**before, b"key-0": b"last"}


@pytest.mark.parametrize("step", range(9))
@pytest.mark.parametrize("truncated", [False, True])
def test_no_space_for_the_last_name_is_no_failure_of_the_disk(step: int, truncated: bool) -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    cleaner = Cleaner(manager.logs)
    fill(log, 90, keys=40)
    log.flusher.flush()
    before = newest(log)
    compaction = next_compaction(cleaner, NOW_MS)
    assert compaction is not None
    compaction.run()
    fs.fail("replace", errno.ENOSPC, path_part=".swap", after=step, times=1000)
    assert not cleaner.finish(compaction, NOW_MS)
    assert compaction.has_replaced
    compaction.sync()
    assert isinstance(compaction.error, OSError)
    assert log.log_directory.append_error is None
    assert newest(log) == before
    assert [path for path in fs.paths() if path.endswith(".swap")]
    assert not [path for path in fs.paths() if path.endswith(".cleaned")]
    assert next_compaction(cleaner, NOW_MS) is None  # its files would look like the other's
    if truncated:
        log.truncator.truncate_to(2)
        before = newest(log)
        append(log, [(NOW_MS, b"key-0", b"last", [])])
        before[b"key-0"] = b"last"
    again = manager_on(fs.after_kill(), **SETTINGS).get("t", 0)
    assert again is not None
    assert newest(again) == before
    assert again.log_end_offset == log.log_end_offset
    fs.heal()
    if truncated:
        assert finish_swap(log) is None
    else:
        retried = next_compaction(cleaner, NOW_MS)
        assert retried is not None
        retried.run()
        # Also if only some of the new names were durable before its files: none is lost.
        for crashed in (fs.after_kill(), fs.after_power_failure()):
            again = manager_on(crashed, **SETTINGS).get("t", 0)
            assert again is not None
            assert newest(again) == before
        assert cleaner.finish(retried, NOW_MS)
    assert not [path for path in fs.paths() if path.endswith(".swap")]
    assert newest(log) == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_log_is_not_compacted_again_before_the_new_names_are_synced(fails: bool) -> None:
    """With two threads the second would begin while the first syncs."""
    fs = MemoryFileSystem()
    manager, log = started(fs)
    cleaner = Cleaner(manager.logs)
    fill(log)
    log.flusher.flush()
    compaction = next_compaction(cleaner, NOW_MS)
    assert compaction is not None
    compaction.run()
    assert cleaner.finish(compaction, NOW_MS)
    fill(log)
    log.flusher.flush()
    assert next_compaction(cleaner, NOW_MS) is None
    if fails:
        fs.fail("sync_directory", errno.EMFILE, times=2)
        compaction.sync()
        assert next_compaction(cleaner, NOW_MS) is None
    else:
        compaction.sync()
    synced = fs.calls.count(("sync_directory", log.path))
    assert next_compaction(cleaner, NOW_MS) is not None
    assert fs.calls.count(("sync_directory", log.path)) - synced == (1 if fails else 0)


def test_names_that_cannot_be_synced_take_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    cleaner = Cleaner(manager.logs)
    fill(log)
    compaction = compaction_of(log)
    compaction.run()
    fs.fail("replace", errno.ENOSPC, path_part=".swap")
    assert not compaction.commit(NOW_MS)
    fs.heal()
    fs.fail("sync_directory", errno.EIO)
    assert next_compaction(cleaner, NOW_MS) is None
    assert log.log_directory.is_offline


def test_a_failure_of_the_disk_at_the_last_name_takes_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    cleaner = Cleaner(manager.logs)
    fill(log)
    compaction = compaction_of(log)
    compaction.run()
    fs.fail("replace", errno.ENOSPC, path_part=".swap")
    assert not compaction.commit(NOW_MS)
    fs.fail("replace", errno.EIO, path_part=".swap")
    assert next_compaction(cleaner, NOW_MS) is None
    assert log.log_directory.is_offline
    assert cleaner.uncleanable == {}


def test_a_swap_file_that_cannot_be_removed_takes_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log)
    compaction = compaction_of(log)
    compaction.run()
    fs.fail("replace", errno.ENOSPC, path_part=".index.cleaned")
    fs.fail("remove", errno.EIO, path_part=".log.swap")
    with pytest.raises(LogDirectoryOffline):
        compaction.commit(NOW_MS)
    assert log.log_directory.is_offline


def test_a_crash_before_the_commit_leaves_nothing_behind() -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log)
    before = records_in(log)
    compaction_of(log).run()
    assert any(path.endswith(".cleaned") for path in fs.paths())
    again = manager_on(fs.after_kill(), **SETTINGS).get("t", 0)
    assert again is not None
    assert records_in(again) == before
    left = again.log_directory.fs.list_files(again.path)
    assert not any(path.endswith(".cleaned") for path in left)


def test_a_truncation_in_between_makes_it_worthless() -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log)
    compaction = compaction_of(log)
    compaction.run()
    log.truncator.truncate_to(50)
    before = records_in(log)
    assert not compaction.commit(NOW_MS)
    assert records_in(log) == before
    assert not any(path.endswith(".cleaned") for path in fs.paths())


def test_retention_in_between_leaves_out_what_is_gone() -> None:
    _, log = started(MemoryFileSystem())
    fill(log)
    compaction = compaction_of(log)
    compaction.run()
    log.truncator.delete_records_before(log.segments.base_offsets[2])
    run_at_once(log.retention.delete_old_segments(NOW_MS))
    before = newest(log)
    assert compaction.commit(NOW_MS)
    assert newest(log) == before
    assert log.segments.base_offsets[0] == log.log_start_offset


def test_a_closed_log_is_left_alone() -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    fill(log)
    compaction = compaction_of(log)
    compaction.run()
    manager.delete_async("t", 0)
    assert not compaction.commit(NOW_MS)


def test_cancelling() -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log)
    compaction = compaction_of(log)
    compaction.cancel()
    compaction.run()
    assert isinstance(compaction.error, CompactionCancelled)
    assert not compaction.commit(NOW_MS)
    assert not any(path.endswith(".cleaned") for path in fs.paths())


def test_too_many_keys_are_compacted_in_several_runs() -> None:
    manager, log = started(MemoryFileSystem(), segment_bytes=2000)
    fill(log, 200, keys=60)
    log.flusher.flush()
    before = newest(log)
    cleaner = Cleaner(manager.logs, memory_bytes=20 * BYTES_PER_KEY)
    ends = []
    while (compaction := next_compaction(cleaner, NOW_MS)) is not None:
        compaction.run()
        assert compaction.error is None
        assert cleaner.finish(compaction, NOW_MS)
        compaction.sync()
        ends.append(compaction.end_offset)
        assert newest(log) == before
    assert len(ends) > 2
    assert ends == sorted(set(ends))
    assert ends[-1] == log.local.active.base_offset


def test_the_throttle_gets_every_byte() -> None:
    _, log = started(MemoryFileSystem())
    fill(log)
    reported: list[int] = []
    compaction = compaction_of(log, throttle=reported.append)
    compaction.run()
    stats = compaction.stats
    assert sum(reported) == stats.map_bytes_read + stats.bytes_read + stats.bytes_written


def test_snapshots_of_segments_that_are_gone_go_too() -> None:
    _, log = started(MemoryFileSystem())
    for number in range(40):
        append(
            log, [(NOW_MS, b"k", b"%d" % number, [])], producer_id=7, producer_epoch=0,
            base_sequence=number,
        )  # fmt: skip
    compaction = compaction_of(log)
    compaction.run()
    compaction.commit(NOW_MS)
    assert set(log.producer_state.snapshots) <= set(log.segments.base_offsets)
    assert log.local.active.base_offset in log.producer_state.snapshots
