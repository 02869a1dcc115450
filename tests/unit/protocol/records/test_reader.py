"""Reading buffers of whole batches."""

import pytest

from ottla.protocol.records.batch import read_header
from ottla.protocol.records.builder import assemble_batch, build_batch
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.errors import CorruptRecordError, DecompressedTooLargeError
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.reader import iterate_entries, read_batch, read_entry, read_records
from ottla.protocol.records.record import NewRecord, Record
from tests.doubles.record_strategies import as_rows

RECORDS: list[NewRecord] = [(index, b"k", b"%d" % index, None) for index in range(4)]
OLD = build_message_set(as_rows(RECORDS), magic=1, codec=1)
OLDEST = build_message_set(as_rows(RECORDS[:1], 4), magic=0)
NEW = build_batch(RECORDS, base_offset=5, codec=3)
MARKER = end_transaction_marker(
    committed=False,
    coordinator_epoch=0,
    producer_id=1,
    producer_epoch=0,
    timestamp_ms=0,
    base_offset=9,
)
MIXED = OLD + OLDEST + NEW + MARKER


def test_a_log_may_hold_every_magic() -> None:
    assert [header.magic for _, header in iterate_entries(MIXED)] == [1, 0, 2, 2]
    assert [record.offset for record in read_records(MIXED)] == list(range(9))
    everything = list(read_records(MIXED, include_control=True))
    assert [record.offset for record in everything] == list(range(10))


def test_position_says_where_to_begin() -> None:
    assert [header.magic for _, header in iterate_entries(MIXED, len(OLD))] == [0, 2, 2]


@pytest.mark.parametrize("cut", [1, 30, len(MARKER) - 1])
def test_cut_off_entry_at_the_end(cut: int) -> None:
    assert len(list(iterate_entries(MIXED[:-cut]))) == 3
    with pytest.raises(CorruptRecordError):
        list(iterate_entries(MIXED[:-cut], allow_partial=False))
    with pytest.raises(CorruptRecordError):
        list(read_records(MIXED[:-cut], allow_partial=False))


def test_unknown_magic_is_corrupt() -> None:
    newer = bytearray(MIXED)
    newer[len(OLD) + 16] = 3
    with pytest.raises(CorruptRecordError, match="magic 3"):
        list(iterate_entries(newer))


def test_what_stands_before_the_damage_is_read() -> None:
    damaged = bytearray(NEW + NEW)
    damaged[-1] ^= 1
    reader = read_records(damaged)
    assert [next(reader).offset for _ in range(4)] == [5, 6, 7, 8]
    with pytest.raises(CorruptRecordError, match="stored CRC"):
        next(reader)


def test_crc_checks_can_be_left_out() -> None:
    plain = bytearray(build_batch(RECORDS))
    plain[-2] ^= 1
    assert len(list(read_records(plain, check_crc=False))) == 4
    with pytest.raises(CorruptRecordError):
        list(read_records(plain))


def test_bound_holds_for_each_batch() -> None:
    batch = build_batch([(0, None, bytes(1000), None)], codec=1)
    assert len(list(read_records(batch * 5, max_decompressed_bytes=1100))) == 5
    with pytest.raises(DecompressedTooLargeError):
        list(read_records(batch, max_decompressed_bytes=1000))


def test_single_batches_and_entries() -> None:
    buffer = b"x" + NEW
    wanted = as_rows(RECORDS, 5)
    assert read_batch(buffer, 1) == wanted
    assert read_entry(buffer, 1, read_header(buffer, 1)) == wanted
    with pytest.raises(CorruptRecordError, match="beyond"):
        read_batch(NEW[:-1])


@pytest.mark.parametrize("codec", range(5))
def test_emptied_batch_of_any_codec_has_no_records(codec: int) -> None:
    batch = assemble_batch(
        b"",
        base_offset=5,
        last_offset_delta=3,
        base_timestamp=0,
        max_timestamp=0,
        record_count=0,
        attributes=codec,
    )
    assert list(read_records(batch)) == []


def test_records_do_not_share_their_lists() -> None:
    first, second, *_ = read_batch(NEW)
    first.headers.append(("mine", b""))
    assert second.headers == []
    assert isinstance(first, Record)
