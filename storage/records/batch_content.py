"""The content of one batch: decompressing it within limits, and checking that records fill it."""

from __future__ import annotations

from ottla.protocol.records.batch import BATCH_OVERHEAD
from ottla.protocol.records.check import LEAST_RUN, check_records
from ottla.protocol.records.compression import decompress
from ottla.protocol.records.errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    InvalidRecordError,
    RecordsError,
    RecordTooLargeError,
)
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.section import check_count
from ottla.storage.records.plain_records import are_plain_records
from ottla.storage.records.validation_budget import (
    KIB_DECOMPRESSED,
    RECORD_CHECKED,
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


def check_content(
    records: bytearray | memoryview,
    position: int,
    size: int,
    codec: int,
    count: int,
    budget: ValidationBudget | None,
) -> None:
    """Checks that a batch of `size` bytes decompresses and that `count` records fill it.

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
    if not codec and count < LEAST_RUN and are_plain_records(records, start, end, count):
        return
    content = memoryview(records)[start:end]
    if not codec:
        # Reading single bytes of a memoryview takes longer than this copy.
        check_records(bytes(content), 0, end - start, count)
        return
    try:
        data = decompress_content(codec, content, budget)
    except CorruptRecordError as error:
        # Not CORRUPT_MESSAGE, which producers retry: the checksum is right, they sent it like this.
        raise InvalidRecordError(str(error)) from None
    check_records(data, 0, len(data), count)


def check_number(count: int) -> None:
    """Raises RecordTooLargeError for more records than are read individually."""
    if count > MAX_RECORDS_DECODED:
        raise RecordTooLargeError(
            f"a batch has {count} records; the broker checks each, up to {MAX_RECORDS_DECODED}"
        )


def decompress_content(codec: int, content: memoryview, budget: ValidationBudget | None) -> bytes:
    """The records of a batch. Raises as `check_content`, but CorruptRecordError for what does not
    decompress."""
    if not codec:
        return bytes(content)
    if budget is None:
        return decompress(codec, content, MAX_DECOMPRESSED_BYTES)
    try:
        data = decompress(codec, content, min(MAX_DECOMPRESSED_BYTES, budget.decompressed_bytes))
    except DecompressedTooLargeError:
        # Whether it also exceeds the absolute limit is not known.
        raise ValidationBudgetExceeded from None
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
