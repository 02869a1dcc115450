"""Cutting the end off a log."""

import errno

import pytest

from ottla.protocol.steps import run_at_once
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import DiskFull, LogDirectoryOffline, ResourceExhausted
from ottla.storage.log.log import Log
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


def test_everything_from_the_offset_on_goes() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=300)
    for epoch in range(10):
        log.append(batch_of(2), leader_epoch=epoch, now_ms=NOW_MS)
    log.update_high_watermark(20)
    assert log.truncator.truncate_to(6)
    assert (log.log_end_offset, log.high_watermark) == (6, 6)
    assert [r.offset for r in fetched(log)] == list(range(6))
    assert log.leader_epochs.entries == [(0, 0), (1, 2), (2, 4)]
    info = log.append(batch_of(1), leader_epoch=20, now_ms=NOW_MS)
    assert info.first_offset == 6
    assert log.leader_epochs.entries[-1] == (20, 6)
    assert any(path.endswith(".deleted") for path in fs.paths())


def test_a_batch_that_holds_the_offset_goes_as_a_whole() -> None:
    log = new_log()
    append(log, 3)
    append(log, 3)
    assert log.truncator.truncate_to(4)
    assert log.log_end_offset == 3


def test_an_offset_at_or_above_the_end_changes_nothing() -> None:
    log = new_log()
    append(log, 3)
    log.leader_epochs.assign(4, 3)  # became leader and has not written yet
    assert not log.truncator.truncate_to(3)
    assert log.log_end_offset == 3
    assert log.leader_epochs.entries == [(0, 0)]
    with pytest.raises(ValueError, match="-1"):
        log.truncator.truncate_to(-1)


def test_an_offset_below_the_log_empties_it() -> None:
    log = new_log()
    log.truncator.truncate_fully_and_start_at(100)
    append(log, 3)
    assert log.truncator.truncate_to(40)
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    assert append(log).first_offset == 40


def test_full_truncation_restarts() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=300)
    for number in range(10):
        append(log, producer_id=7, producer_epoch=0, base_sequence=number)
    log.truncator.truncate_fully_and_start_at(5)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (5, 5, 5)
    assert log.segments.base_offsets == [5]
    assert log.producer_state.producers == {}
    assert log.producer_state.snapshots == []
    assert len(log.leader_epochs) == 0
    assert append(log).first_offset == 5


def test_producers_and_transactions_go_back_too() -> None:
    log = new_log(segment_bytes=500)
    for number in range(4):
        append(log, producer_id=7, producer_epoch=0, base_sequence=number, transactional=True)
    end_transaction(log, 7, committed=False)
    append(log, 3)
    log.offsets.high_watermark = 3
    log.truncator.truncate_to(3)
    assert log.producer_state.open_transactions() == {0: 7}
    assert log.last_stable_offset == 0
    assert log.producer_state.producers[7].last_sequence == 2
    assert [e for s in log.segments for e in s.txn_index.entries()] == []
    append(log, producer_id=7, producer_epoch=0, base_sequence=3, transactional=True)


def test_a_failing_disk_goes_offline() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, 3)
    fs.fail("truncate", errno.EIO)
    with pytest.raises(LogDirectoryOffline):
        log.truncator.truncate_to(0)


def preads(fs: MemoryFileSystem) -> int:
    return sum(operation == "pread" for operation, _ in fs.calls)


def test_nothing_is_replayed_when_there_are_no_producers() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    for _ in range(200):
        append(log, [(NOW_MS, None, bytes(20_000), [])])
    fs.calls.clear()
    log.truncator.truncate_to(199)
    assert preads(fs) < 10
    assert not log.producer_state.producers
    append(log, producer_id=7, producer_epoch=0, base_sequence=0)
    log.truncator.truncate_to(150)
    assert not log.producer_state.producers, "as there are producers, the batches count"
    assert log.producer_state.end_offset == 150


def producing(fs: MemoryFileSystem, **settings: object) -> tuple[LogManager, Log]:
    """Batches of producers and transactions, ended and not, in several segments."""
    manager = manager_on(fs, **{"segment_bytes": 3000, "index_interval_bytes": 200, **settings})
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for sequence in range(40):
        append(log, producer_id=sequence % 3, producer_epoch=0, base_sequence=sequence // 3)
        if sequence % 5 == 0:
            producer_id = 10 + sequence
            append(
                log,
                2,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            if sequence % 10 == 0:
                end_transaction(log, producer_id, committed=sequence % 20 == 0)
    log.offsets.high_watermark = 0
    return manager, log


def producers_of(log: Log) -> tuple[object, ...]:
    state = log.producer_state
    entries = {
        each.producer_id: (each.epoch, list(each.batches), each.transaction_first_offset)
        for each in state.producers.values()
    }
    return entries, state.open_transactions(), state.snapshots, state.end_offset, log.log_end_offset


@pytest.mark.parametrize("offset", range(0, 56, 5))
def test_a_prepared_truncation_leaves_the_same_producers(offset: int) -> None:
    _, plain_log = producing(MemoryFileSystem())
    plain_log.truncator.truncate_to(offset)
    _, log = producing(MemoryFileSystem())
    before = producers_of(log)
    for _ in log.truncator.prepare(offset):
        assert producers_of(log) == before, "the log can be used between the steps"
    log.truncator.truncate_to(offset)
    ours, plain_ones = producers_of(log), producers_of(plain_log)
    # The plain one has the last five batches of a producer since the snapshot, as the prepared one.
    assert ours == plain_ones
    assert log.last_stable_offset == plain_log.last_stable_offset


def test_a_prepared_truncation_replays_in_steps() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    for sequence in range(300):
        append(
            log,
            [(NOW_MS, None, bytes(50_000), [])],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
    fs.calls.clear()
    steps = 0
    for _ in log.truncator.prepare(299):
        steps += 1
        assert preads(fs) <= 8 * steps
    assert steps >= 3, "four MiB each"
    fs.calls.clear()
    log.truncator.truncate_to(299)
    assert preads(fs) < 10
    assert log.producer_state.producers[7].last_sequence == 298


@pytest.mark.parametrize("after", range(0, 24, 3))
def test_what_happens_between_the_steps_counts(after: int) -> None:
    def retention(manager: LogManager, log: Log) -> None:
        log.update_high_watermark(30)
        log.truncator.delete_records_before(20)
        run_at_once(manager.cleanup(NOW_MS))
        manager.purge(NOW_MS + 10**9)

    def truncation(_: LogManager, log: Log) -> None:
        log.truncator.truncate_to(35)
        append(log, producer_id=77, producer_epoch=0, base_sequence=0)
        for sequence in range(20):
            append(log, producer_id=78, producer_epoch=0, base_sequence=sequence)
        log.offsets.high_watermark = 0

    def appends(_: LogManager, log: Log) -> None:
        append(log, producer_id=79, producer_epoch=0, base_sequence=0)
        log.offsets.high_watermark = 0

    for event in (retention, truncation, appends):
        # Without snapshots the whole log is replayed.
        results = []
        for is_prepared in (True, False):
            manager, log = producing(MemoryFileSystem())
            for snapshot in log.producer_state.snapshots:
                log.producer_state.delete_snapshot(snapshot)
            steps = log.truncator.prepare(45)
            if is_prepared:
                for _ in zip(range(after), steps, strict=False):
                    pass
            event(manager, log)
            if is_prepared:
                for _ in steps:
                    pass
            log.truncator.truncate_to(45)
            assert manager.offline_directories == []
            entries, transactions, _, end, log_end = producers_of(log)
            if event is retention:
                # What was replayed before the log start moved may count, as without a truncation.
                assert not {
                    first for first in log.producer_state.open_transactions() if first >= 45
                }
                results.append((end, log_end))
            else:
                results.append((entries, transactions, end, log_end))
        assert results[0] == results[1]


def test_a_log_in_an_offline_directory_is_not_truncated() -> None:
    log = new_log()
    append(log, 3)
    append(log, 3)
    log.log_directory.fail(OSError(5, "broken"))
    for work in (
        lambda: list(log.truncator.prepare(3)),
        lambda: log.truncator.truncate_to(3),
        lambda: log.truncator.truncate_to(6),
        lambda: log.truncator.truncate_fully_and_start_at(3),
    ):
        with pytest.raises(LogDirectoryOffline):
            work()
    assert log.log_end_offset == 6


def test_where_nothing_is_truncated_nothing_is_replayed() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    log.truncator.truncate_fully_and_start_at(100)
    append(log, 3, producer_id=7, producer_epoch=0, base_sequence=0)
    fs.calls.clear()
    for offset in (40, log.log_end_offset, log.log_end_offset + 1):
        assert list(log.truncator.prepare(offset)) == []
    assert preads(fs) == 0


def test_a_batch_that_is_removed_because_it_holds_the_offset_is_not_replayed() -> None:
    log = new_log()
    append(log, 3, producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, 3, producer_id=7, producer_epoch=0, base_sequence=3)
    log.truncator.truncate_to(4)
    assert log.producer_state.producers[7].last_sequence == 2


def test_a_preparation_for_another_offset_is_not_used() -> None:
    log = new_log()
    append(log, 3, producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, 3)
    assert list(log.truncator.prepare(3)) == [None]
    run_at_once(log.producer_state.remove_expired(NOW_MS * 2))
    log.truncator.truncate_to(2)
    assert log.producer_state.is_empty


def test_an_offset_in_a_gap_between_segments() -> None:
    """Compaction on the leader leaves gaps."""
    log = new_log()
    fields = {"producer_id": 7, "producer_epoch": 0}
    log.append_as_follower(batch_of(3, base_sequence=0, **fields), now_ms=NOW_MS)
    log.roll(NOW_MS)
    content = batch_of(2, base_offset=20, base_sequence=3, **fields)
    log.append_as_follower(content, now_ms=NOW_MS)
    assert log.truncator.truncate_to(10)
    assert log.log_end_offset == log.producer_state.end_offset == 3
    assert log.producer_state.producers[7].last_sequence == 2


def test_a_segment_that_begins_at_the_offset_becomes_the_active_one() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 3)
    log.roll(NOW_MS)
    append(log, 3)
    log.roll(NOW_MS)
    append(log, 3)
    log.truncator.truncate_to(3)
    assert log.segments.base_offsets == [0, 3]
    assert log.local.active is log.segments.active
    assert any(path.endswith(".deleted") for path in fs.paths())
    manager.purge(0)
    assert not any(path.endswith(".deleted") for path in fs.paths()), (
        "they are not kept for a while"
    )
    log.truncator.truncate_fully_and_start_at(3)
    manager.purge(0)
    assert not any(path.endswith(".deleted") for path in fs.paths())


def test_a_snapshot_above_the_end_is_deleted() -> None:
    """Otherwise recovery would load it when the log has grown beyond it again."""
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 3, producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, 3, producer_id=8, producer_epoch=0, base_sequence=0)
    manager.shutdown(NOW_MS)
    manager = manager_on(fs)
    again = manager.get("t", 0)
    assert again is not None
    assert again.producer_state.snapshots == [6]
    again.truncator.truncate_to(3)
    assert again.producer_state.snapshots == []
    assert not any(path.endswith(".snapshot") for path in fs.paths())
    again.roll(NOW_MS)
    assert again.producer_state.snapshots == [3]


def test_a_transaction_whose_marker_is_replicated_stays_stable() -> None:
    log = new_log()
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, committed=True)
    append(log, 3)
    append(log, 3)
    assert log.truncator.truncate_to(5)
    assert log.last_stable_offset == log.high_watermark == 5


def test_epochs_that_cannot_be_written() -> None:
    """A truncation above the end, one to nothing, and a deletion of records."""
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, 3)
    append(log, 3)
    log.leader_epochs.assign(4, 6)
    epochs = log.leader_epochs.entries
    fs.fail("pwrite", errno.ENOSPC, path_part="leader-epoch", times=2)
    with pytest.raises(DiskFull):
        log.truncator.truncate_to(6)
    assert log.leader_epochs.entries == epochs
    names = fs.paths()
    with pytest.raises(DiskFull):
        log.truncator.truncate_fully_and_start_at(40)
    assert fs.paths() == names, "the segment that was created is removed"
    assert log.log_end_offset == 6
    fs.heal()
    fs.fail("pwrite", errno.EIO, path_part="leader-epoch")
    with pytest.raises(LogDirectoryOffline):
        log.truncator.delete_records_before(2)


def test_a_full_truncation_half_way_takes_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, 3)
    fs.fail("replace", errno.EIO, path_part=".log")
    with pytest.raises(LogDirectoryOffline):
        log.truncator.truncate_fully_and_start_at(40)
    assert log.log_directory.is_offline


def test_a_full_truncation_to_the_names_in_use_needs_no_space() -> None:
    """As when a move between log directories begins again on a disk without inodes."""

    class WithoutInodes(MemoryFileSystem):
        def open(self, path: str, flags: int) -> int:
            if is_full and path.endswith((".log", "index")) and not self.exists(path):
                raise OSError(errno.ENOSPC, "No space left on device", path)
            return super().open(path, flags)

    is_full = False
    fs = WithoutInodes()
    log = new_log(fs, segment_bytes=500)
    for _ in range(12):
        append(log, 2)
    assert len(log.segments) > 1
    names = fs.paths()
    is_full = True
    log.truncator.truncate_fully_and_start_at(0)
    assert (log.log_start_offset, log.log_end_offset, log.segments.base_offsets) == (0, 0, [0])
    assert set(names) > {each for each in fs.paths() if not each.endswith(".deleted")}
    is_full = False
    append(log, 1)
    assert [r.offset for r in fetched(log)] == [0]


def test_a_full_truncation_to_the_names_of_a_damaged_segment_needs_descriptors() -> None:
    """It is removed, and another one is created."""
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, 3)
    log.segments.first.log.truncate(20)
    names = fs.paths()
    fs.fail("open", errno.EMFILE, path_part=".log")
    with pytest.raises(ResourceExhausted):
        log.truncator.truncate_fully_and_start_at(0)
    assert fs.paths() == names
    log.truncator.truncate_fully_and_start_at(0)
    append(log, 1)
    assert [r.offset for r in fetched(log)] == [0]


def test_a_segment_after_a_full_truncation_is_not_as_old_as_time() -> None:
    """Records without timestamps: the segment rolls by its age."""
    log = new_log(segment_ms=1000)
    for offset in (40, 40, 50):
        log.truncator.truncate_fully_and_start_at(offset)
        for base_offset in (offset, offset + 1):
            record = batch_of([(-1, None, b"", [])], base_offset=base_offset)
            log.append_as_follower(record, now_ms=NOW_MS + 1000)
        assert log.segments.base_offsets == [offset]


def test_a_segment_that_is_emptied_is_as_young_as_the_active_one() -> None:
    log = new_log()
    append(log, 2)
    log.roll(NOW_MS + 50)
    append(log, 2)
    first, second = log.segments
    assert (first.created_ms, second.created_ms) == (NOW_MS, NOW_MS + 50)
    log.truncator.truncate_fully_and_start_at(0)
    assert [segment.created_ms for segment in log.segments] == [NOW_MS + 50]
