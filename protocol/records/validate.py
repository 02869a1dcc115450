"""The checks a broker makes before it appends what a client or a leader sent.

``validate_batch`` checks the header and the CRC and costs the same for one record as for a
thousand. ``validate_records`` walks the records, which means decompressing them: needed for
compacted topics (every record has a key), for limits on timestamps, and where a header is not to
be believed.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ottla.protocol.records.batch import (
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    read_header,
)
from ottla.protocol.records.compression import CODEC_NAMES, DEFAULT_MAX_DECOMPRESSED_BYTES
from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from ottla.protocol.records.reader import absolute_timestamps, read_section

# Reasons kept for one batch: enough to find the mistake, not a megabyte of them.
MAX_RECORD_ERRORS = 100


class RecordLimits(NamedTuple):
    """What a topic requires of each record.

    ``timestamp_before_max_ms`` and ``timestamp_after_max_ms`` are how far a timestamp may lie
    before and after ``now_ms``; None switches the check off.
    """

    require_key: bool = False
    now_ms: int = 0
    timestamp_before_max_ms: int | None = None
    timestamp_after_max_ms: int | None = None


class WalkedBatch(NamedTuple):
    """The result of walking the records of a batch; the offset is absolute as the header has it."""

    max_timestamp: int
    offset_of_max_timestamp: int
    record_count: int


def validate_batch(
    buffer: Buffer,
    position: int = 0,
    *,
    max_bytes: int | None = None,
    from_client: bool = True,
    verify_crc: bool = True,
) -> BatchHeader:
    """The header of the batch at ``position``, once everything is right that it alone can tell.

    With ``from_client`` also the rules for producers: base offset 0, as many records as offsets, no
    control batch, a sequence number if there is a producer id. Raises CorruptRecordError,
    InvalidRecordError, RecordTooLargeError or UnsupportedCompressionError.
    """
    header = read_header(buffer, position)
    size = header.size_in_bytes
    if size > len(buffer) - position:
        raise CorruptRecordError(
            f"record batch is {size} bytes long, only {len(buffer) - position} were received"
        )
    if from_client and header.base_offset != 0:
        raise InvalidRecordError(
            f"the base offset of a producer's record batch must be 0, it is {header.base_offset}"
        )
    if max_bytes is not None and size > max_bytes:
        raise RecordTooLargeError(
            f"record batch is {size} bytes long, the topic takes at most {max_bytes}"
        )
    if verify_crc:
        check_crc(buffer, position, header)
    if header.codec >= len(CODEC_NAMES):
        raise UnsupportedCompressionError(f"record batch has the unknown codec {header.codec}")
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise InvalidRecordError(
            f"record batch has {header.record_count} records and the last offset delta "
            f"{header.last_offset_delta}"
        )
    if header.record_count > header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"record batch has more records ({header.record_count}) than offsets "
            f"({header.last_offset_delta + 1})"
        )
    if from_client:
        _check_producer_rules(header)
    return header


def _check_producer_rules(header: BatchHeader) -> None:
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"record batch from a producer has {header.record_count} records but covers "
            f"{header.last_offset_delta + 1} offsets"
        )
    if header.is_control:
        raise InvalidRecordError("clients are not allowed to write control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise InvalidRecordError(
            f"record batch of producer {header.producer_id} has the invalid sequence number "
            f"{header.base_sequence}"
        )


def validate_records(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    limits: RecordLimits,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> WalkedBatch:
    """Walk the records of a batch that ``validate_batch`` has passed.

    Raises InvalidRecordError or InvalidTimestampError with the reason for each bad record, and what
    reading can raise. Offset deltas must count up from 0.
    """
    section = read_section(buffer, position, header, max_decompressed_bytes)
    count = len(section.keys)
    if section.offset_deltas != list(range(count)):
        index = next(i for i, delta in enumerate(section.offset_deltas) if delta != i)
        raise InvalidRecordError(
            f"record {index} has the offset delta {section.offset_deltas[index]}",
            [(index, f"its offset delta is {section.offset_deltas[index]}, {index} is expected")],
        )
    timestamps = absolute_timestamps(header, section)
    check_limits(
        ((key is not None, stamp) for key, stamp in zip(section.keys, timestamps, strict=True)),
        header.timestamp_type,
        limits,
    )
    max_timestamp = max(timestamps, default=NO_TIMESTAMP)
    offset = header.base_offset + (timestamps.index(max_timestamp) if count else 0)
    return WalkedBatch(max_timestamp, offset, count)


def check_limits(
    records: Iterable[tuple[bool, int]], timestamp_type: int, limits: RecordLimits
) -> None:
    """Hold (has key, timestamp) of each record against ``limits``; used for every magic.

    Raises InvalidTimestampError if any timestamp is wrong, else InvalidRecordError if any key is
    missing; all the reasons are in ``record_errors``.
    """
    errors: list[tuple[int, str]] = []
    earliest = latest = None
    bad_timestamp = False
    if limits.timestamp_before_max_ms is not None:
        earliest = limits.now_ms - limits.timestamp_before_max_ms
    if limits.timestamp_after_max_ms is not None:
        latest = limits.now_ms + limits.timestamp_after_max_ms
    for index, (has_key, timestamp) in enumerate(records):
        reason = None
        if limits.require_key and not has_key:
            reason = "a compacted topic takes no record without a key"
        elif timestamp_type == LOG_APPEND_TIME:
            reason = "a producer cannot set the timestamp type to LogAppendTime"
            bad_timestamp = True
        elif timestamp != NO_TIMESTAMP and (
            (earliest is not None and timestamp < earliest)
            or (latest is not None and timestamp > latest)
        ):
            reason = f"its timestamp {timestamp} is not within [{earliest}, {latest}]"
            bad_timestamp = True
        if reason is not None and len(errors) < MAX_RECORD_ERRORS:
            errors.append((index, reason))
    if bad_timestamp:
        raise InvalidTimestampError(
            "one or more records were rejected because of their timestamps", errors
        )
    if errors:
        shown = "; ".join(f"record {index}: {reason}" for index, reason in errors[:3])
        raise InvalidRecordError(f"one or more records were rejected: {shown}", errors)
