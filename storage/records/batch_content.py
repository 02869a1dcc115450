"""The content of one batch: decompressing it within limits, checking that records fill it, and
finding their newest timestamp."""

from __future__ import annotations

from ottla.protocol.records.batch import BATCH_OVERHEAD, NO_TIMESTAMP
from ottla.protocol.records.check import (
    LEAST_RUN,
    check_each_record,
    check_records,
    walk_records,
)
from ottla.protocol.records.compression import decompress
from ottla.protocol.records.errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    InvalidRecordError,
    RecordsError,
    RecordTooLargeError,
)
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record_loop import check_count
from ottla.protocol.records.varint import wrap_int64
from ottla.storage.records.validation_budget import (
    KIB_DECOMPRESSED,
    RECORD_CHECKED,
    RECORD_FOUND,
    ValidationBudget,
    ValidationBudgetExceeded,
)

# Limit of decompression: a hundred times the default of max.message.bytes.
MAX_DECOMPRESSED_BYTES = 100 << 20
# Of a batch that is decompressed on the event loop, to check one entry of a time index: 10 ms.
_TIMES_BYTES_MAX = 4 << 20
# The most records of a batch that are decoded individually: half a second of work. Usual batches
# have thousands; a megabyte of compressed empty records could have a hundred million.
MAX_RECORDS_DECODED = 500_000
# Sums of smaller timestamps and deltas do not overflow 64 bits.
_LARGE_TIMESTAMP = 1 << 62


def check_content(
    records: bytearray | memoryview,
    position: int,
    size: int,
    codec: int,
    count: int,
    base_timestamp: int,
    budget: ValidationBudget | None,
) -> int:
    """Check that a batch of `size` bytes decompresses and that `count` records fill it; returns
    their newest timestamp, which the header may not have (Sarama up to 1.45.0 leaves it out).

    Consumers stop at a batch for which this does not hold. Raises InvalidRecordError,
    RecordTooLargeError, DecompressedTooLargeError, UnsupportedCompressionError, and
    ValidationBudgetExceeded when the work exceeds `budget`. Kafka's LogValidator does the same.
    """
    start, end = position + BATCH_OVERHEAD, position + size
    if count > MAX_RECORDS_DECODED:
        if not codec:
            check_count(count, start, end)
        check_number(count)
    if budget is not None:
        budget.spend(count * RECORD_CHECKED)
    if not codec and count < LEAST_RUN:
        # A copy of 16 KiB takes two thirds of the time of checking one record of that length.
        newest: int = check_each_record(records, start, end, 0, count)
        data = None
    else:
        content = memoryview(records)[start:end]
        # Reading single bytes of a memoryview takes longer than this copy.
        data = decompress_content(codec, content, budget) if codec else bytes(content)
        newest = check_records(data, 0, len(data), count)
    if 0 <= newest < _LARGE_TIMESTAMP and 0 <= base_timestamp < _LARGE_TIMESTAMP:
        return base_timestamp + newest
    if budget is not None:
        budget.spend(count * RECORD_FOUND)
    if data is None:
        data = bytes(memoryview(records)[start:end])
    return newest_timestamp(base_timestamp, walk_records(data, count).timestamp_deltas)


def newest_timestamp(base_timestamp: int, deltas: list[int]) -> int:
    """The newest timestamp of records, -1 if all are negative. Sums of 64 bits, as in Kafka."""
    newest = max(deltas, default=0)
    if 0 <= base_timestamp < _LARGE_TIMESTAMP and newest < _LARGE_TIMESTAMP:
        return max(base_timestamp + newest, NO_TIMESTAMP)
    return max([NO_TIMESTAMP, *(wrap_int64(base_timestamp + delta) for delta in deltas)])


def check_number(count: int) -> None:
    """Raise RecordTooLargeError for more records than are read individually."""
    if count > MAX_RECORDS_DECODED:
        raise RecordTooLargeError(
            f"a batch has {count} records; the broker checks each, up to {MAX_RECORDS_DECODED}"
        )


def decompress_content(codec: int, content: memoryview, budget: ValidationBudget | None) -> bytes:
    """The records of a batch. Raises as `check_content`."""
    if not codec:
        return bytes(content)
    limit = MAX_DECOMPRESSED_BYTES
    if budget is not None:
        limit = min(limit, budget.decompressed_bytes)
    try:
        data = decompress(codec, content, limit)
    except DecompressedTooLargeError:
        if budget is None:
            raise
        # Whether it also exceeds the absolute limit is not known.
        raise ValidationBudgetExceeded from None
    except CorruptRecordError as error:
        # Not CORRUPT_MESSAGE, which producers retry: the checksum is right, they sent it like this.
        raise InvalidRecordError(str(error)) from None
    if budget is not None:
        budget.spend((len(data) >> 10) * KIB_DECOMPRESSED)
    return data


def newest_in_records(content: bytes) -> int | None:
    """The newest timestamp of the records of a batch; None if they are too many, or damaged."""
    try:
        records = read_records(
            content, include_control=True, max_decompressed_bytes=_TIMES_BYTES_MAX
        )
        return max((record.timestamp for record in records), default=None)
    except RecordsError:
        return None
