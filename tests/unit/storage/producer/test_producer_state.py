"""All producers of a log: transactions, the stable offset, snapshots, expiry."""

import pytest

from ottla.protocol.records.batch import read_header
from ottla.protocol.steps import run_at_once
from ottla.storage.errors import ProducerError
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_entry import AppendOrigin, CompletedTransaction
from ottla.storage.producer.producer_state import ProducerState
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    append,
    batch_of,
    end_transaction,
    marker,
    new_log,
)


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.make_directory("/d")
    return system


def test_the_stable_offset_waits_for_the_oldest_transaction() -> None:
    log = new_log()
    append(log, 2)
    append(log, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)  # 2
    append(log, producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)  # 3
    assert log.last_stable_offset == 2
    end_transaction(log, 1, committed=True)
    assert log.last_stable_offset == 3
    append(log, producer_id=1, producer_epoch=0, base_sequence=1, transactional=True)  # 5
    end_transaction(log, 2, committed=False)
    assert log.last_stable_offset == 5
    end_transaction(log, 1, committed=True)
    assert log.last_stable_offset == log.high_watermark == 8
    assert log.producer_state.open_transactions() == {}


def unreplicated(log: Log, content: bytearray) -> None:
    """Appends a batch or a marker above the high watermark."""
    log.append(content, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)


def begun(producer_id: int) -> bytearray:
    return batch_of(1, producer_id=producer_id, producer_epoch=0, transactional=True)


def test_an_ended_transaction_is_unstable_until_its_marker_is_replicated() -> None:
    log = new_log()
    unreplicated(log, begun(1))
    unreplicated(log, marker(1, committed=True))
    log.update_high_watermark(1)
    assert log.last_stable_offset == 0
    log.update_high_watermark(2)
    assert log.last_stable_offset == 2


def test_the_oldest_transaction_decides_whether_open_or_not_replicated() -> None:
    log = new_log()
    state = log.producer_state
    assert state.is_empty
    for producer_id in (1, 2, 3):
        unreplicated(log, begun(producer_id))
    assert not state.is_empty
    for producer_id in (2, 3):
        unreplicated(log, marker(producer_id, committed=True))
    assert state.first_unstable_offset == 0
    unreplicated(log, begun(2))
    unreplicated(log, marker(1, committed=True))
    assert state.first_unstable_offset == 0
    log.update_high_watermark(6)
    assert state.first_unstable_offset == 0
    log.update_high_watermark(7)
    assert state.first_unstable_offset == 5


def test_transactions_that_end_in_one_append() -> None:
    """The first one ends while the second is open."""
    log = new_log()
    for producer_id in (7, 8):
        unreplicated(log, begun(producer_id))
    ended = [CompletedTransaction(7, 0, 2, True), CompletedTransaction(8, 1, 3, True)]
    assert log.producer_state.last_stable_offsets_after([], ended) == [1, 4]


def test_a_truncated_marker_is_not_waited_for() -> None:
    log = new_log()
    append(log, 3)
    unreplicated(log, begun(1))
    unreplicated(log, marker(1, committed=True))
    log.truncator.truncate_to(3)
    append(log)
    assert log.last_stable_offset == log.high_watermark == 4


def test_a_transaction_is_not_open_before_a_replayed_batch_outside_it() -> None:
    """A broker has accepted it: the log must open."""
    state = new_log().producer_state
    for transactional in (True, False):
        content = batch_of(1, producer_id=1, producer_epoch=0, transactional=transactional)
        if transactional:
            state.replay(read_header(content), memoryview(content))
            assert state.open_transactions() == {0: 1}
    state.replay(read_header(content), memoryview(content))
    assert state.open_transactions() == {}
    assert len(state.producers[1].batches) == 2


def test_a_snapshot_is_written_once_for_an_offset(fs: MemoryFileSystem) -> None:
    state = ProducerState(fs, "t-0", "/d")
    assert state.take_snapshot() is None
    state.end_offset = 1
    assert state.take_snapshot() == "/d/00000000000000000001.snapshot"
    assert state.take_snapshot() is None
    assert state.snapshots == [1]
    state.reset(5)
    assert state.take_snapshot() is None, "the log is empty"
    state.end_offset = 6
    assert state.take_snapshot() is not None


def test_a_snapshot_is_written_of_a_log_whose_records_were_all_deleted(
    fs: MemoryFileSystem,
) -> None:
    """Its producers go on, and retries of the last batches are duplicates."""
    log = new_log(fs)
    append(log, 3, producer_id=1, producer_epoch=0, base_sequence=0)
    log.truncator.delete_records_before(3)
    assert log.producer_state.take_snapshot() is not None
    assert log.producer_state.take_snapshot() is None


def test_another_state_as_of_a_snapshot(fs: MemoryFileSystem) -> None:
    state = new_log(fs).producer_state
    for offset in (2, 4, 6):
        content = batch_of(1, base_offset=offset - 1, producer_id=offset, producer_epoch=0)
        state.replay(read_header(content), memoryview(content))
        state.end_offset = offset
        state.take_snapshot()
    for start, offset, end, producers in (
        (0, 4, 4, [2, 4]),
        (0, 5, 4, [2, 4]),
        (2, 3, 2, [2]),
        (3, 3, 3, []),
        (7, 9, 7, []),
    ):
        other = run_at_once(state.as_of_snapshot(start, offset))
        assert (other.end_offset, sorted(other.producers)) == (end, producers)
    assert sorted(state.producers) == state.snapshots == [2, 4, 6]


def test_many_producers_are_loaded_in_steps(fs: MemoryFileSystem) -> None:
    """100,000 take a quarter of a second, and a truncation runs beside other requests."""
    log = new_log(fs)
    for producer_id in range(120):
        append(log, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    log.roll(NOW_MS)
    steps = log.producer_state.as_of_snapshot(0, 120)
    assert len(list(steps)) == 120
    assert len(list(log.truncator.prepare(120))) == 0
    append(log)
    assert len(list(log.truncator.prepare(120))) == 120


def test_a_damaged_snapshot_that_a_truncation_finds_is_not_listed(fs: MemoryFileSystem) -> None:
    """Else none is written there again, and the segment that ends there is not copied to
    remote storage."""
    log = new_log(fs)
    state = log.producer_state
    for sequence in (0, 2, 4, 6):
        append(log, 2, producer_id=1, producer_epoch=0, base_sequence=sequence)
        log.roll(NOW_MS)
    for offset in (4, 6):
        fs.overwrite(state.snapshot_path(offset), b"junk")
    list(log.truncator.prepare(6))
    assert state.snapshots == [2, 8]
    log.truncator.truncate_to(6)
    assert state.snapshots == [2]
    assert state.producers[1].last_sequence == 5
    assert state.take_snapshot() == state.snapshot_path(6)


def test_without_a_snapshot_loading_begins_at_the_first_segment(fs: MemoryFileSystem) -> None:
    state = ProducerState(fs, "t-0", "/d")
    state.reload(5, 9, NOW_MS)
    assert (state.end_offset, state.producers) == (5, {})
    assert state.take_snapshot() is None


def test_loading_goes_back_to_the_newest_snapshot_in_range(fs: MemoryFileSystem) -> None:
    log = new_log(fs)
    state = log.producer_state
    for number in range(4):
        append(log, producer_id=number, producer_epoch=0, base_sequence=0)
        state.take_snapshot()
    assert state.snapshots == [1, 2, 3, 4]
    again = ProducerState(fs, "t-0", log.path, fs.list_files(log.path))
    again.reload(2, 3, NOW_MS)
    assert again.snapshots == [2, 3]
    assert again.end_offset == 3
    assert sorted(again.producers) == [0, 1, 2]


def test_a_damaged_snapshot_is_skipped(
    fs: MemoryFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log(fs)
    for number in range(2):
        append(log, producer_id=number, producer_epoch=0, base_sequence=0)
        log.producer_state.take_snapshot()
    fs.overwrite(f"{log.path}/00000000000000000002.snapshot", b"junk that is no snapshot")
    again = ProducerState(fs, "t-0", log.path, fs.list_files(log.path))
    again.reload(0, 2, NOW_MS)
    assert again.end_offset == 1
    assert sorted(again.producers) == [0]
    assert "Ignoring producer snapshot" in caplog.text
    assert not fs.exists(f"{log.path}/00000000000000000002.snapshot")


def test_open_transactions_survive_in_a_snapshot(fs: MemoryFileSystem) -> None:
    log = new_log(fs)
    for number in (3, 1):
        append(log, producer_id=number, producer_epoch=0, base_sequence=0, transactional=True)
    log.producer_state.take_snapshot()
    again = ProducerState(fs, "t-0", log.path, fs.list_files(log.path))
    again.reload(0, 2, NOW_MS)
    assert again.open_transactions() == {0: 3, 1: 1}
    assert again.first_unstable_offset == 0


def test_idle_producers_are_forgotten_and_not_loaded(fs: MemoryFileSystem) -> None:
    log = new_log(fs)
    append(log, producer_id=1, producer_epoch=0, base_sequence=0)
    state = log.producer_state
    state.take_snapshot()
    day = 86_400_000
    again = ProducerState(fs, "t-0", log.path, fs.list_files(log.path))
    again.reload(0, 1, NOW_MS + day)
    assert again.producers == {}
    assert run_at_once(state.remove_expired(NOW_MS + day - 1)) == 0
    assert run_at_once(state.remove_expired(NOW_MS + day)) == 1
    append(log, producer_id=1, producer_epoch=0, base_sequence=55)  # unknown: any number will do


def test_many_idle_producers_are_forgotten_in_steps(fs: MemoryFileSystem) -> None:
    log = new_log(fs)
    for producer_id in range(12):
        append(log, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    state = log.producer_state
    steps = state.remove_expired(NOW_MS + 86_400_000)
    next(steps)
    assert len(state.producers) == 11
    log.truncator.truncate_to(6)  # the producers are others now
    append(log, [(NOW_MS + 86_400_000, b"k", b"", [])], producer_id=6, producer_epoch=0,
           base_sequence=0)  # fmt: skip
    assert run_at_once(steps) == 6
    assert set(state.producers) == {0, 6}  # it had looked at 0 before the truncation


def test_snapshots_of_segments_and_the_newest_are_kept(fs: MemoryFileSystem) -> None:
    state = ProducerState(fs, "t-0", "/d")
    for offset in (10, 20, 30, 40):
        state.end_offset = offset
        state.take_snapshot()
    state.keep_snapshots_of([20, 50])
    assert state.snapshots == [20, 40]
    assert state.retire_snapshot(20) == "/d/00000000000000000020.snapshot.deleted"
    assert state.retire_snapshot(20) is None
    state.reset(5)
    assert (state.snapshots, state.end_offset) == ([], 5)
    assert fs.paths() == ["/d/00000000000000000020.snapshot.deleted"]


def test_a_refused_append_leaves_no_trace() -> None:
    log = new_log()
    append(log, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    with pytest.raises(ProducerError):
        append(log, producer_id=1, producer_epoch=0, base_sequence=1)
    assert log.log_end_offset == 1
    append(log, producer_id=1, producer_epoch=0, base_sequence=1, transactional=True)


def test_transactions_that_begin_in_one_append_are_kept_in_order() -> None:
    log = new_log()
    parts = [
        (5, 0, False), (6, 0, True), (5, 1, True),
    ]  # fmt: skip
    content = bytearray()
    for offset, (producer_id, sequence, transactional) in enumerate(parts):
        content += batch_of(
            1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
            transactional=transactional, base_offset=offset,
        )  # fmt: skip
    log.append_as_follower(content, now_ms=NOW_MS)
    assert log.producer_state.open_transactions() == {1: 6, 2: 5}
    assert log.producer_state.first_open_offset() == 1
    assert log.producer_state.has_open_transaction(5, 0)
    assert not log.producer_state.has_open_transaction(9, 0)


class Counted(int):
    """An offset that counts comparisons and look-ups."""

    steps = 0

    def __lt__(self, other: int) -> bool:
        Counted.steps += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        Counted.steps += 1
        return int(self) == other

    def __hash__(self) -> int:
        Counted.steps += 1
        return hash(int(self))


@pytest.mark.parametrize("producers", [1, 2, 50])
def test_many_transactions_of_one_write_take_linear_time(
    fs: MemoryFileSystem, producers: int
) -> None:
    """A follower appends thousands of them at once, on the loop."""
    state = ProducerState(fs, "t-0", "/d")
    appends = [state.begin_append(each, AppendOrigin.REPLICATION) for each in range(producers)]
    completed = []
    for number in range(4_000):
        append = appends[number % producers]
        append.started.append(Counted(2 * number))
        completed.append(
            CompletedTransaction(
                number % producers, Counted(2 * number), 2 * number + 1, number % 1_000 == 0
            )
        )
    Counted.steps = 0
    state.update(appends)
    for each in completed[:2_000]:
        state.complete(each)
    assert list(state.open_transactions()) == list(range(4_000, 8_000, 2))
    state = ProducerState(fs, "t-0", "/d")
    stable = state.last_stable_offsets_after(appends, completed)
    assert stable == list(range(2, 8_002, 2))
    assert Counted.steps < 4_000 * 60


def test_an_empty_control_batch_changes_nothing() -> None:
    """Compaction leaves the header of a marker without its record."""
    from ottla.protocol.records.builder import rebuild_batch

    log = new_log()
    append(log, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    content = marker(1, committed=True)
    empty = rebuild_batch(read_header(content)._replace(base_offset=1), [])
    log.append_as_follower(bytearray(empty), now_ms=NOW_MS)
    assert log.producer_state.open_transactions() == {0: 1}
