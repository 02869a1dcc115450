"""Record batches of magic 2: the fixed header, read and patched in place.

A batch is 61 bytes of header and then the records, compressed or not::

    base_offset int64 | batch_length int32 | partition_leader_epoch int32 | magic int8 |
    crc uint32 | attributes int16 | last_offset_delta int32 | base_timestamp int64 |
    max_timestamp int64 | producer_id int64 | producer_epoch int16 | base_sequence int32 |
    record_count int32

The CRC covers everything from `attributes` to the end, so base offset, length and leader epoch
can be rewritten by a broker without touching it. Nothing here copies or reads the records.
"""

from functools import partial
from struct import Struct
from typing import NamedTuple

from ottla.protocol.records.crc32c import Buffer, crc32c
from ottla.protocol.records.errors import CorruptRecordError

HEADER = Struct(">qiibIhiqqqhii")
BATCH_OVERHEAD = 61
LOG_OVERHEAD = 12  # base offset and length, in front of what the length counts, in every magic

LEADER_EPOCH_POSITION = 12
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
MAX_TIMESTAMP_POSITION = 35

CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

NO_TIMESTAMP_TYPE = -1
CREATE_TIME = 0
LOG_APPEND_TIME = 1

# After the largest sequence number comes zero, as in Kafka's DefaultRecordBatch.
MAX_SEQUENCE = 0x7FFFFFFF

_unpack = HEADER.unpack_from
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT16 = Struct(">h")
_SIZE = Struct(">qi")


class BatchHeader(NamedTuple):
    """The header of one batch as it stands in the buffer, plus what follows from it."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_in_bytes(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        return (self.attributes & TIMESTAMP_TYPE_MASK) >> 3

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_MASK != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop this batch's tombstones or markers, if it has decided that."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, or -1; wraps around after 2147483647."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)


# Calling tuple.__new__ by itself skips the Python frame that BatchHeader._make would cost.
_as_header = partial(tuple.__new__, BatchHeader)


def increment_sequence(sequence: int, increment: int) -> int:
    """The sequence number `increment` records later."""
    return (sequence + increment) & MAX_SEQUENCE


def decrement_sequence(sequence: int, decrement: int) -> int:
    """The sequence number `decrement` records earlier."""
    return (sequence - decrement) & MAX_SEQUENCE


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; only these 61 bytes need to be in the buffer.

    Raises CorruptRecordError when they are not, when the magic is not 2, or when the length is
    smaller than a header. Says nothing about the CRC: see `check_crc`.
    """
    if position < 0 or len(buffer) - position < BATCH_OVERHEAD:
        raise CorruptRecordError(
            f"a record batch needs {BATCH_OVERHEAD} bytes of header, "
            f"{max(0, len(buffer) - position)} are left at position {position}"
        )
    header = _as_header(_unpack(buffer, position))
    if header.magic != 2:
        raise CorruptRecordError(
            f"record batch at position {position} has magic {header.magic}, 2 is expected"
        )
    if header.batch_length < BATCH_OVERHEAD - LOG_OVERHEAD:
        raise CorruptRecordError(
            f"record batch at position {position} claims to be {header.batch_length} bytes long, "
            f"which is less than its header"
        )
    return header


def read_size(buffer: Buffer, position: int = 0) -> int:
    """The whole size in bytes of the batch or message at `position`, of any magic.

    Needs the first 12 bytes. The size may reach beyond the buffer.
    """
    if position < 0 or len(buffer) - position < LOG_OVERHEAD:
        raise CorruptRecordError(f"no room for an offset and a size at position {position}")
    length: int = _SIZE.unpack_from(buffer, position)[1]
    if length < 14:  # a message of magic 0 with neither key nor value, the smallest there is
        raise CorruptRecordError(
            f"the entry at position {position} has a size of {length} bytes, the least is 14"
        )
    return length + LOG_OVERHEAD


def read_magic(buffer: Buffer, position: int = 0) -> int:
    """The magic of the batch or message at `position`: the byte is at the same place in all."""
    if position < 0 or len(buffer) - position <= MAGIC_POSITION:
        raise CorruptRecordError(f"no room for a magic byte in the entry at position {position}")
    return buffer[position + MAGIC_POSITION]


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raise CorruptRecordError unless the whole batch is in the buffer and its CRC is right."""
    end = position + header.batch_length + LOG_OVERHEAD
    if end > len(buffer):
        raise CorruptRecordError(
            f"record batch at position {position} is {header.size_in_bytes} bytes long, "
            f"only {len(buffer) - position} are there"
        )
    computed = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])
    if computed != header.crc:
        raise CorruptRecordError(
            f"record batch at position {position} (base offset {header.base_offset}) is corrupt: "
            f"stored CRC {header.crc:#010x}, computed {computed:#010x}"
        )


def patch_base_offset(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Give the batch its place in the log; the CRC does not cover these fields and stays right."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + LEADER_EPOCH_POSITION, leader_epoch)


def patch_max_timestamp(
    buffer: bytearray | memoryview, position: int, timestamp_type: int, max_timestamp: int
) -> None:
    """Set timestamp type and max timestamp and redo the CRC; does nothing if both are so already.

    With LOG_APPEND_TIME every record of the batch then has this timestamp for readers. The whole
    batch must be in the buffer.
    """
    header = read_header(buffer, position)
    end = position + header.size_in_bytes
    if end > len(buffer):
        raise CorruptRecordError(f"record batch at position {position} reaches beyond the buffer")
    if header.timestamp_type == timestamp_type and header.max_timestamp == max_timestamp:
        return
    attributes = header.attributes & ~TIMESTAMP_TYPE_MASK
    if timestamp_type == LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_MASK
    _INT16.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
    _INT64.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, max_timestamp)
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])
    _UINT32.pack_into(buffer, position + CRC_POSITION, crc)
