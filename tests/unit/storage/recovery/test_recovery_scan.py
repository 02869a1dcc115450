"""One pass over a segment: whole batches are taken in, the first bad one ends it."""

from random import Random

import pytest

from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.record import Record
from ottla.storage.config import LogConfig
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.log.batch_scan import CorruptLog
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.producer.producer_state import ProducerState
from ottla.storage.recovery import recovery_scan
from ottla.storage.recovery.recovery_scan import SegmentScan
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, batch_of, marker


def scan_of(*parts: bytes, base: int = 0) -> SegmentScan:
    fs = MemoryFileSystem()
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


@pytest.mark.parametrize("chunk", [200, 700, 5000, 1 << 20])
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
    for offset in range(50):
        place = segment.find_batch(offset)
        assert place is not None
        assert place.base_offset == offset
    if producer:
        entry = scan._producers.producers[9]
        assert [batch.first_sequence for batch in entry.batches] == [45, 46, 47, 48, 49]


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


def test_a_gap_of_compaction_is_no_damage() -> None:
    scan = scan_of(batch_of(5), batch_of(1, base_offset=90), batch_of(1, base_offset=99))
    scan.run()
    assert scan.next_offset == 100


def test_offsets_out_of_order_or_out_of_reach_are_bad() -> None:
    for bad, reason in (
        (3, "unexpected offset 3 after 4"),
        (MAX_RELATIVE_OFFSET + 1, "is too far from the base offset"),
    ):
        scan = scan_of(batch_of(5), batch_of(1, base_offset=bad))
        with pytest.raises(CorruptLog, match=reason):
            scan.run()
        assert scan.next_offset == 5


def test_old_messages_are_taken_in() -> None:
    old = build_message_set([Record(n, NOW_MS, 0, b"k", b"v", []) for n in range(3)], magic=1)
    scan = scan_of(old, batch_of(1, base_offset=3))
    scan.run()
    assert scan.next_offset == 4


def test_transactions_and_their_index() -> None:
    data = batch_of(1, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    end = marker(9, committed=False)
    end[0:8] = (1).to_bytes(8, "big")
    scan = scan_of(data, end)
    scan.run()
    (aborted,) = scan._segment.txn_index.entries()
    assert aborted == (9, 0, 1, 2)
    assert scan._producers.open_transactions() == {}


def test_a_marker_that_cannot_be_read_is_bad() -> None:
    odd = batch_of(
        [(NOW_MS, b"", b"", [])], producer_id=9, producer_epoch=0, transactional=True, control=True
    )
    scan = scan_of(odd)
    with pytest.raises(RecordsError):
        scan.run()
    assert scan.next_offset == 0
