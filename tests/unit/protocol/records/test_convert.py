"""From one magic to another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records.batch import check_crc, read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.convert import (
    DownConverter,
    down_convert,
    read_message_set,
    up_convert,
)
from ottla.protocol.records.errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    InvalidRecordError,
    UnsupportedCompressionError,
    UnsupportedFormatError,
)
from ottla.protocol.records.legacy import build_message_set, read_legacy_header
from ottla.protocol.records.reader import iterate_entries, read_records
from ottla.protocol.records.record import NewRecord, Record
from tests.doubles.record_strategies import as_rows, new_records

RECORDS: list[NewRecord] = [
    (1000 + index, b"k%d" % index, b"v" * 10, [("h", b"x")]) for index in range(10)
]
BATCH = build_batch(RECORDS, base_offset=100)
MARKER = end_transaction_marker(
    committed=True,
    coordinator_epoch=1,
    producer_id=1,
    producer_epoch=0,
    timestamp_ms=1,
    base_offset=110,
)


def without_headers(rows: list[Record], magic: int) -> list[Record]:
    stripped = [row._replace(headers=[]) for row in rows]
    if magic == 0:
        return [row._replace(timestamp=-1, timestamp_type=-1) for row in stripped]
    return stripped


@settings(max_examples=50, deadline=None)
@given(new_records(), st.integers(0, 3), st.integers(0, 1), st.integers(0, 1 << 60))
def test_down_keeps_everything_that_the_format_has(
    records: list[NewRecord], codec: int, magic: int, first: int
) -> None:
    batch = build_batch(records, codec=codec, base_offset=first)
    converted = b"".join(down_convert(batch, magic))
    assert list(read_records(converted)) == without_headers(as_rows(records, first), magic)
    assert {header.codec for _, header in iterate_entries(converted)} == {codec}


@settings(max_examples=50, deadline=None)
@given(new_records(with_headers=False), st.integers(0, 3), st.integers(0, 1))
def test_up_keeps_everything_and_assigns_offsets(
    records: list[NewRecord], codec: int, magic: int
) -> None:
    rows = as_rows(records, 7)
    built = build_message_set(rows, magic=magic, codec=codec)
    batch = up_convert(built, base_offset=50, leader_epoch=3)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert (header.codec, header.partition_leader_epoch) == (codec, 3)
    timestamps = [row.timestamp if magic else -1 for row in rows]
    wanted = [
        Record(50 + index, timestamps[index], 0, row.key, row.value, [])
        for index, row in enumerate(rows)
    ]
    assert list(read_records(batch)) == wanted


def test_up_from_0_to_1() -> None:
    built = build_message_set(as_rows(RECORDS), magic=0, codec=2)
    converted = up_convert(built, 1, base_offset=5, timestamp_type=1, log_append_time=99)
    header = read_legacy_header(converted)
    assert (header.magic, header.codec, header.last_offset) == (1, 2, 14)
    assert {row.timestamp for row in read_records(converted)} == {99}


def test_up_can_change_the_codec_and_stamp() -> None:
    built = build_message_set(as_rows(RECORDS), magic=1, codec=1)
    batch = up_convert(built, codec=4, timestamp_type=1, log_append_time=123)
    assert read_header(batch).codec == 4
    assert {row.timestamp for row in read_records(batch)} == {123}


def test_up_does_not_go_down() -> None:
    with pytest.raises(UnsupportedFormatError):
        up_convert(build_message_set(as_rows(RECORDS), magic=1), 0)


def test_markers_vanish_on_the_way_down() -> None:
    assert list(down_convert(MARKER, 1)) == []
    converted = b"".join(down_convert(BATCH + MARKER, 1))
    assert len(list(read_records(converted))) == 10


def test_older_batches_pass_as_they_are() -> None:
    old = build_message_set(as_rows(RECORDS), magic=0, codec=1)
    assert b"".join(down_convert(old, 1)) == old
    assert b"".join(down_convert(old, 0)) == old
    assert b"".join(down_convert(BATCH, 2)) == BATCH
    assert b"".join(down_convert(MARKER, 2)) == MARKER


def test_from_1_to_0() -> None:
    old = build_message_set(as_rows(RECORDS, 5), magic=1, codec=3)
    converted = b"".join(down_convert(memoryview(old), 0))
    assert list(read_records(converted)) == without_headers(as_rows(RECORDS, 5), 0)


def test_converted_records_are_counted() -> None:
    packed = build_batch(RECORDS, base_offset=110, codec=1)
    old = build_message_set(as_rows(RECORDS, 5), magic=1)
    converter = converter_of(BATCH + MARKER + packed + old, first_offset=104)
    while converter.next():
        pass
    assert converter.records == 6 + 10, "those of old messages and of markers are not converted"


def test_records_before_the_first_offset_are_dropped_if_not_compressed() -> None:
    converted = b"".join(down_convert(BATCH, 1, first_offset=104))
    assert [row.offset for row in read_records(converted)] == list(range(104, 110))
    packed = build_batch(RECORDS, base_offset=100, codec=1)
    converted = b"".join(down_convert(packed, 1, first_offset=104))
    assert [row.offset for row in read_records(converted)] == list(range(100, 110))
    assert list(down_convert(BATCH, 1, first_offset=110)) == []


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_cannot_go_down(magic: int) -> None:
    with pytest.raises(UnsupportedCompressionError, match="Fetch version 10"):
        list(down_convert(build_batch(RECORDS, codec=4), magic))


def test_what_is_before_a_batch_of_zstd_goes_down() -> None:
    """A consumer reads up to it, and gets the error with its next request; as in Kafka."""
    packed = build_batch(RECORDS, base_offset=110, codec=4)
    converted = b"".join(down_convert(BATCH + packed + packed, 1))
    assert [row.offset for row in read_records(converted)] == list(range(100, 110))


def many_batches() -> bytes:
    return b"".join(build_batch(RECORDS, base_offset=10 * index) for index in range(20))


def test_chunks_hold_whole_messages_and_end_when_full() -> None:
    chunks = list(down_convert(many_batches(), 1, chunk_bytes=1000))
    assert len(chunks) == 7
    offsets = []
    for chunk in chunks:
        offsets += [row.offset for row in read_records(chunk, allow_partial=False)]
    assert offsets == list(range(200))
    assert all(1000 <= len(chunk) < 1500 for chunk in chunks[:-1])


def converter_of(content: bytes, to_magic: int = 1, first_offset: int = 0) -> DownConverter:
    def read(position: int, length: int) -> bytes:
        reads.append(length)
        return content[position : position + length]

    reads.clear()
    return DownConverter(read, len(content), to_magic, first_offset)


reads: list[int] = []


def test_a_large_uncompressed_batch_is_read_and_converted_in_windows() -> None:
    rows = [(number, b"k", b"v" * (number % 3_000), []) for number in range(1_000)]
    rows[500] = (500, b"k", b"long" * 100_000, [])  # longer than a window
    batch = build_batch(rows)
    converter = converter_of(batch + batch)
    chunks = []
    while chunk := converter.next():
        chunks.append(chunk)
    found = list(read_records(b"".join(chunks)))
    assert [row.value for row in found] == [row[2] for row in rows] * 2
    usual = [chunk for chunk in chunks if len(chunk) < 400_000]
    assert len(usual) > 5
    assert max(map(len, usual)) < 3 * 128 * 1024
    assert sorted(reads)[-3] <= 128 * 1024, "only the long records are read in one go"


def test_a_converter_begins_again() -> None:
    converter = converter_of(many_batches())
    first = converter.next(1)
    assert len(list(read_records(first))) == 10, "of one batch"
    converter.next()
    converter.restart()
    assert converter.next(1) == first


@pytest.mark.parametrize("change", ["more", "fewer", "longer"])
def test_a_batch_whose_records_do_not_fit_its_header_is_an_error(change: str) -> None:
    batch = bytearray(build_batch([(1, None, b"one", []), (2, None, b"two", [])]))
    if change == "longer":
        batch[61] += 100
    else:
        batch[57:61] = (3 if change == "more" else 1).to_bytes(4, "big")
    with pytest.raises(InvalidRecordError):
        converter_of(bytes(batch)).next()


def test_it_is_lazy() -> None:
    damaged = bytearray(many_batches())
    damaged[-1] = 0xFF
    damaged[-20] = 0xFF
    chunks = down_convert(damaged, 1, chunk_bytes=1)
    for _ in range(19):
        next(chunks)
    with pytest.raises(InvalidRecordError):
        next(chunks)


def test_partial_batch_at_the_end_is_skipped() -> None:
    converted = b"".join(down_convert(BATCH + BATCH[:50], 0))
    assert len(list(read_records(converted))) == 10


def test_bombs_are_bounded_both_ways() -> None:
    bomb = build_batch([(0, None, bytes(1_000_000), None)], codec=1)
    with pytest.raises(DecompressedTooLargeError):
        list(down_convert(bomb, 1, max_decompressed_bytes=1000))
    old = build_message_set([Record(0, 0, 0, None, bytes(1_000_000), [])], magic=1, codec=1)
    with pytest.raises(DecompressedTooLargeError):
        up_convert(old, max_decompressed_bytes=1000)
    plain = build_message_set(as_rows(RECORDS), magic=1)
    with pytest.raises(DecompressedTooLargeError):
        up_convert(plain, max_decompressed_bytes=100)


ONE = build_message_set(as_rows(RECORDS), magic=1, codec=1)
PLAIN = build_message_set(as_rows(RECORDS), magic=1)
OLDER = build_message_set(as_rows(RECORDS), magic=0)


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [
        (b"", "no messages"),
        (ONE + ONE, "not alone"),
        (PLAIN + ONE, "not alone"),
        (PLAIN + OLDER, "mixed"),
        (PLAIN + BATCH, "among older"),
        (BATCH, "among older"),
    ],
)
def test_what_an_old_producer_may_not_send(buffer: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        read_message_set(buffer)


def test_old_producers_data_is_checked() -> None:
    with pytest.raises(CorruptRecordError):
        read_message_set(PLAIN + PLAIN[:-1])
    damaged = bytearray(PLAIN)
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        read_message_set(damaged)
    magic, codec, records = read_message_set(ONE)
    assert (magic, codec, len(records)) == (1, 1, 10)
