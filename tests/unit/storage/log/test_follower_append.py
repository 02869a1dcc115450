"""Appends of a follower: batches as the leader has them, in segments of its own size."""

from __future__ import annotations

from random import Random

import pytest

from ottla.protocol.records.batch import MAX_SEQUENCE, patch_base_offset
from ottla.protocol.records.errors import CorruptRecordError
from ottla.storage.errors import UnexpectedAppendOffset
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, batch_of, fetched, marker, new_log, plain

BATCHES = 6


def leaders_batches(sizes: list[int], epoch: int = 3) -> list[bytearray]:
    """Batches of one record with values of these sizes, at consecutive offsets."""
    found = []
    for offset, size in enumerate(sizes):
        batch = batch_of(plain(1, size=size))
        patch_base_offset(batch, 0, offset, epoch)
        found.append(batch)
    return found


def segments(log: Log) -> list[tuple[int, int]]:
    """(base offset, bytes) of each."""
    return [(segment.base_offset, segment.size) for segment in log.segments]


def test_batches_are_split_over_segments_that_are_smaller_than_the_leaders() -> None:
    batches = leaders_batches([100] * BATCHES)
    size = len(batches[0])
    log = new_log(segment_bytes=2 * size)
    info = log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset, info.bytes) == (0, 5, BATCHES * size)
    assert info.max_timestamp == NOW_MS
    assert segments(log) == [(0, 2 * size), (2, 2 * size), (4, 2 * size)]
    assert [record.offset for record in fetched(log)] == list(range(BATCHES))
    assert log.leader_epochs.entries == [(3, 0)]
    # Each batch is found where it is.
    for offset in range(BATCHES):
        assert log.read(offset, size, up_to=BATCHES).first_batch_base_offset == offset


def test_batches_of_different_sizes_are_split_where_they_fit() -> None:
    sizes = [100, 300, 50, 50, 200, 20]
    batches = leaders_batches(sizes)
    lengths = [len(batch) for batch in batches]
    limit = max(lengths) + min(lengths)
    log = new_log(segment_bytes=limit)
    log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
    assert sum(size for _, size in segments(log)) == sum(lengths)
    assert all(size <= limit for _, size in segments(log))
    content = b"".join(bytes(batch) for batch in log.batches(0, BATCHES))
    assert content == b"".join(batches)


def test_a_run_that_just_fits_is_one_segment() -> None:
    batches = leaders_batches([100, 100])
    size = len(batches[0])
    log = new_log(segment_bytes=2 * size)
    log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
    assert segments(log) == [(0, 2 * size)]
    log = new_log(segment_bytes=2 * size - 1)
    log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
    assert segments(log) == [(0, size), (1, size)]


def test_a_batch_as_large_as_a_segment() -> None:
    (batch,) = leaders_batches([100])
    log = new_log(segment_bytes=len(batch))
    log.append_as_follower(bytes(batch), now_ms=NOW_MS)
    assert log.log_end_offset == 1


def test_batches_larger_than_a_segment_get_segments_of_their_own() -> None:
    """segment.bytes was lowered after the leader had appended them."""
    batches = leaders_batches([10, 500, 10, 500, 500])
    sizes = [len(batch) for batch in batches]
    log = new_log(segment_bytes=300)
    log.append_as_follower(b"".join(batches[:3]), now_ms=NOW_MS)
    log.append_as_follower(b"".join(batches[3:]), now_ms=NOW_MS)
    assert segments(log) == list(enumerate(sizes))
    assert [record.offset for record in fetched(log)] == list(range(5))
    log = new_log(segment_bytes=300)
    log.append_as_follower(bytes(batches[0]), now_ms=NOW_MS)
    log.append_as_follower(bytes(batches[1]), now_ms=NOW_MS)
    assert segments(log) == [(0, sizes[0]), (1, sizes[1])]


def test_nothing_and_what_is_there_already() -> None:
    log = new_log()
    info = log.append_as_follower(b"", now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset, info.bytes) == (-1, -1, 0)
    assert (info.max_timestamp, info.log_append_time) == (-1, -1)
    first, second = leaders_batches([10, 10])
    info = log.append_as_follower(bytearray(first), now_ms=NOW_MS)
    assert info.log_append_time == -1
    with pytest.raises(UnexpectedAppendOffset) as refused:
        log.append_as_follower(bytes(first + second), now_ms=NOW_MS)
    assert (refused.value.first_offset, refused.value.last_offset) == (0, 1)
    log.append_as_follower(bytes(second), now_ms=NOW_MS)
    assert log.log_end_offset == 2


def test_a_follower_takes_transactions_that_it_did_not_verify() -> None:
    """The leader has verified them."""
    log = new_log()
    log.verifications.enabled = True
    data = batch_of(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end = marker(7, committed=False)
    patch_base_offset(data, 0, 0, 0)
    patch_base_offset(end, 0, 1, 0)
    log.append_as_follower(bytes(data), now_ms=NOW_MS)
    assert log.producer_state.has_open_transaction(7, 0)
    log.append_as_follower(bytes(end), now_ms=NOW_MS)
    assert not log.producer_state.has_open_transaction(7, 0)
    (aborted,) = log.local.active.txn_index.entries()
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (7, 0, 1)


def test_transactions_that_are_fetched_at_once_are_indexed_as_one_by_one() -> None:
    """A transaction that begins later does not change where an earlier one left the log stable."""

    def data(producer_id: int, sequence: int) -> bytearray:
        return batch_of(
            1,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )

    batches = [
        data(7, 0),
        marker(7, committed=False),
        data(7, 1),
        marker(7, committed=False),
        data(8, 0),
    ]
    for offset, batch in enumerate(batches):
        patch_base_offset(batch, 0, offset, 0)
    log, slow = new_log(), new_log()
    log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
    for batch in batches:
        slow.append_as_follower(bytes(batch), now_ms=NOW_MS)
    assert log.local.active.txn_index.entries() == slow.local.active.txn_index.entries()
    for each in (log, slow):
        # Both aborted transactions, of what is below the open one.
        found = each.read(0, 1 << 20, up_to=4, read_committed=True)
        assert found.aborted_transactions == [(7, 0), (7, 2)]


def test_batches_in_later_runs_are_found_by_their_offsets() -> None:
    """Their places in the segment are those in the run, not those in the request."""
    batches = leaders_batches([100] * 9)
    size = len(batches[0])
    log = new_log(segment_bytes=3 * size, index_interval_bytes=0)
    log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
    assert segments(log) == [(0, 3 * size), (3, 3 * size), (6, 3 * size)]
    for offset in range(9):
        read = log.read(offset, size, up_to=9)
        assert read.first_batch_base_offset == offset
        assert read.slice is not None
        assert bytes(read.slice.read()) == batches[offset]


def test_each_segment_is_written_at_once() -> None:
    fs = MemoryFileSystem()
    batches = leaders_batches([100] * 9)
    log = new_log(fs, segment_bytes=3 * len(batches[0]))
    fs.calls.clear()
    log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
    writes = [path for operation, path in fs.calls if operation == "pwrite"]
    assert sum(path.endswith(".log") for path in writes) == 3


def test_markers_in_a_later_run() -> None:
    """One transaction is committed and one aborted."""
    parts = [batch_of(plain(1, size=100))]
    for producer_id in (7, 8):
        parts.append(batch_of(1, producer_id=producer_id, producer_epoch=0, transactional=True))
    parts += [marker(7, committed=True), marker(8, committed=False)]
    for offset, content in enumerate(parts):
        patch_base_offset(content, 0, offset, 3)
    log = new_log(segment_bytes=sum(map(len, parts[1:])))
    log.append_as_follower(b"".join(parts), now_ms=NOW_MS)
    assert [base for base, _ in segments(log)] == [0, 2]
    assert log.producer_state.open_transactions() == {}
    (aborted,) = log.local.active.txn_index.entries()
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (8, 2, 4)


def batches_of_producers(seed: int, count: int = 300) -> list[bytes]:
    """As a leader may have them: producers with and without ids, epochs that end, sequence numbers
    that wrap around, transactions, gaps that compaction left."""
    random = Random(seed)
    sequences: dict[int, int] = {}
    epochs: dict[int, int] = {}
    open_transactions: set[int] = set()
    found, offset = [], 0
    for _ in range(count):
        producer = random.choice((-1, 1, 2, 3, 4))
        size = random.randint(1, 3)
        if producer < 0:
            batch = batch_of(size)
        elif producer in open_transactions and random.random() < 0.4:
            batch = marker(producer, committed=random.random() < 0.5, epoch=epochs[producer])
            size = 1
            open_transactions.discard(producer)
        else:
            if producer not in epochs or (
                random.random() < 0.1 and producer not in open_transactions
            ):
                epochs[producer] = epochs.get(producer, -1) + 1
                sequences[producer] = random.choice((0, MAX_SEQUENCE - 1))
            transactional = producer in open_transactions or (
                producer > 2 and random.random() < 0.3
            )
            batch = batch_of(
                size,
                producer_id=producer,
                producer_epoch=epochs[producer],
                base_sequence=sequences[producer],
                transactional=transactional,
            )
            sequences[producer] = (sequences[producer] + size) & MAX_SEQUENCE
            if transactional:
                open_transactions.add(producer)
        patch_base_offset(batch, 0, offset, offset // 100)
        offset += size + random.choice((0, 0, 0, 5))
        found.append(bytes(batch))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_batch_by_itself_has_the_same_effect_as_one_before_others(seed: int) -> None:
    """What follows the batch is an incomplete one, which is dropped; a plain batch that is alone
    takes a path of its own."""
    alone, closely = new_log(segment_bytes=5_000), new_log(segment_bytes=5_000)
    for batch in batches_of_producers(seed):
        info = alone.append_as_follower(bytearray(batch), now_ms=NOW_MS)
        expected = closely.append_as_follower(batch + batch[:20], now_ms=NOW_MS)
        assert_same_fields(info, expected)
        for log in (alone, closely):
            log.update_high_watermark(log.log_end_offset)
        states = [
            {key: repr(entry) for key, entry in log.producer_state.producers.items()}
            for log in (alone, closely)
        ]
        assert states[0] == states[1]
        assert alone.producer_state.end_offset == closely.producer_state.end_offset
        assert_same_fields(alone.offsets, closely.offsets, "_producers")
    assert segments(alone) == segments(closely)
    assert alone.leader_epochs.entries == closely.leader_epochs.entries
    end = alone.log_end_offset
    assert b"".join(alone.batches(0, end)) == b"".join(closely.batches(0, end))


def assert_same_fields(first: object, second: object, *but: str) -> None:
    for name in type(first).__slots__:  # type: ignore[attr-defined]
        if name not in but:
            assert getattr(first, name) == getattr(second, name), name


def test_a_corrupt_batch_by_itself_is_refused() -> None:
    log = new_log()
    (batch,) = leaders_batches([100])
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        log.append_as_follower(batch, now_ms=NOW_MS)
    assert log.log_end_offset == 0


def test_a_gap_that_compaction_left_on_the_leader_is_not_lost_records_after_a_crash() -> None:
    # The topic was compacted once: nothing says so here, neither its settings nor a checkpoint.
    batches = leaders_batches([100] * BATCHES)
    size = len(batches[0])
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=2 * size)
    for offset in (0, 1, 50, 51, 52, 90):
        batch = batches.pop(0)
        patch_base_offset(batch, 0, offset, 3)
        log.append_as_follower(batch, now_ms=NOW_MS)
    log = new_log(fs.after_kill(), segment_bytes=2 * size)
    assert [record.offset for record in fetched(log)] == [0, 1, 50, 51, 52, 90]
    assert [each.base_offset for each in log.segments] == [0, 2, 52]


def test_a_segment_does_not_begin_so_far_below_its_first_batch_that_its_index_cannot_tell() -> None:
    far = (1 << 31) + 7
    first, second = leaders_batches([100, 100])
    fs = MemoryFileSystem()
    log = new_log(fs, segment_bytes=len(first))
    log.append_as_follower(first, now_ms=NOW_MS)
    patch_base_offset(second, 0, far, 3)
    log.append_as_follower(second, now_ms=NOW_MS)
    assert [each.base_offset for each in log.segments] == [0, 8]
    assert [record.offset for record in fetched(log)] == [0, far]
