"""Reading records of any magic out of a buffer of whole batches."""

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from sys import modules

from ottla.protocol.records.batch import (
    BATCH_OVERHEAD,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    BatchHeader,
    read_header,
    read_size,
)
from ottla.protocol.records.batch import check_crc as check_batch_crc
from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, NONE, decompress
from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.records.legacy import (
    LegacyHeader,
    check_legacy_crc,
    read_legacy,
    read_legacy_header,
)
from ottla.protocol.records.record import Record
from ottla.protocol.records.section import Section, decode_section
from ottla.protocol.records.varint import wrap_int64

# Calling tuple.__new__ by itself skips the Python frame that Record(...) and Record._make(...)
# cost.
_as_record = partial(tuple.__new__, Record)

_VECTORISE_FROM = 200  # records; below, numpy's fixed cost outweighs what it saves

_INT64_MIN = -(1 << 63)
_INT64_MAX = (1 << 63) - 1


def read_section(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Section:
    """The records of one batch as columns of deltas; decompresses if need be, checks no CRC."""
    start = position + BATCH_OVERHEAD
    end = position + header.size_in_bytes
    if end > len(buffer):
        raise CorruptRecordError(f"record batch at position {position} reaches beyond the buffer")
    if header.record_count == 0:  # emptied by compaction; nothing follows, whatever its codec
        return Section([], [], [], [], None)
    if header.codec != NONE:
        data = decompress(header.codec, memoryview(buffer)[start:end], max_decompressed_bytes)
        start, end = 0, len(data)
    elif isinstance(buffer, bytes):
        data = buffer
    else:
        data = bytes(memoryview(buffer)[start:end])  # much faster to index and slice
        start, end = 0, len(data)
    count = header.record_count
    if count >= _VECTORISE_FROM and "numpy" in modules:
        # Only where a process has imported numpy already: a broker need not.
        from ottla.protocol.records.spans import decode_section_vectorised

        section = decode_section_vectorised(data, start, end, count)
        if section is not None:
            return section
    return decode_section(data, start, end, count)


def absolute_offsets(header: BatchHeader, section: Section) -> list[int]:
    """The offset of each record."""
    base = header.base_offset
    return [base + delta for delta in section.offset_deltas]


def absolute_timestamps(header: BatchHeader, section: Section) -> list[int]:
    """The timestamp of each record; with LogAppendTime the batch's for all."""
    if header.timestamp_type == LOG_APPEND_TIME:
        return [header.max_timestamp] * len(section.timestamp_deltas)
    base = header.base_timestamp
    timestamps = [base + delta for delta in section.timestamp_deltas]
    if timestamps and not _INT64_MIN <= min(timestamps) <= max(timestamps) <= _INT64_MAX:
        return [wrap_int64(timestamp) for timestamp in timestamps]
    return timestamps


def read_batch(
    buffer: Buffer,
    position: int = 0,
    header: BatchHeader | None = None,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> list[Record]:
    """The records of the batch of magic 2 at `position`, markers of control batches included.

    Checks no CRC. Raises a RecordsError for a batch that cannot be read to its end.
    """
    if header is None:
        header = read_header(buffer, position)
    return as_records(header, read_section(buffer, position, header, max_decompressed_bytes))


def as_records(header: BatchHeader, section: Section) -> list[Record]:
    """The records of a section of a batch."""
    headers = section.headers
    return list(
        map(
            _as_record,
            zip(
                absolute_offsets(header, section),
                absolute_timestamps(header, section),
                repeat(header.timestamp_type),
                section.keys,
                section.values,
                [[] for _ in section.keys] if headers is None else headers,
            ),
        )
    )


def iterate_entries(
    buffer: Buffer, position: int = 0, *, allow_partial: bool = True
) -> Iterator[tuple[int, BatchHeader | LegacyHeader]]:
    """Every whole batch (magic 2) or message (magic 0, 1) with its position; CRCs are not checked.

    An entry cut off at the end is skipped, or raises CorruptRecordError with
    `allow_partial=False`.
    """
    size = len(buffer)
    while size - position >= LOG_OVERHEAD:
        end = position + read_size(buffer, position)
        if size - position <= MAGIC_POSITION:
            break
        magic = buffer[position + MAGIC_POSITION]
        if magic > 2:
            raise CorruptRecordError(f"the entry at position {position} has magic {magic}")
        if end > size:
            break
        if magic == 2:
            yield position, read_header(buffer, position)
        else:
            yield position, read_legacy_header(buffer, position)
        position = end
    if position != size and not allow_partial:
        raise CorruptRecordError(
            f"{size - position} bytes after the last whole record batch, at position {position}"
        )


def read_entry(
    buffer: Buffer,
    position: int,
    header: BatchHeader | LegacyHeader,
    *,
    check_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> list[Record]:
    """The records of one batch or message of any magic."""
    if isinstance(header, LegacyHeader):
        if check_crc:
            check_legacy_crc(buffer, position, header)
        return read_legacy(
            buffer,
            position,
            header,
            check_inner_crc=check_crc,
            max_decompressed_bytes=max_decompressed_bytes,
        )
    if check_crc:
        check_batch_crc(buffer, position, header)
    return read_batch(buffer, position, header, max_decompressed_bytes=max_decompressed_bytes)


def read_records(
    buffer: Buffer,
    *,
    check_crc: bool = True,
    include_control: bool = False,
    allow_partial: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record]:
    """Every record in a buffer of batches of any magic, in order.

    Transaction markers are left out unless `include_control`. `max_decompressed_bytes` bounds
    each batch, not the sum. Raises a RecordsError where a batch is damaged; what came before it
    has been yielded.
    """
    for position, header in iterate_entries(buffer, allow_partial=allow_partial):
        if header.is_control and not include_control:
            continue
        yield from read_entry(
            buffer,
            position,
            header,
            check_crc=check_crc,
            max_decompressed_bytes=max_decompressed_bytes,
        )
