"""Columns: the same as rows, cut at offsets, without what is to be skipped."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records.builder import build_batch, rebuild_batch
from ottla.protocol.records.columns import decode_columns
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.reader import read_batch, read_header, read_records
from ottla.protocol.records.record import NewRecord, Record
from tests.doubles.record_strategies import as_rows, new_records

RECORDS: list[NewRecord] = [(index, b"k", b"%d" % index, None) for index in range(4)]
MARKER = end_transaction_marker(
    committed=True,
    coordinator_epoch=0,
    producer_id=1,
    producer_epoch=0,
    timestamp_ms=0,
    base_offset=8,
)
BUFFER = (
    build_message_set(as_rows(RECORDS), magic=1, codec=1)
    + build_batch(RECORDS, base_offset=4)
    + MARKER
    + build_batch(
        [(0, None, b"x", [("h", b"1")])],
        base_offset=9,
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
    )
)


def rows_of(buffer: bytes, **options: int) -> list[Record]:
    columns = decode_columns(buffer, **options)
    headers = columns.headers or [[] for _ in columns.offsets]
    rows = zip(
        columns.offsets,
        columns.timestamps,
        columns.timestamp_types,
        columns.keys,
        columns.values,
        headers,
        strict=True,
    )
    assert len(columns) == len(columns.offsets)
    return [Record(*row) for row in rows]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(new_records(), st.integers(0, 4)), min_size=1, max_size=3))
def test_columns_are_the_rows(batches: list[tuple[list[NewRecord], int]]) -> None:
    buffer = b""
    offset = 0
    for records, codec in batches:
        buffer += build_batch(records, codec=codec, base_offset=offset)
        offset += len(records)
    assert rows_of(buffer) == list(read_records(buffer))
    assert decode_columns(buffer).next_offset == offset


@pytest.mark.parametrize("start", range(12))
@pytest.mark.parametrize("stop", [None, *range(12)])
def test_only_offsets_that_were_requested(start: int, stop: int | None) -> None:
    wanted = [
        row
        for row in read_records(BUFFER)
        if row.offset >= start and (stop is None or row.offset < stop)
    ]
    columns = decode_columns(BUFFER, from_offset=start, up_to_offset=stop)
    assert columns.offsets == [row.offset for row in wanted]
    assert columns.values == [row.value for row in wanted]
    assert (columns.headers is None) == (9 not in columns.offsets)
    if stop is None:
        assert columns.next_offset == 10
    elif start < stop:
        assert columns.next_offset == min(10, stop)


def test_next_offset_goes_past_markers_and_compacted_ends() -> None:
    assert decode_columns(MARKER).next_offset == 9
    batch = build_batch(RECORDS, base_offset=20)
    compacted = rebuild_batch(read_header(batch), read_batch(batch)[:1])
    columns = decode_columns(compacted)
    assert (columns.offsets, columns.next_offset) == ([20], 24)
    assert decode_columns(b"").next_offset is None
    assert decode_columns(compacted[:-1]).next_offset is None


def test_batches_can_be_skipped() -> None:
    columns = decode_columns(BUFFER, skip=lambda header: header.producer_id == 5)
    assert columns.offsets == list(range(8))
    assert columns.next_offset == 10


def test_crc_is_checked_by_default() -> None:
    for buffer in (build_batch(RECORDS), build_message_set(as_rows(RECORDS), magic=1)):
        damaged = bytearray(buffer)
        damaged[-1 if damaged[16] == 1 else -2] ^= 1
        with pytest.raises(CorruptRecordError):
            decode_columns(damaged)
        assert len(decode_columns(damaged, check_crc=False)) == 4


def test_large_batches_are_the_same_with_and_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    records: list[NewRecord] = [
        (index * 7, None if index % 5 else b"key %d" % index, b"v" * (index % 200), None)
        for index in range(3000)
    ]
    batch = build_batch(records, codec=3, base_offset=1 << 40)
    with_numpy = rows_of(batch)
    monkeypatch.delitem(sys.modules, "numpy")
    assert rows_of(batch) == with_numpy == as_rows(records, 1 << 40)
