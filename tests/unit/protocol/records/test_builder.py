"""Building batches, and rebuilding them as compaction does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records.batch import check_crc, read_header
from ottla.protocol.records.builder import build_batch, rebuild_batch
from ottla.protocol.records.reader import read_batch, read_records
from ottla.protocol.records.record import NewRecord
from tests.doubles.record_strategies import as_rows, new_records


@settings(max_examples=60, deadline=None)
@given(new_records(), st.integers(0, 4), st.integers(0, 1 << 60))
def test_what_is_built_is_read_again(
    records: list[NewRecord], codec: int, base_offset: int
) -> None:
    batch = build_batch(records, codec=codec, base_offset=base_offset)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert header.codec == codec
    assert header.max_timestamp == max(record[0] for record in records)
    assert list(read_records(batch)) == as_rows(records, base_offset)


def test_timestamps_further_apart_than_64_bits_wrap_as_in_java() -> None:
    records: list[NewRecord] = [
        (-(1 << 63), None, b"", None),
        ((1 << 63) - 1, None, b"", None),
    ]
    assert [record.timestamp for record in read_records(build_batch(records))] == [
        -(1 << 63),
        (1 << 63) - 1,
    ]


def test_no_records_are_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])


def test_log_append_time_is_the_max_timestamp() -> None:
    batch = build_batch([(5, None, b"x", None)], timestamp_type=1, log_append_time=77)
    header = read_header(batch)
    assert (header.timestamp_type, header.max_timestamp, header.base_timestamp) == (1, 77, 5)
    assert [record.timestamp for record in read_records(batch)] == [77]


RECORDS: list[NewRecord] = [(100 + index, b"%d" % index, b"v", None) for index in range(6)]
ORIGINAL = build_batch(
    RECORDS,
    base_offset=50,
    codec=1,
    producer_id=3,
    producer_epoch=1,
    base_sequence=9,
    transactional=True,
    leader_epoch=4,
)


@pytest.mark.parametrize("codec", [None, 0, 4])
def test_rebuilding_keeps_offsets_and_producer_state(codec: int | None) -> None:
    header = read_header(ORIGINAL)
    kept = [record for record in read_batch(ORIGINAL) if record.offset in (51, 54)]
    rebuilt = rebuild_batch(header, kept, codec=codec)
    after = read_header(rebuilt)
    check_crc(rebuilt, 0, after)
    assert read_batch(rebuilt) == kept
    assert after.record_count == 2
    assert after.codec == (1 if codec is None else codec)
    assert (after.base_offset, after.last_offset) == (50, 55)
    assert (after.producer_id, after.producer_epoch, after.last_sequence) == (3, 1, 14)
    assert after.partition_leader_epoch == 4
    assert after.is_transactional
    assert after.max_timestamp == 104


def test_rebuilding_with_nothing_left_keeps_the_header() -> None:
    rebuilt = rebuild_batch(read_header(ORIGINAL), [])
    header = read_header(rebuilt)
    check_crc(rebuilt, 0, header)
    assert header.record_count == 0
    assert (header.last_offset, header.last_sequence) == (55, 14)
    assert read_batch(rebuilt) == []


def test_delete_horizon_stands_in_the_base_timestamp_and_stays() -> None:
    records = read_batch(ORIGINAL)[:2]
    first = rebuild_batch(read_header(ORIGINAL), records, delete_horizon_ms=999_999)
    assert read_header(first).delete_horizon_ms == 999_999
    assert read_batch(first) == records
    again = rebuild_batch(read_header(first), records[:1])
    assert read_header(again).delete_horizon_ms == 999_999
    assert read_batch(again) == records[:1]


def test_rebuilding_keeps_log_append_time() -> None:
    batch = build_batch(RECORDS, timestamp_type=1, log_append_time=77)
    rebuilt = rebuild_batch(read_header(batch), read_batch(batch)[3:4])
    assert read_header(rebuilt).max_timestamp == 77
    assert [record.timestamp for record in read_batch(rebuilt)] == [77]
