"""Messages of magic 0 and 1, the formats before Kafka 0.11.

A message set is a row of entries, each with a header of its own::

    offset int64 | size int32 | crc uint32 | magic int8 | attributes int8 |
    [timestamp int64, with magic 1] | key_length int32, key | value_length int32, value

The CRC is the ordinary CRC-32 over everything behind it. A compressed set is one entry, the
wrapper, whose value is a whole message set. With magic 1 the inner offsets count from 0 and the
wrapper has the offset of the last one; with magic 0 they are absolute. A wrapper of magic 1
stamped with LogAppendTime gives its timestamp to all inner messages.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from ottla.protocol.records.batch import (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    NO_TIMESTAMP_TYPE,
    TIMESTAMP_TYPE_MASK,
    read_magic,
)
from ottla.protocol.records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    LZ4,
    NONE,
    ZSTD,
    compress,
    decompress,
)
from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.errors import (
    CorruptRecordError,
    InvalidRecordError,
    UnsupportedCompressionError,
)
from ottla.protocol.records.record import Record

ENTRY_V0 = Struct(">qiIbb")
ENTRY_V1 = Struct(">qiIbbq")
ENTRY_OVERHEAD = (ENTRY_V0.size + 8, ENTRY_V1.size + 8)  # with both lengths, by magic: 26 and 34
LEGACY_MAGIC_POSITION = 16

_INT32 = Struct(">i")
_FRONT = Struct(">qiI")  # offset, size, CRC
_BODY_V0 = Struct(">bbi")  # magic, attributes, length of the key
_BODY_V1 = Struct(">bbqi")  # the same with the timestamp before the length


class LegacyHeader(NamedTuple):
    """The header of one entry, with the attributes of `batch.BatchHeader` that make sense here.

    An entry that is not compressed is a batch of one record. `base_offset` of a compressed one is
    not in the header: `base_offset` the function finds it.
    """

    last_offset: int
    message_size: int
    crc: int
    magic: int
    attributes: int
    max_timestamp: int

    @property
    def size_in_bytes(self) -> int:
        return self.message_size + LOG_OVERHEAD

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        if self.magic == 0:
            return NO_TIMESTAMP_TYPE
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_MASK else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return False

    @property
    def is_control(self) -> bool:
        return False

    @property
    def has_producer_id(self) -> bool:
        return False

    @property
    def producer_id(self) -> int:
        return NO_PRODUCER_ID

    @property
    def producer_epoch(self) -> int:
        return NO_PRODUCER_EPOCH

    @property
    def base_sequence(self) -> int:
        return NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        return NO_SEQUENCE

    @property
    def partition_leader_epoch(self) -> int:
        return NO_LEADER_EPOCH

    @property
    def delete_horizon_ms(self) -> int | None:
        return None


def read_legacy_header(buffer: Buffer, position: int = 0) -> LegacyHeader:
    """The header of the entry at `position`; only its fixed part needs to be in the buffer.

    Raises CorruptRecordError when it is not, when the magic is neither 0 nor 1 or the size is
    impossible. The CRC is left to `check_legacy_crc`.
    """
    magic = read_magic(buffer, position)
    layout = ENTRY_V1 if magic == 1 else ENTRY_V0
    if magic > 1 or len(buffer) - position < layout.size:
        raise CorruptRecordError(
            f"the entry at position {position} is no message of magic 0 or 1 (magic byte {magic})"
        )
    if magic == 1:
        offset, size, crc, _, attributes, timestamp = ENTRY_V1.unpack_from(buffer, position)
    else:
        offset, size, crc, _, attributes = ENTRY_V0.unpack_from(buffer, position)
        timestamp = NO_TIMESTAMP
    if size < ENTRY_OVERHEAD[magic] - LOG_OVERHEAD:
        raise CorruptRecordError(
            f"the message of magic {magic} at position {position} has a size of {size} bytes, "
            f"which is less than its header"
        )
    return LegacyHeader(offset, size, crc, magic, attributes & 0xFF, timestamp)


def check_legacy_crc(buffer: Buffer, position: int, header: LegacyHeader) -> None:
    """Raise CorruptRecordError unless the whole entry is in the buffer and its CRC is right."""
    end = position + header.size_in_bytes
    if end > len(buffer):
        raise CorruptRecordError(f"the message at position {position} reaches beyond the buffer")
    computed = crc32(memoryview(buffer)[position + LEGACY_MAGIC_POSITION : end])
    if computed != header.crc:
        raise CorruptRecordError(
            f"message at position {position} (offset {header.last_offset}) is corrupt: "
            f"stored CRC {header.crc:#010x}, computed {computed:#010x}"
        )


def iterate_legacy(
    buffer: Buffer, position: int = 0, *, allow_partial: bool = True
) -> Iterator[tuple[int, LegacyHeader]]:
    """Every whole entry with its position, wrappers not opened; CRCs are left to the caller."""
    size = len(buffer)
    while size - position > LEGACY_MAGIC_POSITION:
        if size - position < ENTRY_OVERHEAD[0]:
            break
        if read_magic(buffer, position) == 1 and size - position < ENTRY_OVERHEAD[1]:
            break
        header = read_legacy_header(buffer, position)
        end = position + header.size_in_bytes
        if end > size:
            break
        yield position, header
        position = end
    if position != size and not allow_partial:
        raise CorruptRecordError(f"{size - position} bytes after the last whole message")


def _key_and_value(
    buffer: Buffer, position: int, header: LegacyHeader
) -> tuple[bytes | None, bytes | None]:
    end = position + header.size_in_bytes
    if end > len(buffer):
        raise CorruptRecordError(f"the message at position {position} reaches beyond the buffer")
    at = position + ENTRY_OVERHEAD[header.magic] - 8
    fields: list[bytes | None] = []
    for name in ("key", "value"):
        if at + 4 > end:
            raise InvalidRecordError(f"the {name} of a message reaches beyond its end")
        length: int = _INT32.unpack_from(buffer, at)[0]
        at += 4
        if length < 0:
            fields.append(None)
            continue
        if length > end - at:
            raise InvalidRecordError(f"the {name} of a message reaches beyond its end")
        fields.append(bytes(buffer[at : at + length]))
        at += length
    if at != end:
        raise InvalidRecordError(f"{end - at} bytes of a message are neither key nor value")
    return fields[0], fields[1]


def read_legacy(
    buffer: Buffer,
    position: int = 0,
    header: LegacyHeader | None = None,
    *,
    check_inner_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> list[Record]:
    """The records of the entry at `position`: one, or those inside of a wrapper.

    Checks the CRC of inner messages (Kafka's brokers do) but not of the entry itself. Raises a
    RecordsError for what cannot be read to its end.
    """
    if header is None:
        header = read_legacy_header(buffer, position)
    key, value = _key_and_value(buffer, position, header)
    if header.codec == NONE:
        return [
            Record(header.last_offset, header.max_timestamp, header.timestamp_type, key, value, [])
        ]
    if header.codec == ZSTD:
        raise InvalidRecordError(f"zstd cannot be used with magic {header.magic}")
    if value is None:
        raise InvalidRecordError("a compressed message set has no value")
    try:
        inner = decompress(
            header.codec, value, max_decompressed_bytes, broken_lz4_checksum=header.magic == 0
        )
    except CorruptRecordError as error:
        # The producer sent it like this: the checksum of the message is right.
        raise InvalidRecordError(str(error)) from None
    return _read_inner(inner, header, check_inner_crc)


def _read_inner(inner: bytes, wrapper: LegacyHeader, check_crc: bool) -> list[Record]:
    records: list[Record] = []
    for position, header in iterate_legacy(inner):
        if header.magic != wrapper.magic:
            raise InvalidRecordError(
                f"a message of magic {header.magic} is inside of a wrapper of magic {wrapper.magic}"
            )
        if header.codec != NONE:
            raise InvalidRecordError("a compressed message is inside of a compressed message")
        if check_crc:
            check_legacy_crc(inner, position, header)
        key, value = _key_and_value(inner, position, header)
        timestamp = header.max_timestamp
        if wrapper.timestamp_type == LOG_APPEND_TIME:
            timestamp = wrapper.max_timestamp
        records.append(
            Record(header.last_offset, timestamp, wrapper.timestamp_type, key, value, [])
        )
    if not records:
        raise InvalidRecordError("a compressed message set has no messages in it")
    if wrapper.magic == 0:
        return records
    last_inner = records[-1].offset
    if wrapper.last_offset == 0:
        return records  # old versions of librdkafka left the wrapper's offset at 0 when producing
    if wrapper.last_offset < last_inner:
        raise InvalidRecordError(
            f"a wrapper's offset {wrapper.last_offset} is less than that of its last message "
            f"{last_inner}"
        )
    base = wrapper.last_offset - last_inner
    return [record._replace(offset=base + record.offset) for record in records] if base else records


def base_offset(
    buffer: Buffer,
    position: int,
    header: LegacyHeader,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> int:
    """The offset of the entry's first record; decompresses if it is a wrapper."""
    if header.codec == NONE:
        return header.last_offset
    return read_legacy(
        buffer,
        position,
        header,
        check_inner_crc=False,
        max_decompressed_bytes=max_decompressed_bytes,
    )[0].offset


def encode_message(
    offset: int,
    magic: int,
    attributes: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
) -> bytes:
    """One entry, with its CRC; `timestamp` is not used with magic 0."""
    key_length = -1 if key is None else len(key)
    if magic == 1:
        head = _BODY_V1.pack(1, attributes, timestamp, key_length)
    else:
        head = _BODY_V0.pack(0, attributes, key_length)
    value_length = _INT32.pack(-1 if value is None else len(value))
    body = b"".join((head, key or b"", value_length, value or b""))
    return _FRONT.pack(offset, len(body) + 4, crc32(body)) + body


def build_message_set(
    records: Iterable[Record],
    *,
    magic: int,
    codec: int = NONE,
    level: int | None = None,
    timestamp_type: int = CREATE_TIME,
    log_append_time: int = NO_TIMESTAMP,
) -> bytes:
    """Messages of `magic` with the offsets of `records`; in one wrapper if there is a codec.

    Headers are left out: these formats have none. Raises UnsupportedCompressionError for zstd,
    ValueError without records.
    """
    if codec == ZSTD:
        raise UnsupportedCompressionError(f"zstd cannot be used with magic {magic}")
    stamped = timestamp_type == LOG_APPEND_TIME and magic == 1
    attributes = TIMESTAMP_TYPE_MASK if stamped else 0
    relative_to: int | None = None
    entries: list[bytes] = []
    last_offset = max_timestamp = NO_TIMESTAMP
    for offset, own_timestamp, _, key, value, _ in records:
        if relative_to is None:
            relative_to = offset if magic == 1 and codec else 0
        timestamp = log_append_time if stamped else own_timestamp
        entries.append(
            encode_message(offset - relative_to, magic, attributes, timestamp, key, value)
        )
        last_offset = offset
        max_timestamp = max(max_timestamp, timestamp)
    if not entries:
        raise ValueError("a message set needs at least one message")
    plain = b"".join(entries)
    if codec == NONE:
        return plain
    inner = compress(codec, plain, level, broken_lz4_checksum=codec == LZ4 and magic == 0)
    return encode_message(last_offset, magic, attributes | codec, max_timestamp, None, inner)
