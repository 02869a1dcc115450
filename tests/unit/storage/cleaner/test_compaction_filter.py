"""What compaction keeps of a batch."""

from random import Random

import pytest

from ottla.protocol.records.batch import read_header
from ottla.protocol.records.builder import build_batch, rebuild_batch
from ottla.protocol.records.compression import GZIP, LZ4, NONE, SNAPPY
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.legacy import build_message_set, read_legacy_header
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import Record
from ottla.storage.cleaner.compaction import Compaction
from ottla.storage.cleaner.compaction_filter import (
    Filter,
    LastRecord,
    TransactionTracker,
    filter_old,
)
from ottla.storage.cleaner.offset_map import OffsetMap
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, batch_of, manager_on, records_in

DAY = 86_400_000


def keep(
    newest: dict[bytes, int],
    *,
    latest: int = 1000,
    aborted: list[AbortedTransaction] | None = None,
    last: dict[int, LastRecord] | None = None,
    now_ms: int = NOW_MS,
    first_dirty: int | None = None,
) -> Filter:
    """The map has all keys from `first_dirty` on."""
    offsets = OffsetMap(1 << 20)
    offsets.put_all(list(newest), list(newest.values()), 0)
    offsets.latest_offset = latest
    first = latest + 1 if first_dirty is None else first_dirty
    return Filter(offsets, TransactionTracker(aborted or []), last or {}, now_ms, DAY, first)


def rows(content: bytes | memoryview) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in records(content)]


def records(content: bytes | memoryview) -> list[Record]:
    return list(read_records(bytes(content), include_control=True))


def batch(*pairs: tuple[bytes | None, bytes | None], base: int = 10, **fields: object) -> bytes:
    made = [(NOW_MS + i, key, value, [("h", b"1")]) for i, (key, value) in enumerate(pairs)]
    return build_batch(made, base_offset=base, leader_epoch=3, **fields)  # type: ignore[arg-type]  # passed on


def apply(rules: Filter, content: bytes) -> bytes | None:
    kept = rules.apply(read_header(content), memoryview(content))
    if kept is None:
        return None
    assert kept[1] == read_header(bytes(kept[0])).max_timestamp
    return bytes(kept[0])


def test_a_batch_of_which_all_stays_is_not_touched() -> None:
    content = batch((b"a", b"1"), (b"b", b"2"))
    assert apply(keep({b"a": 10, b"b": 11}), content) == content


def test_older_records_go_and_the_rest_keeps_its_bytes() -> None:
    for codec in range(5):
        content = batch((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=codec, base=10)
        kept = apply(keep({b"a": 50, b"b": 11, b"c": 12}), content)
        assert kept is not None
        assert records(kept) == records(content)[1:]
        before, after = read_header(content), read_header(kept)
        assert (after.base_offset, after.last_offset) == (10, 12)
        assert after.record_count == 2
        assert after.codec == codec
        assert after.partition_leader_epoch == before.partition_leader_epoch


def test_the_max_timestamp_is_that_of_what_stays() -> None:
    content = batch((b"a", b"1"), (b"b", b"2"))
    kept = apply(keep({b"a": 10, b"b": 50}), content)
    assert kept is not None
    assert read_header(kept).max_timestamp == NOW_MS
    stamped = batch((b"a", b"1"), (b"b", b"2"), timestamp_type=1, log_append_time=NOW_MS + 99)
    kept = apply(keep({b"a": 10, b"b": 50}), stamped)
    assert kept is not None
    assert read_header(kept).max_timestamp == NOW_MS + 99


def test_nothing_left_is_nothing() -> None:
    assert apply(keep({b"a": 50}), batch((b"a", b"1"))) is None
    assert apply(keep({}), batch((None, b"no key"))) is None


def test_what_the_map_has_not_seen_stays() -> None:
    content = batch((b"a", b"1"), (b"a", b"2"), base=10)
    kept = apply(keep({b"a": 50}, latest=10), content)
    assert kept is not None
    assert rows(kept) == [(11, b"a", b"2")]


def test_a_tombstone_gets_its_horizon_at_the_first_compaction() -> None:
    content = batch((b"a", None), (b"b", b"2"), codec=3)
    kept = apply(keep({b"a": 10, b"b": 11}), content)
    assert kept is not None
    header = read_header(kept)
    assert header.delete_horizon_ms == NOW_MS + DAY
    assert records(kept) == records(content), "timestamps are the same for a reader"
    again = apply(keep({b"a": 10, b"b": 11}, now_ms=NOW_MS + DAY - 1), kept)
    assert again == kept, "the horizon is set once"
    later = apply(keep({b"a": 10, b"b": 11}, now_ms=NOW_MS + DAY), kept)
    assert later is not None
    assert rows(later) == [(11, b"b", b"2")]
    assert records(later) == records(content)[1:]


def test_a_batch_of_tombstones_gets_a_horizon() -> None:
    kept = apply(keep({b"a": 10}), batch((b"a", None)))
    assert kept is not None
    assert read_header(kept).delete_horizon_ms == NOW_MS + DAY


def test_a_batch_whose_tombstones_go_gets_no_horizon() -> None:
    content = batch((b"a", None), (b"b", b"2"))
    kept = apply(keep({b"a": 50, b"b": 11}), content)
    assert kept is not None
    assert rows(kept) == [(11, b"b", b"2")]
    assert read_header(kept).delete_horizon_ms is None


@pytest.mark.parametrize(("latest", "stays"), [(9, [10, 11]), (10, [11]), (11, [])])
def test_tombstones_that_the_map_has_not_seen_stay_after_their_horizon(
    latest: int, stays: list[int]
) -> None:
    """The map may end inside a batch."""
    content = apply(keep({b"a": 10, b"b": 11}), batch((b"a", None), (b"b", None)))
    assert content is not None
    later = keep({b"a": 10, b"b": 11}, latest=latest, now_ms=NOW_MS + 2 * DAY)
    kept = apply(later, content)
    assert (rows(kept) if kept is not None else []) == [
        row for row in rows(content) if row[0] in stays
    ]


def test_the_last_batch_of_a_producer_stays_as_a_header_among_dirty_records() -> None:
    content = batch((b"a", b"1"), producer_id=7, producer_epoch=2, base_sequence=5)
    for last, stays in ((LastRecord(10, 2), True), (LastRecord(99, 2), False)):
        kept = apply(keep({b"a": 50}, last={7: last}, first_dirty=0), content)
        assert (kept is not None) == stays


def test_the_last_batch_of_a_producer_stays_as_a_header() -> None:
    content = batch((b"a", b"1"), producer_id=7, producer_epoch=2, base_sequence=5, codec=1)
    for last, stays in (
        (LastRecord(10, 2), True),
        (LastRecord(99, 2), False),
        (LastRecord(-1, 2), False),
    ):
        kept = apply(keep({b"a": 50}, last={7: last}), content)
        assert (kept is not None) == stays
        if kept is not None:
            header = read_header(kept)
            assert (header.record_count, header.size_in_bytes, header.codec) == (0, 61, 0)
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 5)
            assert (header.base_offset, header.last_offset) == (10, 10)
            assert apply(keep({}, last={7: last}), kept) == kept
            assert apply(keep({}), kept) is None


def transactional(key: bytes, base: int, producer_id: int = 7) -> bytes:
    return batch(
        (key, b"v"), base=base, producer_id=producer_id, producer_epoch=0, base_sequence=base,
        transactional=True,
    )  # fmt: skip


def end(base: int, *, committed: bool, producer_id: int = 7) -> bytes:
    return end_transaction_marker(
        committed=committed, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0,
        timestamp_ms=NOW_MS, base_offset=base,
    )  # fmt: skip


def test_records_of_an_aborted_transaction_go_its_marker_later() -> None:
    aborted = [AbortedTransaction(7, 10, 12, 13)]
    kept_aborted: list[AbortedTransaction] = []
    rules = keep({b"a": 10, b"b": 11}, aborted=aborted)
    rules.transactions.keep_aborted = kept_aborted.append
    assert apply(rules, transactional(b"a", 10)) is None
    assert apply(rules, transactional(b"b", 11)) is None
    marker = end(12, committed=False)
    assert apply(rules, marker) == marker, "its records were there: the marker stays for readers"
    assert kept_aborted == aborted
    rules = keep({}, aborted=aborted)
    rules.transactions.keep_aborted = kept_aborted.append
    first = apply(rules, marker)
    assert first is not None
    assert read_header(first).delete_horizon_ms == NOW_MS + DAY, "now it only waits"
    assert len(kept_aborted) == 1
    assert records(first) == records(marker)
    assert apply(keep({}, aborted=aborted, now_ms=NOW_MS + DAY - 1), first) == first
    assert apply(keep({}, aborted=aborted, now_ms=NOW_MS + DAY), first) is None


def test_a_commit_marker_goes_when_its_records_have_gone() -> None:
    marker = end(12, committed=True)
    rules = keep({b"a": 10})
    assert apply(rules, transactional(b"a", 10)) is not None
    assert apply(rules, marker) == marker
    rules = keep({b"a": 50})
    assert apply(rules, transactional(b"a", 10)) is None
    assert apply(rules, marker) == marker, "records were met, though none of them stayed"
    first = apply(keep({}), marker)
    assert first is not None
    assert apply(keep({}, now_ms=NOW_MS + DAY), first) is None


def test_the_last_marker_of_a_producer_stays_as_a_header() -> None:
    marker = end(12, committed=True)
    last = {7: LastRecord(-1, 0)}
    first = apply(keep({}, last=last), marker)
    assert first is not None
    kept = apply(keep({}, last=last, now_ms=NOW_MS + DAY), first)
    assert kept is not None
    header = read_header(kept)
    assert (header.record_count, header.is_control, header.producer_id) == (0, True, 7)
    assert apply(keep({}, last=last, now_ms=NOW_MS + 2 * DAY), kept) == kept


def test_only_the_aborted_producers_records_go() -> None:
    rules = keep({b"a": 10, b"b": 11}, aborted=[AbortedTransaction(7, 10, 12, 13)])
    assert apply(rules, transactional(b"a", 10)) is None
    assert apply(rules, transactional(b"b", 11, producer_id=8)) is not None
    plain = batch((b"b", b"x"), base=11)
    assert apply(rules, plain) == plain


def test_the_aborted_transactions_of_several_producers() -> None:
    aborted = [AbortedTransaction(7, 10, 12, 13), AbortedTransaction(8, 20, 22, 23)]
    rules = keep({b"a": 10, b"b": 11, b"c": 20}, aborted=aborted)
    assert apply(rules, transactional(b"a", 10)) is None
    assert apply(rules, transactional(b"b", 11, producer_id=8)) is not None
    assert apply(rules, transactional(b"c", 20, producer_id=8)) is None


def test_a_marker_whose_transaction_has_no_records_behind_one_that_has() -> None:
    for committed in (True, False):
        aborted = [AbortedTransaction(7, 10, 12, 13), AbortedTransaction(7, 14, 15, 16)]
        kept_aborted: list[AbortedTransaction] = []
        rules = keep({b"a": 10}, aborted=[] if committed else aborted)
        rules.transactions.keep_aborted = kept_aborted.append
        apply(rules, transactional(b"a", 10))
        marker = end(12, committed=committed)
        assert apply(rules, marker) == marker
        second = apply(rules, end(15, committed=committed))
        assert second is not None
        assert read_header(second).delete_horizon_ms == NOW_MS + DAY
        assert kept_aborted == ([] if committed else aborted[:1])


def test_other_control_records_stay() -> None:
    other = batch((b"\x00\x00\x00\x02", b""), control=True)
    assert apply(keep({}), other) == other


def test_the_header_that_stays_is_that_of_the_batch() -> None:
    """Also at the first offset of the log."""
    content = transactional(b"a", 0)
    kept = apply(keep({b"a": 50}, last={7: LastRecord(0, 0)}), content)
    assert kept is not None
    header = read_header(kept)
    assert (header.record_count, header.is_transactional, header.last_offset) == (0, True, 0)


def test_an_emptied_control_batch_is_useless() -> None:
    empty = rebuild_batch(read_header(end(12, committed=True)), [])
    assert apply(keep({}), empty) is None


@pytest.mark.parametrize("seed", range(20))
def test_offsets_of_dirty_records_tell_the_same_as_their_keys(seed: int) -> None:
    random = Random(seed)
    # Digests of keys of more than 32 bytes are in the map.
    keys = [
        random.choice((b"k", b"k" * 40)) + b"%d" % random.randrange(150)
        if random.random() < 0.9
        else None
        for _ in range(600)
    ]
    latest = random.choice((599, 480, 479, 130))
    newest = {key: offset for offset, key in enumerate(keys[: latest + 1]) if key is not None}
    newest = dict(sorted(newest.items(), key=lambda each: each[1]))
    by_key = keep(newest, latest=latest)
    by_offset = keep(newest, latest=latest, first_dirty=0)
    kept = 0
    for base in range(0, 600, 60):
        values = (b"v" if random.random() < 0.98 else None for _ in range(60))
        new = [(NOW_MS, key, value, []) for key, value in zip(keys[base:], values, strict=False)]
        batch = batch_of(new)
        batch[:8] = base.to_bytes(8)
        content = memoryview(bytes(batch))
        found = by_offset.apply(read_header(content), content)
        assert found == by_key.apply(read_header(content), content)
        kept += found is not None
    assert kept


Pair = tuple[bytes | None, bytes | None]


def messages(*pairs: Pair, base: int = 10, **fields: int) -> bytes:
    records = [
        Record(base + index, NOW_MS + index, 0, key, value, [])
        for index, (key, value) in enumerate(pairs)
    ]
    return build_message_set(records, **fields)  # type: ignore[arg-type]  # passed on


def offset_map(newest: dict[bytes, int], latest: int = 1000) -> OffsetMap:
    offsets = OffsetMap(1 << 20)
    offsets.put_all(list(newest), list(newest.values()), 0)
    offsets.latest_offset = latest
    return offsets


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_a_compressed_set_keeps_offsets_timestamps_and_codec(magic: int, codec: int) -> None:
    pairs = ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (None, b"4"), (b"c", b"5"), (b"c", b"6"))
    content = messages(*pairs, magic=magic, codec=codec)
    before = {record.offset: record for record in read_records(content)}
    kept = filter_old(memoryview(content), offset_map({b"a": 12, b"b": 11, b"c": 99}))
    assert kept is not None
    assert list(read_records(kept.content)) == [before[11], before[12]]
    header = read_legacy_header(kept.content)
    assert (header.magic, header.codec, header.last_offset) == (magic, codec, 12)
    assert kept[1:] == (12, NOW_MS + 2 if magic else -1)


def test_the_time_of_the_append_stays() -> None:
    content = messages(
        (b"a", b"1"), (b"b", b"2"), magic=1, codec=GZIP, timestamp_type=1, log_append_time=77
    )
    kept = filter_old(memoryview(content), offset_map({b"a": 10, b"b": 50}))
    assert kept is not None
    (record,) = read_records(kept.content)
    assert (record.offset, record.timestamp, record.timestamp_type) == (10, 77, 1)
    assert kept.max_timestamp == 77


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_what_all_stays_keeps_its_bytes(codec: int) -> None:
    content = messages((b"a", None), magic=1, codec=codec)
    unchanged = (content, 10, NOW_MS)
    assert filter_old(memoryview(content), offset_map({b"a": 10})) == unchanged
    # Above the map nothing is known, of records without a key either.
    content = messages((None, b"1"), (b"a", b"2"), base=9, magic=1, codec=GZIP)
    assert filter_old(memoryview(content), offset_map({b"a": 3}, latest=8)) == (
        content,
        10,
        NOW_MS + 1,
    )


def test_an_older_or_keyless_message_goes() -> None:
    offsets = offset_map({b"a" * 40: 11})
    assert filter_old(memoryview(messages((b"a" * 40, b"1"), magic=0)), offsets) is None
    assert filter_old(memoryview(messages((None, b"1"), magic=0)), offsets) is None


def compact(log: Log, first_dirty: int, now_ms: int) -> int:
    compaction = Compaction(
        log,
        first_dirty_offset=first_dirty,
        uncleanable_offset=log.local.active.base_offset,
        memory_bytes=1 << 20,
        now_ms=now_ms,
    )
    compaction.run()
    assert compaction.error is None
    assert compaction.commit(now_ms)
    compaction.sync()
    return compaction.end_offset


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_a_deleted_key_does_not_come_back_from_old_messages(codec: int) -> None:
    manager = manager_on(MemoryFileSystem(), cleanup_policy=("compact",))
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    pairs = ((b"gone", b"1"), (b"kept", b"2"), (b"other", b"3"))
    log.append_as_follower(messages(*pairs, base=0, magic=1, codec=codec), now_ms=NOW_MS)
    append(log, [(NOW_MS, b"gone", None, [])])
    append(log, [(NOW_MS, b"other", b"4", [])])
    log.roll(NOW_MS)
    end = compact(log, 0, NOW_MS)
    rows = [(record.offset, record.key) for record in records_in(log)]
    assert rows == [(1, b"kept"), (3, b"gone"), (4, b"other")]
    append(log, [(NOW_MS, b"more", b"5", [])])
    log.roll(NOW_MS)
    compact(log, end, NOW_MS + 2 * DAY)
    rows = [(record.offset, record.key) for record in records_in(log)]
    assert rows == [(1, b"kept"), (4, b"other"), (5, b"more")]


def test_no_offset_below_its_segment_is_kept() -> None:
    """The log start of the leader was within a compressed set when this replica began: recovery
    would take the set for damage, and delete what is behind it."""
    fs = MemoryFileSystem()
    log = manager_on(fs, cleanup_policy=("compact",)).get_or_create("t", 0, now_ms=NOW_MS)
    log.truncator.truncate_fully_and_start_at(7)
    pairs = ((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"c", b"4"))
    log.append_as_follower(messages(*pairs, base=5, magic=1, codec=GZIP), now_ms=NOW_MS)
    append(log, [(NOW_MS, b"c", b"5", [])])
    log.roll(NOW_MS)
    append(log, [(NOW_MS, b"d", b"6", [])])
    compact(log, 7, NOW_MS)
    log.flusher.flush(NOW_MS)
    fs.remove(f"{log.path}/00000000000000000007.index")
    again = manager_on(fs, cleanup_policy=("compact",)).get("t", 0)
    assert again is not None
    rows = [(record.offset, record.key) for record in records_in(again, start=0)]
    assert rows == [(9, b"c"), (10, b"d")]
