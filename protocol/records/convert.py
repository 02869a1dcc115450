"""Turning records of one magic into another, up for old producers and down for old consumers.

Going down loses headers, producer fields and leader epochs, and timestamps too for magic 0;
control batches vanish, since old consumers would take them for data. Nothing here holds more than
one batch, decompressed, at a time.
"""

from collections.abc import Iterator

from ottla.protocol.records.batch import NO_LEADER_EPOCH, BatchHeader
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, NONE, ZSTD
from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.errors import (
    DecompressedTooLargeError,
    InvalidRecordError,
    UnsupportedCompressionError,
    UnsupportedFormatError,
)
from ottla.protocol.records.legacy import LegacyHeader, build_message_set
from ottla.protocol.records.reader import iterate_entries, read_entry
from ottla.protocol.records.record import Record

DEFAULT_CHUNK_BYTES = 128 * 1024  # of converted records; about what one socket write takes at best


class ConversionCount:
    """How many records were converted."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records = 0


def down_convert(
    buffer: Buffer,
    to_magic: int,
    *,
    first_offset: int = 0,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    max_bytes: int | None = None,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    count: ConversionCount | None = None,
) -> Iterator[bytes]:
    """The records of `buffer` for a consumer that knows magics up to `to_magic`, by chunks.

    Each chunk holds whole messages and ends once it has `chunk_bytes`; the generator stops when
    `max_bytes` have been yielded or passed (always after at least one batch). Records of
    uncompressed batches before `first_offset` are left out, as old librdkafka needs it. Batches
    that are old enough already go through as they are. No CRC is checked: the log did that on the
    way in. A batch cut off at the end is skipped. `count` gets the records that were converted.

    Raises UnsupportedCompressionError if the first batch is compressed with zstd, and what reading
    raises. Before a later one with zstd the generator stops, as Kafka's
    LazyDownConversionRecordsSend does.
    """
    chunk: list[bytes] = []
    pending = done = 0
    for position, header in iterate_entries(buffer):
        if header.magic <= to_magic:
            converted = bytes(buffer[position : position + header.size_in_bytes])
        else:
            try:
                converted, records = _down_convert_entry(
                    buffer, position, header, to_magic, first_offset, max_decompressed_bytes
                )
                if count is not None:
                    count.records += records
            except UnsupportedCompressionError:
                if not done:
                    raise
                break  # the consumer gets what is before it, and the error with its next request
        if not converted:
            continue
        chunk.append(converted)
        pending += len(converted)
        done += len(converted)
        full = max_bytes is not None and done >= max_bytes
        if pending >= chunk_bytes or full:
            yield chunk[0] if len(chunk) == 1 else b"".join(chunk)
            chunk = []
            pending = 0
        if full:
            return
    if chunk:
        yield b"".join(chunk)


def _down_convert_entry(
    buffer: Buffer,
    position: int,
    header: BatchHeader | LegacyHeader,
    to_magic: int,
    first_offset: int,
    max_decompressed_bytes: int,
) -> tuple[bytes, int]:
    """The messages of a batch and their number."""
    if header.is_control:
        return b"", 0
    if header.codec == ZSTD:
        raise UnsupportedCompressionError(
            f"records compressed with zstd cannot be converted to magic {to_magic}; "
            "the consumer needs Fetch version 10 or later"
        )
    records = read_entry(
        buffer,
        position,
        header,
        check_crc=False,
        max_decompressed_bytes=max_decompressed_bytes,
    )
    if header.codec == NONE:
        records = [record for record in records if record.offset >= first_offset]
    if not records:
        return b"", 0
    converted = build_message_set(
        records,
        magic=to_magic,
        codec=header.codec,
        timestamp_type=header.timestamp_type,
        log_append_time=header.max_timestamp,
    )
    return converted, len(records)


def read_message_set(
    buffer: Buffer, *, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> tuple[int, int, list[Record]]:
    """(magic, codec, records) of what an old producer sent: a whole message set of magic 0 or 1.

    Checks every CRC. A compressed set must be the only entry, all entries must have one magic, and
    nothing may follow. `max_decompressed_bytes` bounds the sum. Raises a RecordsError.
    """
    records: list[Record] = []
    magic = codec = -1
    room = max_decompressed_bytes
    for position, header in iterate_entries(buffer, allow_partial=False):
        if not isinstance(header, LegacyHeader):
            raise InvalidRecordError("a record batch of magic 2 is among older messages")
        if magic not in (-1, header.magic):
            raise InvalidRecordError(f"messages of magic {magic} and {header.magic} are mixed")
        if magic != -1 and (codec != NONE or header.codec != NONE):
            raise InvalidRecordError("a compressed message set is not alone")
        magic, codec = header.magic, header.codec
        found = read_entry(buffer, position, header, max_decompressed_bytes=max(room, 0))
        room -= sum(len(record.key or b"") + len(record.value or b"") for record in found)
        if room < 0:
            raise DecompressedTooLargeError(
                f"a message set holds more than {max_decompressed_bytes} bytes, which is the limit"
            )
        records.extend(found)
    if not records:
        raise InvalidRecordError("there are no messages at all")
    return magic, codec, records


def up_convert(
    buffer: Buffer,
    to_magic: int = 2,
    *,
    base_offset: int = 0,
    codec: int | None = None,
    level: int | None = None,
    timestamp_type: int = 0,
    log_append_time: int = -1,
    leader_epoch: int = NO_LEADER_EPOCH,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """One batch (or message set of magic 1) of what an old producer sent, as brokers store it.

    Offsets are assigned from `base_offset` on. `codec` None keeps the codec of the messages.
    With `timestamp_type=LOG_APPEND_TIME` the records get `log_append_time`; otherwise they
    keep their timestamps, -1 if they had none (magic 0). Raises as `read_message_set`.
    """
    magic, own_codec, records = read_message_set(
        buffer, max_decompressed_bytes=max_decompressed_bytes
    )
    if magic > to_magic:
        raise UnsupportedFormatError(f"messages of magic {magic} cannot become magic {to_magic}")
    return build_converted(
        records,
        to_magic,
        base_offset=base_offset,
        codec=own_codec if codec is None else codec,
        level=level,
        timestamp_type=timestamp_type,
        log_append_time=log_append_time,
        leader_epoch=leader_epoch,
    )


def build_converted(
    records: list[Record],
    to_magic: int,
    *,
    base_offset: int,
    codec: int,
    level: int | None = None,
    timestamp_type: int = 0,
    log_append_time: int = -1,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """`records` as a batch or message set of `to_magic`, with consecutive new offsets."""
    if to_magic == 2:
        return build_batch(
            ((record.timestamp, record.key, record.value, record.headers) for record in records),
            base_offset=base_offset,
            codec=codec,
            level=level,
            leader_epoch=leader_epoch,
            timestamp_type=timestamp_type,
            log_append_time=log_append_time,
        )
    return build_message_set(
        [record._replace(offset=base_offset + index) for index, record in enumerate(records)],
        magic=to_magic,
        codec=codec,
        level=level,
        timestamp_type=timestamp_type,
        log_append_time=log_append_time,
    )
