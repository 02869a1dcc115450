"""Compaction of messages of magic 0 and 1, which an old log begins with."""

import pytest

from ottla.protocol.records.compression import GZIP, LZ4, NONE, SNAPPY
from ottla.protocol.records.legacy import build_message_set, read_legacy_header
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import Record
from ottla.storage.cleaner.compaction import Compaction
from ottla.storage.cleaner.offset_map import OffsetMap
from ottla.storage.cleaner.old_messages import filter_old
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, manager_on, records_in

DAY = 86_400_000
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
        uncleanable_offset=log.active_segment.base_offset,
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
    log.truncate_fully_and_start_at(7)
    pairs = ((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"c", b"4"))
    log.append_as_follower(messages(*pairs, base=5, magic=1, codec=GZIP), now_ms=NOW_MS)
    append(log, [(NOW_MS, b"c", b"5", [])])
    log.roll(NOW_MS)
    append(log, [(NOW_MS, b"d", b"6", [])])
    compact(log, 7, NOW_MS)
    log.flush(NOW_MS)
    fs.remove(f"{log.path}/00000000000000000007.index")
    again = manager_on(fs, cleanup_policy=("compact",)).get("t", 0)
    assert again is not None
    rows = [(record.offset, record.key) for record in records_in(again, start=0)]
    assert rows == [(9, b"c"), (10, b"d")]
