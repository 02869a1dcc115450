"""One pass over a segment: whole batches are taken in, the first bad one ends it."""

from random import Random
from typing import Any

import pytest

from ottla.protocol.records.batch import BATCH_OVERHEAD, MAX_SEQUENCE, read_header
from ottla.protocol.records.builder import rebuild_batch
from ottla.protocol.records.crc32c import crc32c
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.record import Record
from ottla.storage.config import LogConfig
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.log.batch_scan import CorruptLog
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.producer.producer_entry import AppendedBatch
from ottla.storage.producer.producer_state import ProducerState
from ottla.storage.recovery import recovery_scan
from ottla.storage.recovery.recovery_scan import SegmentScan
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, batch_of, marker


def scan_of(*parts: bytes, base: int = 0, fs: MemoryFileSystem | None = None) -> SegmentScan:
    fs = fs or MemoryFileSystem()
    fs.make_directory("/d")
    segment = Segment(
        fs, "/d", base, LogConfig(index_interval_bytes=100), OpenFiles(), created_ms=0, sizes={}
    )
    segment.create_files()
    for part in parts:
        segment.log.append(part)
    segment.reset_indexes()
    epochs = LeaderEpochs(fs, "/d/leader-epoch-checkpoint")
    return SegmentScan(segment, ProducerState(fs, "t-0", "/d"), epochs, 0, base)


def some_batches(count: int, *, producer: bool = False) -> list[bytearray]:
    random = Random(7)
    found = []
    for offset in range(count):
        records = [(NOW_MS + offset, b"k", bytes(random.randint(0, 600)), [])]
        fields = {"producer_id": 9, "producer_epoch": 0, "base_sequence": offset}
        found.append(
            batch_of(
                records, base_offset=offset, leader_epoch=offset // 10, **fields if producer else {}
            )
        )
    return found


@pytest.fixture
def slow_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The batches that were not applied in the loop over a chunk; recovery reads many."""
    taken: list[str] = []
    for name in ("_scan_one", "_replay"):
        before = getattr(SegmentScan, name)

        def counted(*arguments: object, name: str = name, before: Any = before) -> None:
            taken.append(name)
            before(*arguments)

        monkeypatch.setattr(SegmentScan, name, counted)
    return taken


def test_a_batch_of_any_size_is_applied_in_the_loop(slow_ways: list[str]) -> None:
    empty = rebuild_batch(read_header(batch_of(3, base_offset=5)), [])
    for base, content in (
        (0, batch_of(1)),
        (5, batch_of(3, base_offset=5)),
        (5, empty),
        (5, batch_of(1, base_offset=5 + MAX_RELATIVE_OFFSET)),
    ):
        scan = scan_of(content, base=base)
        scan.run()
        assert scan.position == len(content)
    assert slow_ways == []


def test_the_next_batches_of_a_producer_are_applied_in_the_loop(slow_ways: list[str]) -> None:
    sequences = (MAX_SEQUENCE, 0, 1, 2)
    batches = [
        batch_of(1, base_offset=n, producer_id=0, producer_epoch=3, base_sequence=sequence)
        for n, sequence in enumerate(sequences)
    ]
    scan = scan_of(*batches)
    scan.run()
    assert slow_ways == ["_replay"], "the first one makes the entry"
    assert [each.first_sequence for each in scan._producers.producers[0].batches] == [*sequences]
    slow_ways.clear()
    scan = scan_of(batches[0], batch_of(1, base_offset=1), batch_of(1, base_offset=2))
    scan.run()
    assert slow_ways == ["_replay"], "the others have no producer"


def test_a_batch_outside_the_open_transaction_of_its_producer() -> None:
    outside = batch_of(1, base_offset=1, producer_id=9, producer_epoch=0, base_sequence=1)
    scan = scan_of(transactional(0, 9), outside)
    scan.run()
    assert scan.next_offset == 2
    assert scan._producers.open_transactions() == {}
    assert scan._producers.producers[9].last_sequence == 1


@pytest.mark.parametrize("chunk", [61, 200, 700, 5000, 1 << 20])
@pytest.mark.parametrize("producer", [False, True])
def test_everything_is_taken_in(
    monkeypatch: pytest.MonkeyPatch, chunk: int, producer: bool
) -> None:
    monkeypatch.setattr(recovery_scan, "CHUNK_BYTES", chunk)
    batches = some_batches(50, producer=producer)
    scan = scan_of(*batches)
    scan.run()
    assert (scan.next_offset, scan.position) == (50, sum(map(len, batches)))
    assert scan._epochs.entries == [(n, n * 10) for n in range(5)]
    segment = scan._segment
    assert segment.newest() == (NOW_MS + 49, 49)
    assert segment.offset_index.entries > 30
    for offset in range(50):
        place = segment.find_batch(offset)
        assert place is not None
        assert place.base_offset == offset
    if producer:
        entry = scan._producers.producers[9]
        assert [batch.first_sequence for batch in entry.batches] == [45, 46, 47, 48, 49]


@pytest.fixture(params=[1 << 20, 61, 200])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one chunk; each batch larger than one; a few batches in one, and the end of it in the
    middle of a batch."""
    monkeypatch.setattr(recovery_scan, "CHUNK_BYTES", request.param)


@pytest.mark.usefixtures("chunk_bytes")
@pytest.mark.parametrize("position", range(0, 100, 3))
def test_it_ends_at_the_first_bad_batch(position: int) -> None:
    batches = some_batches(10)
    batches[6][position % len(batches[6])] ^= 0xFF
    scan = scan_of(*batches)
    if position in (12, 15):  # epochs have no checksum either, and any one is possible
        scan.run()
        assert scan.next_offset == 10
        return
    with pytest.raises(CorruptLog) as caught:
        scan.run()
    assert caught.value.position == scan.position == sum(map(len, batches[:6]))
    assert scan.next_offset == 6


@pytest.mark.usefixtures("chunk_bytes")
def test_a_gap_of_compaction_is_no_damage() -> None:
    scan = scan_of(batch_of(5), batch_of(1, base_offset=90), batch_of(1, base_offset=99))
    scan.run()
    assert scan.next_offset == 100


@pytest.mark.usefixtures("chunk_bytes")
def test_a_gap_before_old_messages_is_no_damage() -> None:
    old = build_message_set([Record(9, NOW_MS, 0, b"k", bytes(60), [])], magic=1)
    scan = scan_of(batch_of(1, base_offset=5), old)
    scan.run()
    assert scan.next_offset == 10


@pytest.mark.parametrize("before", [0, 5])
def test_messages_of_an_old_format_are_read_once(before: int) -> None:
    """A segment may have millions of them."""
    old = [Record(offset, NOW_MS, 0, b"k", bytes(60), []) for offset in range(before, 1000)]
    fs = MemoryFileSystem()
    batches = [build_message_set(old, magic=1), bytes(batch_of(2, base_offset=1000))]
    scan = scan_of(*([bytes(batch_of(before))] if before else []), *batches, fs=fs)
    fs.calls.clear()
    scan.run()
    assert (scan.next_offset, scan.position) == (1002, scan._segment.size)
    assert [operation for operation, _ in fs.calls].count("pread") <= 6


@pytest.mark.usefixtures("chunk_bytes")
@pytest.mark.parametrize("following", [1, 89, 90])
def test_a_gap_is_damage_if_the_next_offset_is_lower(following: int) -> None:
    """No checksum covers the base offset."""
    scan = scan_of(batch_of(5), batch_of(1, base_offset=90), batch_of(1, base_offset=following))
    with pytest.raises(CorruptLog, match="unexpected offset 90 after 4"):
        scan.run()
    assert scan.next_offset == 5


@pytest.mark.usefixtures("chunk_bytes")
@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (3, "unexpected offset 3 after 4"),
        (MAX_RELATIVE_OFFSET + 1, "is too far from the base offset"),
    ],
)
def test_offsets_out_of_order_or_out_of_reach_are_bad(offset: int, reason: str) -> None:
    for base in (0, 1000):
        first = batch_of(5, base_offset=base)
        scan = scan_of(first, batch_of(1, base_offset=base + offset), base=base)
        with pytest.raises(CorruptLog) as caught:
            scan.run()
        assert base or reason in str(caught.value)
        assert scan.next_offset == base + 5


@pytest.mark.usefixtures("chunk_bytes")
def test_the_last_offset_that_a_segment_can_hold() -> None:
    for base in (0, 1000):
        last = base + MAX_RELATIVE_OFFSET
        scan = scan_of(batch_of(5, base_offset=base), batch_of(1, base_offset=last), base=base)
        scan.run()
        assert scan.next_offset == last + 1


@pytest.mark.usefixtures("chunk_bytes")
def test_a_batch_that_ends_before_it_begins_is_bad() -> None:
    batch = batch_of(1, base_offset=5)
    batch[23:27] = (-3 & 0xFFFFFFFF).to_bytes(4, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    scan = scan_of(batch_of(5), batch)
    with pytest.raises(CorruptLog):
        scan.run()
    assert scan.next_offset == 5


@pytest.mark.usefixtures("chunk_bytes")
def test_a_batch_that_compaction_has_emptied() -> None:
    empty = rebuild_batch(read_header(batch_of(3, base_offset=5, producer_id=9)), [])
    assert len(empty) == BATCH_OVERHEAD
    scan = scan_of(batch_of(5), empty, batch_of(1, base_offset=8))
    scan.run()
    assert scan.next_offset == 9


@pytest.mark.usefixtures("chunk_bytes")
def test_producers_are_taken_in_from_where_the_snapshot_ends() -> None:
    batches = [
        batch_of(1, base_offset=n, producer_id=n, producer_epoch=0, base_sequence=7)
        for n in range(5)
    ]
    scan = scan_of(*batches)
    scan.run()
    assert sorted(scan._producers.producers) == [0, 1, 2, 3, 4]
    scan = scan_of(*batches)
    scan._producers.end_offset = 3
    scan.run()
    assert sorted(scan._producers.producers) == [3, 4]
    assert scan._producers.producers[3].batches == [AppendedBatch(7, 7, 3, 3, NOW_MS)]


@pytest.mark.usefixtures("chunk_bytes")
def test_all_batches_of_one_producer() -> None:
    """Sequence numbers that wrap around, another epoch, a batch without a sequence number."""
    fields = {"producer_id": 0, "producer_epoch": 0}
    scan = scan_of(
        batch_of(2, base_offset=0, base_sequence=MAX_SEQUENCE - 3, **fields),
        batch_of(3, base_offset=2, base_sequence=MAX_SEQUENCE - 1, **fields),
        batch_of(2, base_offset=5, **fields),
    )
    scan.run()
    assert scan._producers.producers[0].batches == [
        AppendedBatch(MAX_SEQUENCE - 3, MAX_SEQUENCE - 2, 0, 1, NOW_MS + 1),
        AppendedBatch(MAX_SEQUENCE - 1, 0, 2, 4, NOW_MS + 2),
        AppendedBatch(-1, -1, 5, 6, NOW_MS + 1),
    ]
    scan = scan_of(
        batch_of(2, base_offset=0, base_sequence=0, **fields),
        batch_of(2, base_offset=2, base_sequence=0, producer_id=0, producer_epoch=1),
    )
    scan.run()
    entry = scan._producers.producers[0]
    assert (entry.epoch, entry.batches) == (1, [AppendedBatch(0, 1, 2, 3, NOW_MS + 1)])


@pytest.mark.usefixtures("chunk_bytes")
def test_an_unknown_leader_epoch_is_none() -> None:
    scan = scan_of(
        batch_of(1, leader_epoch=0),
        batch_of(1, base_offset=1, leader_epoch=4),
        batch_of(1, base_offset=2, leader_epoch=4),
        batch_of(1, base_offset=3, leader_epoch=2),
    )
    scan.run()
    assert scan._epochs.entries == [(0, 0), (4, 1)]


def test_old_messages_are_taken_in() -> None:
    old = build_message_set([Record(n, NOW_MS, 0, b"k", b"v", []) for n in range(3)], magic=1)
    scan = scan_of(old, batch_of(1, base_offset=3))
    scan.run()
    assert scan.next_offset == 4


def transactional(offset: int, producer_id: int) -> bytearray:
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    return batch_of(1, base_offset=offset, transactional=True, **fields)


def ended(offset: int, producer_id: int, *, committed: bool) -> bytearray:
    content = marker(producer_id, committed=committed)
    content[0:8] = offset.to_bytes(8, "big")
    return content


@pytest.mark.usefixtures("chunk_bytes")
def test_transactions_and_their_index() -> None:
    scan = scan_of(
        transactional(0, 9),
        ended(1, 9, committed=False),
        transactional(2, 8),
        transactional(3, 9),
        ended(4, 9, committed=False),
        ended(5, 8, committed=True),
        ended(6, 7, committed=False),
    )
    scan.run()
    assert scan._segment.txn_index.entries() == [(9, 0, 1, 2), (9, 3, 4, 2)]
    assert scan._producers.open_transactions() == {}


def test_a_marker_that_cannot_be_read_is_bad() -> None:
    odd = batch_of(
        [(NOW_MS, b"", b"", [])], producer_id=9, producer_epoch=0, transactional=True, control=True
    )
    scan = scan_of(odd)
    with pytest.raises(RecordsError):
        scan.run()
    assert scan.next_offset == 0
