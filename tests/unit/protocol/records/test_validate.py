"""What a broker refuses."""

from struct import pack_into

import pytest

from ottla.protocol.records.batch import ATTRIBUTES_POSITION, check_crc, read_header
from ottla.protocol.records.builder import assemble_batch, build_batch, encode_record, rebuild_batch
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.crc32c import crc32c
from ottla.protocol.records.errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from ottla.protocol.records.reader import read_batch
from ottla.protocol.records.record import NewRecord
from ottla.protocol.records.validate import (
    MAX_RECORD_ERRORS,
    RecordLimits,
    WalkedBatch,
    validate_batch,
    validate_records,
)

RECORDS: list[NewRecord] = [(1000 + index * 10, b"k", b"v", None) for index in range(5)]
BATCH = build_batch(RECORDS)


def changed(form: str, position: int, value: int, batch: bytes = BATCH) -> bytes:
    """The batch with one field of its header set and a right CRC."""
    buffer = bytearray(batch)
    pack_into(form, buffer, position, value)
    pack_into(">I", buffer, 17, crc32c(memoryview(buffer)[ATTRIBUTES_POSITION:]))
    check_crc(buffer, 0, read_header(buffer))
    return bytes(buffer)


@pytest.mark.parametrize("codec", range(5))
def test_good_batches_pass(codec: int) -> None:
    batch = build_batch(RECORDS, codec=codec, producer_id=1, producer_epoch=0, base_sequence=0)
    header = validate_batch(memoryview(bytearray(batch)), max_bytes=len(batch))
    assert header == read_header(batch)
    walked = validate_records(batch, 0, header, RecordLimits(require_key=True))
    assert walked == WalkedBatch(1040, 4, 5)


def test_offset_of_the_max_timestamp_is_the_first_that_has_it() -> None:
    batch = build_batch([(stamp, None, b"", None) for stamp in (5, 9, 9, 7)], base_offset=100)
    walked = validate_records(batch, 0, read_header(batch), RecordLimits())
    assert walked == WalkedBatch(9, 101, 4)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (changed(">i", 57, 6), "more records"),
        (changed(">i", 57, 4), "covers"),
        (changed(">i", 57, -1), "-1 records"),
        (changed(">i", 23, -1), "last offset delta -1"),
        (changed(">i", 23, 9), "covers"),
        (changed(">h", 21, 0x20), "control"),
        (changed(">q", 43, 7), "sequence number -1"),
        (build_batch(RECORDS, base_offset=3), "must be 0"),
        (rebuild_batch(read_header(BATCH), read_batch(BATCH)[1:]), "covers"),
    ],
)
def test_rules_for_producers(batch: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        validate_batch(batch)


def test_rules_for_producers_do_not_hold_for_leaders() -> None:
    compacted = rebuild_batch(read_header(BATCH), read_batch(BATCH)[1:])
    assert validate_batch(compacted, from_client=False).record_count == 4
    assert validate_batch(build_batch(RECORDS, base_offset=9), from_client=False).base_offset == 9
    marker = end_transaction_marker(
        committed=True, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp_ms=0
    )
    assert validate_batch(marker, from_client=False).is_control
    with pytest.raises(InvalidRecordError):
        validate_batch(changed(">i", 57, 6), from_client=False)


def test_size_is_bounded() -> None:
    with pytest.raises(RecordTooLargeError, match=f"at most {len(BATCH) - 1}"):
        validate_batch(BATCH, max_bytes=len(BATCH) - 1)


def test_damage_is_noticed() -> None:
    with pytest.raises(CorruptRecordError, match="were received"):
        validate_batch(BATCH[:-1])
    damaged = bytearray(BATCH)
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="stored CRC"):
        validate_batch(damaged)
    assert validate_batch(damaged, verify_crc=False).record_count == 5


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionError):
        validate_batch(changed(">h", 21, codec))


def walk(batch: bytes, limits: RecordLimits) -> WalkedBatch:
    return validate_records(batch, 0, read_header(batch), limits)


def test_compacted_topics_want_keys() -> None:
    batch = build_batch([(0, b"k", b"", None), (0, None, b"", None), (0, b"", b"", None)])
    assert walk(batch, RecordLimits()).record_count == 3
    with pytest.raises(InvalidRecordError, match="record 1: a compacted topic") as caught:
        walk(batch, RecordLimits(require_key=True))
    assert [index for index, _ in caught.value.record_errors] == [1]


@pytest.mark.parametrize(
    ("stamp", "fine"), [(899, False), (900, True), (1050, True), (1051, False), (-1, True)]
)
def test_timestamps_have_limits(stamp: int, fine: bool) -> None:
    limits = RecordLimits(now_ms=1000, timestamp_before_max_ms=100, timestamp_after_max_ms=50)
    batch = build_batch([(1000, None, b"", None), (stamp, None, b"", None)])
    if fine:
        walk(batch, limits)
        return
    with pytest.raises(InvalidTimestampError) as caught:
        walk(batch, limits)
    assert [index for index, _ in caught.value.record_errors] == [1]
    assert "[900, 1050]" in caught.value.record_errors[0][1]


def test_producers_cannot_claim_log_append_time() -> None:
    batch = build_batch(RECORDS, timestamp_type=1, log_append_time=5)
    with pytest.raises(InvalidTimestampError) as caught:
        walk(batch, RecordLimits())
    assert "LogAppendTime" in caught.value.record_errors[0][1]


def test_reasons_are_bounded() -> None:
    batch = build_batch([(0, None, b"", None)] * 1000)
    with pytest.raises(InvalidRecordError) as caught:
        walk(batch, RecordLimits(require_key=True))
    assert len(caught.value.record_errors) == MAX_RECORD_ERRORS


def test_offset_deltas_must_count_up() -> None:
    payload = bytearray()
    for delta in (0, 2, 1):
        encode_record(payload, delta, 0, None, b"", None)
    batch = assemble_batch(
        payload,
        base_offset=0,
        last_offset_delta=2,
        base_timestamp=0,
        max_timestamp=0,
        record_count=3,
        attributes=0,
    )
    validate_batch(batch)
    with pytest.raises(InvalidRecordError, match="record 1 has the offset delta 2") as caught:
        walk(batch, RecordLimits())
    assert caught.value.record_errors[0][0] == 1


def test_walking_is_bounded_and_notices_counts_that_lie() -> None:
    bomb = build_batch([(0, b"k", bytes(1_000_000), None)], codec=4)
    header = validate_batch(bomb)
    with pytest.raises(DecompressedTooLargeError):
        validate_records(bomb, 0, header, RecordLimits(), max_decompressed_bytes=1000)
    liar = changed(">i", 23, 3, changed(">i", 57, 4))
    with pytest.raises(InvalidRecordError):
        walk(liar, RecordLimits())
