from __future__ import annotations

import pytest

from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import LZ4, NONE, ZSTD
from ottla.protocol.records.errors import InvalidRecordError, RecordTooLargeError
from ottla.storage.records.batch_content import (
    MAX_RECORDS_DECODED,
    check_content,
    check_number,
    decompress_content,
)
from ottla.storage.records.validation_budget import ValidationBudget, ValidationBudgetExceeded

BATCH_OVERHEAD = 61
BATCH = build_batch([(1, None, b"value" * 300, [])] * 100, codec=ZSTD)


def test_a_batch_anywhere_in_a_buffer() -> None:
    buffer = bytearray(b"before" + BATCH + b"after")
    check_content(buffer, 6, len(BATCH), ZSTD, 100, None)
    with pytest.raises(InvalidRecordError):
        check_content(buffer, 6, len(BATCH), ZSTD, 99, None)


def test_decompression_and_records_cost() -> None:
    budget = ValidationBudget()
    before = budget.left
    check_content(bytearray(BATCH), 0, len(BATCH), ZSTD, 100, budget)
    assert before - budget.left >= 100 + 4 * 146  # 150 KB
    with pytest.raises(ValidationBudgetExceeded):
        check_content(bytearray(BATCH), 0, len(BATCH), ZSTD, 100, ValidationBudget(99))
    with pytest.raises(ValidationBudgetExceeded):
        check_content(bytearray(BATCH), 0, len(BATCH), ZSTD, 100, ValidationBudget(300))


def test_a_claim_without_the_bytes_is_refused_before_any_work() -> None:
    with pytest.raises(InvalidRecordError):
        check_content(bytearray(100), 0, 100, NONE, 2**31 - 1, ValidationBudget(0))
    with pytest.raises(RecordTooLargeError):
        check_content(bytearray(100), 0, 100, LZ4, 2**31 - 1, ValidationBudget(0))
    check_number(MAX_RECORDS_DECODED)


def test_what_is_not_compressed_is_copied() -> None:
    assert decompress_content(NONE, memoryview(b"content"), None) == b"content"
    assert len(decompress_content(ZSTD, memoryview(BATCH)[BATCH_OVERHEAD:], None)) > 150_000
