"""Message sets of magic 0 and 1."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records.compression import compress, decompress
from ottla.protocol.records.errors import (
    CorruptRecordError,
    InvalidRecordError,
    RecordsError,
    UnsupportedCompressionError,
)
from ottla.protocol.records.legacy import (
    base_offset,
    build_message_set,
    check_legacy_crc,
    encode_message,
    iterate_legacy,
    read_legacy,
    read_legacy_header,
)
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import NewRecord, Record
from tests.doubles.record_strategies import as_rows, new_records

ROWS = [Record(70 + index, 1000 + index, 0, b"k%d" % index, b"v" * index, []) for index in range(5)]


def expected(rows: list[Record], magic: int) -> list[Record]:
    if magic == 1:
        return rows
    return [row._replace(timestamp=-1, timestamp_type=-1) for row in rows]


@settings(max_examples=50, deadline=None)
@given(
    new_records(with_headers=False), st.integers(0, 3), st.integers(0, 1), st.integers(0, 1 << 60)
)
def test_what_is_built_is_read_again(
    records: list[NewRecord], codec: int, magic: int, first: int
) -> None:
    rows = as_rows(records, first)
    built = build_message_set(rows, magic=magic, codec=codec)
    assert list(read_records(built)) == expected(rows, magic)
    entries = list(iterate_legacy(built, allow_partial=False))
    assert len(entries) == (1 if codec else len(rows))
    for position, header in entries:
        check_legacy_crc(built, position, header)
    assert base_offset(built, *entries[0]) == first
    assert entries[-1][1].last_offset == rows[-1].offset


def test_inner_offsets_of_magic_1_are_relative_and_of_magic_0_absolute() -> None:
    gaps = [ROWS[0], ROWS[3]]
    for magic, wanted in ((1, [0, 3]), (0, [70, 73])):
        wrapper = build_message_set(gaps, magic=magic, codec=1)
        header = read_legacy_header(wrapper)
        overhead = 34 if magic else 26
        inner = decompress(1, wrapper[overhead:])
        assert [found.last_offset for _, found in iterate_legacy(inner)] == wanted
        assert header.last_offset == 73
        assert header.max_timestamp == (1003 if magic else -1)
        assert list(read_records(wrapper)) == expected(gaps, magic)


def test_log_append_time_of_a_wrapper_goes_to_all() -> None:
    built = build_message_set(ROWS, magic=1, codec=2, timestamp_type=1, log_append_time=777)
    assert {(row.timestamp, row.timestamp_type) for row in read_records(built)} == {(777, 1)}
    # A broker stamps the wrapper only: what the inner messages say does not count.
    inner = build_message_set(ROWS, magic=1)
    wrapper = encode_message(74, 1, 0x08 | 1, 888, None, compress(1, inner))
    assert {(row.timestamp, row.timestamp_type) for row in read_records(wrapper)} == {(888, 1)}


def test_wrapper_offset_zero_of_old_librdkafka() -> None:
    inner = build_message_set(
        [row._replace(offset=index) for index, row in enumerate(ROWS)], magic=1
    )
    wrapper = encode_message(0, 1, 1, 1004, None, compress(1, inner))
    assert [row.offset for row in read_records(wrapper)] == [0, 1, 2, 3, 4]


INNER = build_message_set(ROWS, magic=1)


@pytest.mark.parametrize(
    ("wrapper", "reason"),
    [
        (encode_message(3, 1, 1, 0, None, compress(1, INNER)), "less than"),
        (encode_message(9, 1, 1, 0, None, None), "no value"),
        (encode_message(9, 1, 1, 0, None, compress(1, b"")), "no messages"),
        (encode_message(9, 1, 1, 0, None, compress(1, INNER[:20])), "no messages"),
        (encode_message(9, 0, 1, 0, None, compress(1, INNER)), "inside of a wrapper"),
        (
            encode_message(9, 1, 1, 0, None, compress(1, encode_message(9, 1, 1, 0, None, b""))),
            "inside of a compressed",
        ),
    ],
)
def test_wrappers_that_break_the_rules(wrapper: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        list(read_records(wrapper))


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_does_not_go_with_old_magics(magic: int) -> None:
    with pytest.raises(UnsupportedCompressionError):
        build_message_set(ROWS, magic=magic, codec=4)
    with pytest.raises(InvalidRecordError):
        read_legacy(encode_message(9, magic, 4, 0, None, compress(4, INNER)))


def test_unknown_codec() -> None:
    with pytest.raises(UnsupportedCompressionError):
        read_legacy(encode_message(9, 1, 6, 0, None, b"abc"))


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_every_damaged_byte_behind_the_crc_is_noticed(magic: int, codec: int) -> None:
    built = build_message_set(ROWS[:1], magic=magic, codec=codec)
    for position in range(8, len(built)):  # the offset is not covered: brokers assign it
        damaged = bytearray(built)
        damaged[position] ^= 0x40
        with pytest.raises(RecordsError):
            list(read_records(damaged, allow_partial=False))


def test_damaged_inner_crc_is_noticed() -> None:
    inner = bytearray(INNER)
    inner[-1] ^= 1
    wrapper = encode_message(74, 1, 1, 0, None, compress(1, bytes(inner)))
    header = read_legacy_header(wrapper)
    check_legacy_crc(wrapper, 0, header)
    with pytest.raises(CorruptRecordError, match="stored CRC"):
        read_legacy(wrapper)
    assert len(read_legacy(wrapper, check_inner_crc=False)) == 5


def resized(entry: bytes, key_length: int | None, value_length: int | None) -> bytes:
    changed = bytearray(entry)
    if key_length is not None:
        changed[26:30] = key_length.to_bytes(4, "big", signed=True)
    if value_length is not None:
        changed[-5:-1] = value_length.to_bytes(4, "big", signed=True)
    return bytes(changed)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 6, 1 << 30, (1 << 31) - 1])
def test_lengths_inside_of_a_message_that_do_not_fit(length: int) -> None:
    entry = encode_message(1, 1, 0, 0, b"k", b"v")
    for changed in (resized(entry, length, None), resized(entry, None, length)):
        with pytest.raises(InvalidRecordError):
            read_legacy(changed)


def test_negative_lengths_are_null() -> None:
    entry = encode_message(1, 1, 0, 0, b"", None)
    assert read_legacy(resized(entry, -2, None))[0].key is None


def test_headers_that_are_not_whole_or_not_ours() -> None:
    entry = encode_message(1, 1, 0, 0, b"k", b"v")
    for size in range(26):
        with pytest.raises(CorruptRecordError):
            read_legacy_header(entry[:size])
    newer = bytearray(entry)
    newer[16] = 2
    with pytest.raises(CorruptRecordError, match="magic byte 2"):
        read_legacy_header(newer)
    small = bytearray(entry)
    small[8:12] = (21).to_bytes(4, "big")
    with pytest.raises(CorruptRecordError, match="less than its header"):
        read_legacy_header(small)
    with pytest.raises(CorruptRecordError, match="beyond"):
        read_legacy(entry[:-1])
    with pytest.raises(CorruptRecordError, match="beyond"):
        check_legacy_crc(entry[:-1], 0, read_legacy_header(entry))


def test_partial_entries_at_the_end() -> None:
    built = build_message_set(ROWS, magic=0)
    for cut in range(1, 20):
        assert len(list(iterate_legacy(built[:-cut]))) == 4
        with pytest.raises(CorruptRecordError):
            list(iterate_legacy(built[:-cut], allow_partial=False))


def test_no_messages_are_no_set() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_message_set([], magic=1)


def test_header_has_the_attributes_of_a_batch() -> None:
    header = read_legacy_header(build_message_set(ROWS, magic=1, codec=3))
    assert header.codec == 3
    assert not header.is_control
    assert not header.is_transactional
    assert not header.has_producer_id
    assert (header.producer_id, header.producer_epoch) == (-1, -1)
    assert (header.base_sequence, header.last_sequence) == (-1, -1)
    assert header.partition_leader_epoch == -1
    assert header.delete_horizon_ms is None
    assert header.next_offset == 75
