"""The header of record batches: reading, patching in place, CRC, sequence numbers."""

import pytest

from ottla.protocol.records.batch import (
    BATCH_OVERHEAD,
    CREATE_TIME,
    LOG_APPEND_TIME,
    MAX_SEQUENCE,
    check_crc,
    decrement_sequence,
    increment_sequence,
    patch_base_offset,
    patch_max_timestamp,
    read_header,
    read_magic,
    read_size,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.records.reader import read_records
from tests.doubles.record_batches import iterate_batches

RECORDS = [(1000 + index, b"k%d" % index, b"v" * index, None) for index in range(5)]
BATCH = build_batch(RECORDS, producer_id=7, producer_epoch=2, base_sequence=40, transactional=True)


def test_header_of_a_built_batch() -> None:
    header = read_header(BATCH)
    assert header.base_offset == 0
    assert header.last_offset == 4
    assert header.next_offset == 5
    assert header.size_in_bytes == len(BATCH)
    assert header.magic == 2
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1004)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
    assert header.last_sequence == 44
    assert header.has_producer_id
    assert header.is_transactional
    assert not header.is_control
    assert header.codec == 0
    assert header.timestamp_type == CREATE_TIME
    assert header.delete_horizon_ms is None
    assert header.partition_leader_epoch == -1


def test_header_alone_is_enough_to_read_it() -> None:
    assert read_header(BATCH[:BATCH_OVERHEAD]) == read_header(BATCH)
    assert read_header(b"x" * 9 + BATCH, 9) == read_header(memoryview(bytearray(BATCH)))


@pytest.mark.parametrize("size", range(BATCH_OVERHEAD))
def test_less_than_a_header_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptRecordError, match="61 bytes"):
        read_header(BATCH[:size])


@pytest.mark.parametrize("position", [-1, len(BATCH), 1 << 40])
def test_positions_outside_are_corrupt(position: int) -> None:
    for read in (read_header, read_size, read_magic):
        with pytest.raises(CorruptRecordError):
            read(BATCH, position)


def test_other_magic_is_refused() -> None:
    other = bytearray(BATCH)
    other[16] = 1
    with pytest.raises(CorruptRecordError, match="magic 1"):
        read_header(other)


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_length_below_a_header_is_refused(length: int) -> None:
    other = bytearray(BATCH)
    other[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecordError, match="less than its header"):
        read_header(other)


def test_crc_covers_everything_behind_it() -> None:
    check_crc(BATCH, 0, read_header(BATCH))
    for position in range(21, len(BATCH)):
        damaged = bytearray(BATCH)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptRecordError):
            check_crc(damaged, 0, read_header(damaged))


def test_crc_of_a_batch_that_is_not_all_there() -> None:
    with pytest.raises(CorruptRecordError, match="only"):
        check_crc(BATCH[:-1], 0, read_header(BATCH))


@pytest.mark.parametrize("kind", [bytearray, lambda data: memoryview(bytearray(data))])
def test_base_offset_and_epoch_are_patched_without_touching_the_crc(kind: type[bytearray]) -> None:
    buffer = kind(b"123" + BATCH)
    patch_base_offset(buffer, 3, 1 << 50, 9)
    header = read_header(buffer, 3)
    assert header.base_offset == 1 << 50
    assert header.partition_leader_epoch == 9
    assert header.crc == read_header(BATCH).crc
    check_crc(buffer, 3, header)
    assert bytes(buffer[:3]) == b"123"
    offsets = [record.offset for record in read_records(buffer[3:])]
    assert offsets == [(1 << 50) + index for index in range(5)]


def test_log_append_time_is_stamped_and_the_crc_redone() -> None:
    buffer = bytearray(b"ab" + BATCH + BATCH)
    patch_max_timestamp(buffer, 2, LOG_APPEND_TIME, 5555)
    header = read_header(buffer, 2)
    assert header.timestamp_type == LOG_APPEND_TIME
    assert header.max_timestamp == 5555
    assert header.base_timestamp == 1000
    check_crc(buffer, 2, header)
    assert {record.timestamp for record in read_records(buffer[2 : 2 + len(BATCH)])} == {5555}
    assert buffer[2 + len(BATCH) :] == BATCH


def test_max_timestamp_can_go_back_to_create_time() -> None:
    buffer = bytearray(BATCH)
    patch_max_timestamp(buffer, 0, LOG_APPEND_TIME, 5555)
    patch_max_timestamp(buffer, 0, CREATE_TIME, 1004)
    assert buffer == BATCH


def test_stamping_what_is_not_all_there_is_refused() -> None:
    with pytest.raises(CorruptRecordError):
        patch_max_timestamp(bytearray(BATCH[:-1]), 0, LOG_APPEND_TIME, 1)


def test_iterating_skips_a_cut_off_batch() -> None:
    buffer = BATCH + BATCH + BATCH[:-1]
    positions = [position for position, _ in iterate_batches(buffer)]
    assert positions == [0, len(BATCH)]
    with pytest.raises(CorruptRecordError, match="after the last whole"):
        list(iterate_batches(buffer, allow_partial=False))
    assert list(iterate_batches(b"")) == []
    assert len(list(iterate_batches(BATCH * 3, len(BATCH), allow_partial=False))) == 2


def test_size_and_magic_without_the_rest() -> None:
    assert read_size(BATCH[:12]) == len(BATCH)
    assert read_magic(BATCH[:17]) == 2
    with pytest.raises(CorruptRecordError):
        read_magic(BATCH[:16])
    with pytest.raises(CorruptRecordError, match="at position 0"):
        read_size(b"\0" * 12)


def test_sequence_numbers_wrap_around() -> None:
    assert increment_sequence(MAX_SEQUENCE, 1) == 0
    assert increment_sequence(MAX_SEQUENCE - 1, 3) == 1
    assert decrement_sequence(0, 1) == MAX_SEQUENCE
    assert decrement_sequence(5, 5) == 0
    batch = build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=MAX_SEQUENCE)
    assert read_header(batch).last_sequence == 3
    assert read_header(build_batch(RECORDS)).last_sequence == -1
