"""Markers that end transactions."""

import pytest

from ottla.protocol.records.batch import check_crc, read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import (
    ABORT,
    COMMIT,
    EndTransactionMarker,
    control_type,
    end_transaction_marker,
    read_end_transaction_marker,
)
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import Record


@pytest.mark.parametrize("committed", [True, False])
def test_marker_is_a_transactional_control_batch_of_one(committed: bool) -> None:
    batch = end_transaction_marker(
        committed=committed,
        coordinator_epoch=12,
        producer_id=99,
        producer_epoch=3,
        timestamp_ms=5000,
        base_offset=8,
        leader_epoch=2,
    )
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert header.is_control
    assert header.is_transactional
    assert (header.base_offset, header.last_offset, header.record_count) == (8, 8, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (99, 3, -1)
    assert header.partition_leader_epoch == 2
    assert list(read_records(batch)) == []
    (record,) = read_records(batch, include_control=True)
    assert record.timestamp == 5000
    kind = COMMIT if committed else ABORT
    assert read_end_transaction_marker(record) == EndTransactionMarker(kind, 12)


def record_with(key: bytes | None, value: bytes | None) -> Record:
    (record,) = read_records(build_batch([(0, key, value, None)]))
    return record


def test_longer_values_of_later_versions_are_read() -> None:
    record = record_with(b"\0\1\0\1more", b"\0\1\0\0\0\x07more")
    assert read_end_transaction_marker(record) == EndTransactionMarker(COMMIT, 7)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\0"),
        (b"\0\0\0", b"\0\0\0\0\0\0"),
        (b"\xff\xff\0\0", b"\0\0\0\0\0\0"),
        (b"\0\0\0\2", b"\0\0\0\0\0\0"),
        (b"\0\0\0\0", None),
        (b"\0\0\0\0", b"\0\0\0\0\0"),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\0"),
    ],
)
def test_what_is_no_marker_is_invalid(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidRecordError):
        read_end_transaction_marker(record_with(key, value))


def test_types_that_are_not_known_can_be_distinguished() -> None:
    assert control_type(b"\0\0\0\2") == 2
    assert control_type(b"\0\0\x01\x00") == 256
