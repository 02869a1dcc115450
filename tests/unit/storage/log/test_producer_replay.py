"""Producers brought to the end of the log from a snapshot and the batches behind it."""

from ottla.storage.log.producer_replay import rebuild_producers
from ottla.storage.producer.producer_state import ProducerState
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, end_transaction, new_log


def test_every_starting_point_leads_to_the_same_state() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=400)
    for number in range(20):
        append(log)
        append(
            log, producer_id=number % 3, producer_epoch=0, base_sequence=number // 3,
            transactional=number % 3 == 0,
        )  # fmt: skip
        if number % 6 == 5:
            end_transaction(log, 0, committed=True)
    end = log.log_end_offset
    snapshots = log.producer_state.snapshots
    assert len(snapshots) > 3
    while True:
        state = ProducerState(fs, "t-0", log.path, fs.list_files(log.path))
        rebuild_producers(state, log.segments, 0, end, NOW_MS)
        assert state.end_offset == end
        for producer_id, entry in log.producer_state.producers.items():
            found = state.producers[producer_id]
            assert found.batches[-1] == entry.batches[-1]
            assert found.transaction_first_offset == entry.transaction_first_offset
        assert state.open_transactions() == log.producer_state.open_transactions()
        if not snapshots:
            break
        snapshots.pop()
        for offset in [o for o in state.snapshots if o not in snapshots]:
            state.delete_snapshot(offset)


def test_snapshots_are_taken_on_the_way() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=300)
    for number in range(10):
        append(log, producer_id=7, producer_epoch=0, base_sequence=number)
    for path in [p for p in fs.paths() if p.endswith(".snapshot")]:
        fs.remove(path)
    state = ProducerState(fs, "t-0", log.path)
    rebuild_producers(state, log.segments, 0, 10, NOW_MS)
    assert state.snapshots == log.segments.base_offsets[1:]
