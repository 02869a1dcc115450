"""Checks what a log is asked to append, and gives it offsets and timestamps.

`Log.append` handles the plain case (one sound batch of magic 2, nothing special in the settings) by
itself; everything else, and everything that is to be refused, comes here. Records are looked at one
by one only when a setting demands it: keys on compacted topics, limits on timestamps, another
compression, messages of an old magic.
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    MAGIC_POSITION,
    BatchHeader,
    check_crc,
    patch_base_offset,
    patch_max_timestamp,
    read_header,
)
from protocol.records.batch import CREATE_TIME as CREATE_TIME_ID
from protocol.records.batch import LOG_APPEND_TIME as LOG_APPEND_TIME_ID
from protocol.records.builder import build_batch
from protocol.records.compression import GZIP, LZ4, ZSTD, codec_name, decompress
from protocol.records.convert import up_convert
from protocol.records.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from protocol.records.lz4_header import check_frame
from protocol.records.reader import iterate_entries, read_batch
from storage.config import LOG_APPEND_TIME, NO_LIMIT, LogConfig
from storage.errors import OffsetsOutOfOrder
from storage.producer_entry import AppendOrigin
from storage.record_outline import outline

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
KEEP_CODEC = "producer"
# Decompressing what a client sent stops here: a hundred times the default size of a request.
MAX_DECOMPRESSED_BYTES = 100 << 20
# Where records are looked at one by one, a batch has at most so many: half a second's work. Usual
# batches have thousands; a megabyte of well packed nothings could have a hundred million.
MAX_RECORDS_LOOKED_AT = 500_000
_CODEC_MAX = 4
# How many bad records an error tells about, so that an answer stays small.
_ERRORS_TOLD_MAX = 100


class AcceptedBatch(NamedTuple):
    """A batch that may be written: where it is in the buffer and its place in the log."""

    position: int
    size: int
    first_offset: int
    last_offset: int
    header: BatchHeader | None  # None for messages of an old magic, as a follower may be sent
    max_timestamp: int
    leader_epoch: int


class Accepted(NamedTuple):
    """What is to be written in one go."""

    buffer: bytearray | memoryview
    batches: list[AcceptedBatch]
    log_append_time: int


def prepare_for_leader(
    records: bytearray | memoryview,
    config: LogConfig,
    origin: AppendOrigin,
    *,
    leader_epoch: int,
    first_offset: int,
    now_ms: int,
) -> Accepted:
    """Checks batches from a producer or a coordinator and assigns offsets from `first_offset` on.

    Works in place where it can; the buffer of the result is another one after recompression or
    conversion. Raises RecordsError, with the buffer's offsets perhaps changed.
    """
    if len(records) <= MAGIC_POSITION:
        raise CorruptRecordError(f"{len(records)} bytes are too few to hold a record batch")
    if records[MAGIC_POSITION] < 2:
        return _convert_old(records, config, leader_epoch, first_offset, now_ms)
    headers = _check_batches(records, config, origin)
    if any(_target_codec(config, header) != header.codec for _, header in headers):
        return _recompress(records, headers, config, leader_epoch, first_offset, now_ms)
    stamp = config.message_timestamp_type == LOG_APPEND_TIME
    accepted = []
    for position, header in headers:
        _check_records(records, position, header, config, now_ms)
        timestamp = header.max_timestamp
        if stamp:
            timestamp = now_ms
            patch_max_timestamp(records, position, LOG_APPEND_TIME_ID, now_ms)
        elif header.timestamp_type != CREATE_TIME_ID:
            patch_max_timestamp(records, position, CREATE_TIME_ID, timestamp)
        patch_base_offset(records, position, first_offset, leader_epoch)
        last_offset = first_offset + header.last_offset_delta
        accepted.append(
            AcceptedBatch(
                position,
                header.size_in_bytes,
                first_offset,
                last_offset,
                header if timestamp == header.max_timestamp else read_header(records, position),
                timestamp,
                leader_epoch,
            )
        )
        first_offset = last_offset + 1
    return Accepted(records, accepted, now_ms if stamp else -1)


def prepare_for_follower(records: bytearray | memoryview) -> Accepted:
    """Checks batches from the leader, whose offsets are assigned. Cuts off an incomplete last one.

    Raises CorruptRecordError, OffsetsOutOfOrder.
    """
    accepted: list[AcceptedBatch] = []
    end = 0
    previous = -1
    for position, header in iterate_entries(records, allow_partial=True):
        end = position + header.size_in_bytes
        if isinstance(header, BatchHeader):
            check_crc(records, position, header)
            batch = _as_it_says(position, header)
        else:
            offset = header.last_offset
            batch = AcceptedBatch(
                position, header.size_in_bytes, offset, offset, None, header.max_timestamp, -1
            )
        if batch.first_offset <= previous or batch.last_offset < batch.first_offset:
            raise OffsetsOutOfOrder(
                f"offset {batch.first_offset} came after {previous} in batches from the leader"
            )
        previous = batch.last_offset
        accepted.append(batch)
    return Accepted(memoryview(records)[:end], accepted, -1)


def _as_it_says(position: int, header: BatchHeader) -> AcceptedBatch:
    """A batch in which offsets, times and epoch are final."""
    return AcceptedBatch(
        position,
        header.size_in_bytes,
        header.base_offset,
        header.last_offset,
        header,
        header.max_timestamp,
        header.partition_leader_epoch,
    )


def _check_batches(
    records: bytearray | memoryview, config: LogConfig, origin: AppendOrigin
) -> list[tuple[int, BatchHeader]]:
    found = []
    limit = config.max_message_bytes
    for position, header in iterate_entries(records, allow_partial=False):
        if not isinstance(header, BatchHeader):
            raise InvalidRecordError(f"a message of magic {header.magic} is among record batches")
        if header.size_in_bytes > limit:
            raise RecordTooLargeError(
                f"a batch of {header.size_in_bytes} bytes is larger than max.message.bytes={limit}"
            )
        check_crc(records, position, header)
        if header.codec > _CODEC_MAX:
            raise UnsupportedCompressionError(f"compression codec {header.codec} is not known")
        if origin is AppendOrigin.CLIENT:
            _check_client_batch(header)
            if header.codec == LZ4:
                check_frame(memoryview(records)[position + BATCH_OVERHEAD :])
        found.append((position, header))
    return found


def _check_client_batch(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise InvalidRecordError(
            f"the base offset of a batch from a producer has to be 0, it is {header.base_offset}"
        )
    count = header.record_count
    if count <= 0 or count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"a batch says it has {count} records and a last offset delta of"
            f" {header.last_offset_delta}"
        )
    if header.is_control:
        raise InvalidRecordError("producers may not write control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise InvalidRecordError(
            f"producer {header.producer_id} sent sequence number {header.base_sequence}"
        )


def _check_records(
    records: bytearray | memoryview,
    position: int,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
) -> None:
    """What needs a look at the single records, if the settings ask for any of it."""
    if header.is_control:
        return
    stamp = config.message_timestamp_type == LOG_APPEND_TIME
    if stamp and header.timestamp_type == LOG_APPEND_TIME_ID:
        reason = "producers may not set the timestamp type to LogAppendTime"
        told = range(min(header.record_count, _ERRORS_TOLD_MAX))
        raise InvalidTimestampError(reason, [(index, reason) for index in told])
    limited = not stamp and (
        config.message_timestamp_before_max_ms != NO_LIMIT
        or now_ms + config.message_timestamp_after_max_ms < header.max_timestamp
    )
    if not (limited or config.compact):
        return
    _check_count(header)
    content = memoryview(records)[position + BATCH_OVERHEAD : position + header.size_in_bytes]
    if header.codec:
        data = decompress(header.codec, content, MAX_DECOMPRESSED_BYTES)
    else:
        data = bytes(content)
    lines = outline(data, 0, len(data), header.record_count)
    errors: list[tuple[int, str]] = []
    if limited:
        oldest = now_ms - config.message_timestamp_before_max_ms
        newest = now_ms + config.message_timestamp_after_max_ms
        for index, delta in enumerate(lines.timestamp_deltas):
            timestamp = header.base_timestamp + delta
            if timestamp != -1 and not oldest <= timestamp <= newest:
                errors.append((index, f"timestamp {timestamp} is not in [{oldest}, {newest}]"))
        if errors:
            raise InvalidTimestampError(
                f"{len(errors)} records have timestamps out of range; the first: {errors[0][1]}",
                errors[:_ERRORS_TOLD_MAX],
            )
    if config.compact:
        missing = "a compacted topic takes no record without a key"
        errors = [(index, missing) for index, key in enumerate(lines.keys) if key is None]
        if errors:
            raise InvalidRecordError(
                f"{len(errors)} records were refused: {missing}", errors[:_ERRORS_TOLD_MAX]
            )


def _check_count(header: BatchHeader) -> None:
    if header.record_count > MAX_RECORDS_LOOKED_AT:
        raise RecordTooLargeError(
            f"a batch has {header.record_count} records; where the settings of the topic make the"
            f" broker look at each, {MAX_RECORDS_LOOKED_AT} are the most it takes"
        )


def _target_codec(config: LogConfig, header: BatchHeader) -> int:
    if config.compression_type == KEEP_CODEC or header.is_control:
        return header.codec
    return CODECS[config.compression_type]


def _level(config: LogConfig, codec: int) -> int | None:
    if codec == GZIP:
        return config.compression_gzip_level
    if codec == LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == ZSTD else None


def _recompress(
    records: bytearray | memoryview,
    headers: list[tuple[int, BatchHeader]],
    config: LogConfig,
    leader_epoch: int,
    first_offset: int,
    now_ms: int,
) -> Accepted:
    stamp = config.message_timestamp_type == LOG_APPEND_TIME
    rebuilt = bytearray()
    for position, header in headers:
        _check_count(header)
        _check_records(records, position, header, config, now_ms)
        codec = _target_codec(config, header)
        found = read_batch(records, position, header, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)
        batch = build_batch(
            ((r.timestamp, r.key, r.value, r.headers) for r in found),
            base_offset=first_offset,
            codec=codec,
            level=_level(config, codec),
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            leader_epoch=leader_epoch,
            timestamp_type=LOG_APPEND_TIME_ID if stamp else CREATE_TIME_ID,
            log_append_time=now_ms,
        )
        if len(found) != header.record_count:
            raise InvalidRecordError(
                f"a batch says it has {header.record_count} records and has {len(found)}"
            )
        rebuilt += batch
        first_offset += len(found)
    return _accept_rebuilt(rebuilt, config, now_ms if stamp else -1)


def _convert_old(
    records: bytearray | memoryview,
    config: LogConfig,
    leader_epoch: int,
    first_offset: int,
    now_ms: int,
) -> Accepted:
    """Messages of magic 0 and 1 become one batch of magic 2."""
    for _, header in iterate_entries(records, allow_partial=False):
        if header.size_in_bytes > config.max_message_bytes:
            raise RecordTooLargeError(
                f"a message of {header.size_in_bytes} bytes is larger than"
                f" max.message.bytes={config.max_message_bytes}"
            )
    stamp = config.message_timestamp_type == LOG_APPEND_TIME
    codec = None if config.compression_type == KEEP_CODEC else CODECS[config.compression_type]
    batch = up_convert(
        records,
        2,
        base_offset=first_offset,
        codec=codec,
        level=None if codec is None else _level(config, codec),
        timestamp_type=LOG_APPEND_TIME_ID if stamp else CREATE_TIME_ID,
        log_append_time=now_ms,
        leader_epoch=leader_epoch,
        max_decompressed_bytes=MAX_DECOMPRESSED_BYTES,
    )
    if not stamp:
        _check_records(bytearray(batch), 0, read_header(batch), config, now_ms)
    elif config.compact:
        header = read_header(batch)
        # Only the keys: nobody but this broker has stamped it.
        unstamped = header._replace(attributes=header.attributes & CODEC_MASK)
        _check_records(bytearray(batch), 0, unstamped, config, 0)
    return _accept_rebuilt(bytearray(batch), config, now_ms if stamp else -1)


def _accept_rebuilt(buffer: bytearray, config: LogConfig, log_append_time: int) -> Accepted:
    accepted = []
    for position, header in iterate_entries(buffer):
        assert isinstance(header, BatchHeader)
        if header.size_in_bytes > config.max_message_bytes:
            raise RecordTooLargeError(
                f"with {codec_name(header.codec)} compression a batch has {header.size_in_bytes}"
                f" bytes, more than max.message.bytes={config.max_message_bytes}"
            )
        accepted.append(_as_it_says(position, header))
    return Accepted(buffer, accepted, log_append_time)
