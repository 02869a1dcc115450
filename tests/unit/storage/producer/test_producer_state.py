"""All producers of a log: transactions, the stable offset, snapshots, expiry."""

import pytest

from ottla.storage.errors import ProducerError
from ottla.storage.producer.producer_state import ProducerState
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, end_transaction, marker, new_log


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


def test_an_ended_transaction_is_unstable_until_its_marker_is_replicated() -> None:
    log = new_log()
    append(log, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 1, committed=True)
    log.offsets.high_watermark = 0
    log.producer_state._unreplicated[0] = 1
    log.offsets.refresh_first_unstable()
    assert log.last_stable_offset == 0
    log.update_high_watermark(1)
    assert log.last_stable_offset == 0
    log.update_high_watermark(2)
    assert log.last_stable_offset == 2


def test_a_snapshot_is_written_once_for_an_offset(fs: MemoryFileSystem) -> None:
    state = ProducerState(fs, "t-0", "/d")
    assert state.take_snapshot() is None
    state.end_offset = 10
    assert state.take_snapshot() == "/d/00000000000000000010.snapshot"
    assert state.take_snapshot() is None
    assert state.snapshots == [10]


def test_loading_goes_back_to_the_newest_snapshot_in_range(fs: MemoryFileSystem) -> None:
    log = new_log(fs)
    state = log.producer_state
    for number in range(4):
        append(log, producer_id=number, producer_epoch=0, base_sequence=0)
        state.take_snapshot()
    assert state.snapshots == [1, 2, 3, 4]
    again = ProducerState(fs, "t-0", log.path, fs.list_files(log.path))
    again.reload(1, 3, NOW_MS)
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
    assert state.remove_expired(NOW_MS + day - 1) == 0
    assert state.remove_expired(NOW_MS + day) == 1
    append(log, producer_id=1, producer_epoch=0, base_sequence=55)  # unknown: any number will do


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
    from tests.doubles.storage_logs import batch_of

    content = bytearray()
    for offset, (producer_id, sequence, transactional) in enumerate(parts):
        content += batch_of(
            1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
            transactional=transactional, base_offset=offset,
        )  # fmt: skip
    log.append_as_follower(content, now_ms=NOW_MS)
    assert log.producer_state.open_transactions() == {1: 6, 2: 5}
    assert log.producer_state.first_open_offset() == 1
    assert log.producer_state.has_open_transaction(5)
    assert not log.producer_state.has_open_transaction(9)


def test_an_empty_control_batch_changes_nothing() -> None:
    """Compaction leaves the header of a marker without its record."""
    from ottla.protocol.records.batch import read_header
    from ottla.protocol.records.builder import rebuild_batch

    log = new_log()
    append(log, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    content = marker(1, committed=True)
    empty = rebuild_batch(read_header(content)._replace(base_offset=1), [])
    log.append_as_follower(bytearray(empty), now_ms=NOW_MS)
    assert log.producer_state.open_transactions() == {0: 1}
