"""Validates the batches of an append, and assigns offsets and timestamps. Kafka's `LogValidator`.

`Log.append` handles the plain case (one valid batch of magic 2, default settings) itself.
Everything else, and everything invalid, comes here. The records of each batch from a client are
checked, for one that cannot be read stops all consumers of a partition, and their newest timestamp
is computed: what the header says about it is not believed, because retention and offsets by time
depend on it. Records are decoded only when a setting requires it: keys on compacted topics, limits
of timestamps, another compression type, messages of an old magic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ottla.protocol.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    MAGIC_POSITION,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    TRANSACTIONAL_MASK,
    BatchHeader,
    check_crc,
    patch_base_offset,
    patch_max_timestamp,
    read_header,
)
from ottla.protocol.records.batch import CREATE_TIME as CREATE_TIME_ID
from ottla.protocol.records.batch import LOG_APPEND_TIME as LOG_APPEND_TIME_ID
from ottla.protocol.records.builder import assemble_batch, build_batch
from ottla.protocol.records.check import Walk, walk_records
from ottla.protocol.records.compression import (
    DEFAULT_LZ4_LEVEL,
    DEFAULT_ZSTD_LEVEL,
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    codec_name,
    compress,
)
from ottla.protocol.records.convert import up_convert
from ottla.protocol.records.errors import (
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from ottla.protocol.records.frames import check_frame
from ottla.protocol.records.legacy import LegacyHeader, check_legacy_crc
from ottla.protocol.records.reader import absolute_timestamps, iterate_entries, read_section
from ottla.storage.config import LOG_APPEND_TIME, NO_LIMIT, LogConfig
from ottla.storage.errors import OffsetsOutOfOrder
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.records.batch_content import (
    MAX_DECOMPRESSED_BYTES,
    check_content,
    check_number,
    decompress_content,
    newest_timestamp,
)
from ottla.storage.records.old_format import OldMessages, to_old_messages
from ottla.storage.records.validation_budget import (
    KIB_COMPRESSED,
    KIB_COMPRESSED_WELL,
    MESSAGE_BYTES,
    RECORD_FOUND,
    RECORD_REBUILT,
    ValidationBudget,
    ValidationBudgetExceeded,
)

_CODEC_MAX = 4
# How many invalid records an error lists, so that responses stay small.
_RECORD_ERRORS_MAX = 100


class AcceptedBatch(NamedTuple):
    """A valid batch: its position in the buffer and its offsets in the log."""

    position: int
    size: int
    first_offset: int
    last_offset: int
    header: BatchHeader | None  # None for messages of an old magic, which a leader may send
    max_timestamp: int
    leader_epoch: int


class Accepted(NamedTuple):
    """The batches of one write."""

    buffer: bytearray | memoryview
    batches: list[AcceptedBatch]
    log_append_time: int


class ValidBatch(NamedTuple):
    """Where a batch is in the buffer, its header as it stands there, and the newest timestamp of
    its records, which the header may lack."""

    position: int
    header: BatchHeader
    max_timestamp: int


class ValidatedRecords(NamedTuple):
    """Batches with valid records, without offsets in a log yet."""

    buffer: bytearray | memoryview
    batches: list[ValidBatch]
    config: LogConfig  # the settings they were validated with
    old: OldMessages | None = None  # what is stored instead of the batches


def validate_records(
    records: bytearray | memoryview,
    config: LogConfig,
    origin: AppendOrigin,
    now_ms: int,
    budget: ValidationBudget | None = None,
) -> ValidatedRecords:
    """Validate batches from a producer or a coordinator, convert and recompresse if needed.

    Independent of the log: may run in any thread. Does not change `records`; the result has another
    buffer after conversion or recompression. Raises RecordsError, and ValidationBudgetExceeded when
    the work exceeds `budget`.
    """
    validated = _validate(records, config, origin, now_ms, budget)
    if config.record_magic < 2 and origin is AppendOrigin.CLIENT:
        return _in_old_format(validated, now_ms, budget)
    return validated


def _validate(
    records: bytearray | memoryview,
    config: LogConfig,
    origin: AppendOrigin,
    now_ms: int,
    budget: ValidationBudget | None,
) -> ValidatedRecords:
    if len(records) <= MAGIC_POSITION:
        raise InvalidRecordError(f"{len(records)} bytes are too short for a record batch")
    if records[MAGIC_POSITION] < 2:
        return _rebuilt(_convert_old(records, config, now_ms, budget), config)
    batches = _check_batches(records, config, origin)
    last, header = batches[-1]
    end = last + header.size_in_bytes
    if end < len(records):
        records = memoryview(records)[:end]
    if any(target_codec(config, header) != header.codec for _, header in batches):
        return _rebuilt(_recompress(records, batches, config, now_ms, budget), config)
    valid = []
    for position, header in batches:
        newest = header.max_timestamp
        if origin is AppendOrigin.CLIENT:  # The coordinator has just built its own.
            newest = _check_records(records, position, header, config, now_ms, budget)
        valid.append(ValidBatch(position, header, newest))
    return ValidatedRecords(records, valid, config)


def assign(
    validated: ValidatedRecords, *, leader_epoch: int, first_offset: int, now_ms: int
) -> Accepted:
    """Assign offsets from `first_offset` on, leader epoch and timestamps in place: LogAppendTime,
    or the newest timestamp of the records where the header has another one."""
    if validated.old is not None:
        return _assign_old(validated.old, first_offset)
    records = validated.buffer
    stamp = validated.config.message_timestamp_type == LOG_APPEND_TIME
    accepted = []
    timestamp_type = LOG_APPEND_TIME_ID if stamp else CREATE_TIME_ID
    for position, header, newest in validated.batches:
        timestamp = now_ms if stamp else newest
        if timestamp != header.max_timestamp or timestamp_type != header.timestamp_type:
            patch_max_timestamp(records, position, timestamp_type, timestamp)
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


def _assign_old(messages: OldMessages, first_offset: int) -> Accepted:
    buffer, entries = messages.assign(first_offset)
    batches = [
        AcceptedBatch(
            each.position, each.size, each.first_offset, each.last_offset, None,
            each.max_timestamp, NO_LEADER_EPOCH,
        )
        for each in entries
    ]  # fmt: skip
    return Accepted(buffer, batches, messages.log_append_time)


def prepare_for_follower(records: bytearray | memoryview | bytes) -> Accepted:
    """Validate batches from the leader, which have offsets. Drops an incomplete last batch.

    Raises CorruptRecordError, OffsetsOutOfOrder.
    """
    accepted: list[AcceptedBatch] = []
    end = 0
    previous = -1
    for position, header in iterate_entries(records, allow_partial=True):
        end = position + header.size_in_bytes
        if isinstance(header, BatchHeader):
            check_crc(records, position, header)
            batch = _unchanged(position, header)
        else:
            check_legacy_crc(records, position, header)
            offset = header.last_offset
            batch = AcceptedBatch(
                position, header.size_in_bytes, offset, offset, None, header.max_timestamp, -1
            )
        if batch.first_offset <= previous or batch.last_offset < batch.first_offset:
            raise OffsetsOutOfOrder(
                f"offset {batch.first_offset} follows {previous} in batches from the leader"
            )
        previous = batch.last_offset
        accepted.append(batch)
    return Accepted(memoryview(records)[:end], accepted, -1)


def runs(accepted: Accepted, limit: int) -> Iterator[Accepted]:
    """The batches in runs of at most `limit` bytes, or of one batch: the leader may have larger
    segments."""
    view = memoryview(accepted.buffer)
    if len(view) <= limit:
        yield accepted
        return
    start = 0
    run: list[AcceptedBatch] = []
    for batch in accepted.batches:
        if run and batch.position + batch.size - start > limit:
            yield Accepted(view[start : batch.position], run, -1)
            run, start = [], batch.position
        run.append(batch._replace(position=batch.position - start))
    yield Accepted(view[start:], run, -1)


def _unchanged(position: int, header: BatchHeader) -> AcceptedBatch:
    """A batch whose offsets, timestamps and leader epoch are final."""
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
    """Each batch with its position. As Kafka, ignores one that is cut off at the end."""
    found = []
    limit = config.max_message_bytes
    for position, header in iterate_entries(records):
        if not isinstance(header, BatchHeader):
            raise InvalidRecordError(f"a message of magic {header.magic} between record batches")
        if header.size_in_bytes > limit:
            raise RecordTooLargeError(
                f"a batch of {header.size_in_bytes} bytes is larger than max.message.bytes={limit}"
            )
        check_crc(records, position, header)
        if header.codec > _CODEC_MAX:
            raise UnsupportedCompressionError(f"unknown compression codec {header.codec}")
        if origin is AppendOrigin.CLIENT:
            _check_client_batch(header)
            if header.codec == LZ4:
                check_frame(memoryview(records)[position + BATCH_OVERHEAD :])
        found.append((position, header))
    if not found:
        # Kafka appends nothing and acknowledges.
        raise InvalidRecordError("the only record batch is cut off")
    return found


def _check_client_batch(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise InvalidRecordError(
            f"the base offset of a batch from a producer must be 0, not {header.base_offset}"
        )
    count = header.record_count
    if count <= 0 or count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"record count {count} of a batch does not match its last offset delta"
            f" {header.last_offset_delta}"
        )
    if header.is_control:
        raise InvalidRecordError("producers must not send control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise InvalidRecordError(
            f"invalid sequence number {header.base_sequence} from producer {header.producer_id}"
        )


def _check_records(
    records: bytearray | memoryview,
    position: int,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    budget: ValidationBudget | None,
) -> int:
    """Validate individual records as far as the settings require it; returns their newest
    timestamp."""
    _check_timestamp_type(header, header.record_count, config)
    stamp = config.message_timestamp_type == LOG_APPEND_TIME
    if not config.compact and (stamp or config.message_timestamp_before_max_ms == NO_LIMIT):
        size, count = header.size_in_bytes, header.record_count
        base = header.base_timestamp
        newest = check_content(records, position, size, header.codec, count, base, budget)
        if header.timestamp_type == LOG_APPEND_TIME_ID:
            newest = max(header.max_timestamp, NO_TIMESTAMP)
        if stamp or newest <= now_ms + config.message_timestamp_after_max_ms:
            return newest
        # Decoded, to name the records.
    walk = _decode(records, position, header, budget)[1]
    if not walk.is_in_order:
        raise InvalidRecordError("the offset deltas of a batch do not count up from 0")
    _check_walk(walk, header, config, now_ms)
    return newest_timestamp(header.base_timestamp, walk.timestamp_deltas)


def _check_timestamp_type(
    header: BatchHeader | LegacyHeader, count: int, config: LogConfig
) -> None:
    """Raise InvalidTimestampError for LogAppendTime, which a broker sets."""
    if header.timestamp_type != LOG_APPEND_TIME_ID:
        return
    if config.message_timestamp_type == LOG_APPEND_TIME or header.max_timestamp == NO_TIMESTAMP:
        reason = "producers must not set the timestamp type to LogAppendTime"
        listed = range(min(count, _RECORD_ERRORS_MAX))
        raise InvalidTimestampError(reason, [(index, reason) for index in listed])


def _check_walk(walk: Walk, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Raise InvalidTimestampError and InvalidRecordError for records against the settings."""
    before_ms = config.message_timestamp_before_max_ms
    after_ms = config.message_timestamp_after_max_ms
    if config.message_timestamp_type != LOG_APPEND_TIME and min(before_ms, after_ms) != NO_LIMIT:
        _check_timestamps(walk, header.base_timestamp, now_ms - before_ms, now_ms + after_ms)
    if config.compact and walk.keyless:
        missing = "compacted topic cannot accept message without key"
        raise InvalidRecordError(
            f"{len(walk.keyless)} records are invalid: {missing}",
            [(index, missing) for index in walk.keyless[:_RECORD_ERRORS_MAX]],
        )


def _check_timestamps(walk: Walk, base: int, oldest: int, newest: int) -> None:
    wrong = [
        (index, base + delta)
        for index, delta in enumerate(walk.timestamp_deltas)
        if not oldest <= base + delta <= newest and base + delta != -1
    ]
    if wrong:
        errors = [
            (index, f"timestamp {timestamp} is not within [{oldest}, {newest}]")
            for index, timestamp in wrong[:_RECORD_ERRORS_MAX]
        ]
        raise InvalidTimestampError(
            "One or more records have been rejected due to invalid timestamp", errors
        )


def _decode(
    records: bytearray | memoryview,
    position: int,
    header: BatchHeader,
    budget: ValidationBudget | None,
) -> tuple[bytes, Walk]:
    """The records of a batch, decompressed, and what `walk_records` collects from them.

    As in Kafka, the records of a batch with LogAppendTime have the timestamp of its header.
    """
    check_number(header.record_count)
    if budget is not None:
        budget.spend(header.record_count * RECORD_FOUND)
    content = memoryview(records)[position + BATCH_OVERHEAD : position + header.size_in_bytes]
    data = decompress_content(header.codec, content, budget)
    walk = walk_records(data, header.record_count)
    if header.timestamp_type == LOG_APPEND_TIME_ID:
        delta = header.max_timestamp - header.base_timestamp
        walk = walk._replace(timestamp_deltas=[delta] * header.record_count)
    return data, walk


def _recompress(
    records: bytearray | memoryview,
    headers: list[tuple[int, BatchHeader]],
    config: LogConfig,
    now_ms: int,
    budget: ValidationBudget | None,
) -> bytearray:
    rebuilt = bytearray()
    for position, header in headers:
        codec = target_codec(config, header)
        if codec == header.codec:
            newest = _check_records(records, position, header, config, now_ms, budget)
            start = len(rebuilt)
            rebuilt += memoryview(records)[position : position + header.size_in_bytes]
            patch_max_timestamp(rebuilt, start, header.timestamp_type, newest)
            continue
        _check_timestamp_type(header, header.record_count, config)
        data, walk = _decode(records, position, header, budget)
        _check_walk(walk, header, config, now_ms)
        if budget is not None:
            budget.spend((len(data) >> 10) * compression_cost(config, codec))
        level = level_of(config, codec)
        if not walk.is_in_order or header.timestamp_type != CREATE_TIME_ID:
            rebuilt += _renumber(records, position, header, codec, level, budget)
            continue
        payload = compress(codec, data, level) if codec else data
        # Before a hundred megabytes are copied in vain.
        check_size(len(payload) + BATCH_OVERHEAD, codec, config)
        rebuilt += assemble_batch(
            payload,
            base_offset=0,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
            max_timestamp=newest_timestamp(header.base_timestamp, walk.timestamp_deltas),
            record_count=header.record_count,
            attributes=header.attributes & TRANSACTIONAL_MASK | codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    return rebuilt


def _renumber(
    records: bytearray | memoryview,
    position: int,
    header: BatchHeader,
    codec: int,
    level: int | None,
    budget: ValidationBudget | None,
) -> bytes:
    """The batch rebuilt with offset deltas in order. No known client needs this."""
    if budget is not None:
        budget.spend(header.record_count * RECORD_REBUILT)
    section = read_section(records, position, header, MAX_DECOMPRESSED_BYTES)
    headers = section.headers or [[]] * len(section.keys)
    times = absolute_timestamps(header, section)
    return build_batch(
        zip(times, section.keys, section.values, headers, strict=True),
        codec=codec,
        level=level,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
    )


def _convert_old(
    records: bytearray | memoryview,
    config: LogConfig,
    now_ms: int,
    budget: ValidationBudget | None,
) -> bytearray:
    """Messages of magic 0 and 1 become one batch of magic 2.

    As Kafka, ignores a message that is cut off at the end.
    """
    limit = MAX_DECOMPRESSED_BYTES
    if budget is not None:
        # The number of messages, and their size, is known only after decompression.
        limit = min(limit, budget.left // RECORD_REBUILT * MESSAGE_BYTES)
        if len(records) > limit:
            raise ValidationBudgetExceeded
        limit = min(limit, budget.decompressed_bytes)
    end = 0
    for position, header in iterate_entries(records):
        end = position + header.size_in_bytes
        if header.size_in_bytes > config.max_message_bytes:
            raise RecordTooLargeError(
                f"a message of {header.size_in_bytes} bytes is larger than"
                f" max.message.bytes={config.max_message_bytes}"
            )
        _check_timestamp_type(header, 1, config)
    if not end:
        # Kafka appends nothing and acknowledges.
        raise InvalidRecordError("the only message is cut off")
    stamp = config.message_timestamp_type == LOG_APPEND_TIME
    codec = None if config.compression_type == KEEP_CODEC else CODECS[config.compression_type]
    try:
        batch = up_convert(
            memoryview(records)[:end],
            2,
            codec=codec,
            level=None if codec is None else level_of(config, codec),
            timestamp_type=LOG_APPEND_TIME_ID if stamp else CREATE_TIME_ID,
            log_append_time=now_ms,
            max_decompressed_bytes=limit,
        )
    except DecompressedTooLargeError:
        if budget is None:
            raise
        raise ValidationBudgetExceeded from None
    if budget is not None:
        budget.spend(read_header(batch).record_count * RECORD_REBUILT)
    if not stamp:
        _check_records(bytearray(batch), 0, read_header(batch), config, now_ms, budget)
    elif config.compact:
        header = read_header(batch)
        # Checks the keys only: this broker has set the timestamps.
        unstamped = header._replace(attributes=header.attributes & CODEC_MASK)
        _check_records(bytearray(batch), 0, unstamped, config, 0, budget)
    return bytearray(batch)


def _in_old_format(
    validated: ValidatedRecords, now_ms: int, budget: ValidationBudget | None
) -> ValidatedRecords:
    config = validated.config
    if budget is not None:
        for _, header, _ in validated.batches:
            cost = header.record_count * RECORD_REBUILT
            budget.spend(
                cost + (header.size_in_bytes >> 10) * compression_cost(config, header.codec)
            )
    stamp = config.message_timestamp_type == LOG_APPEND_TIME and config.record_magic > 0
    old = to_old_messages(
        validated.buffer,
        [(position, header) for position, header, _ in validated.batches],
        config.record_magic,
        level_of=lambda codec: level_of(config, codec),
        log_append_time=now_ms if stamp else -1,
        max_decompressed_bytes=MAX_DECOMPRESSED_BYTES,
    )
    for part in old.parts:
        if part.codec:
            check_size(len(part.content), part.codec, config)
    return validated._replace(old=old)


def _rebuilt(buffer: bytearray, config: LogConfig) -> ValidatedRecords:
    batches = []
    for position, header in iterate_entries(buffer):
        assert isinstance(header, BatchHeader)
        check_size(header.size_in_bytes, header.codec, config)
        batches.append(ValidBatch(position, header, header.max_timestamp))
    return ValidatedRecords(buffer, batches, config)


CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
KEEP_CODEC = "producer"


def target_codec(config: LogConfig, header: BatchHeader) -> int:
    """The codec with which a batch is stored."""
    if config.compression_type == KEEP_CODEC or header.is_control:
        return header.codec
    return CODECS[config.compression_type]


def level_of(config: LogConfig, codec: int) -> int | None:
    """The level of a codec, None for one without levels."""
    if codec == GZIP:
        return config.compression_gzip_level
    if codec == LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == ZSTD else None


def compression_cost(config: LogConfig, codec: int) -> int:
    """The cost of compressing one KiB, in units of `validation_budget`."""
    if not codec:
        return 0
    level = level_of(config, codec)
    usual = {SNAPPY: None, LZ4: DEFAULT_LZ4_LEVEL, ZSTD: DEFAULT_ZSTD_LEVEL}
    return KIB_COMPRESSED if codec in usual and usual[codec] == level else KIB_COMPRESSED_WELL


def check_size(size: int, codec: int, config: LogConfig) -> None:
    """Raise RecordTooLargeError for a batch that is too large after compression."""
    if size > config.max_message_bytes:
        raise RecordTooLargeError(
            f"a batch has {size} bytes with {codec_name(codec)} compression, more than"
            f" max.message.bytes={config.max_message_bytes}"
        )
