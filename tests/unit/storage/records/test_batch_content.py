from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from ottla.protocol.records.errors import InvalidRecordError, RecordTooLargeError
from ottla.protocol.records.varint import wrap_int64
from ottla.storage.records.batch_content import (
    MAX_RECORDS_DECODED,
    check_content,
    check_number,
    decompress_content,
    newest_timestamp,
)
from ottla.storage.records.validation_budget import ValidationBudget, ValidationBudgetExceeded

BATCH_OVERHEAD = 61
BATCH = build_batch([(1, None, b"value" * 300, [])] * 100, codec=ZSTD)


def test_a_batch_anywhere_in_a_buffer() -> None:
    buffer = bytearray(b"before" + BATCH + b"after")
    check_content(buffer, 6, len(BATCH), ZSTD, 100, 1, None)
    with pytest.raises(InvalidRecordError):
        check_content(buffer, 6, len(BATCH), ZSTD, 99, 1, None)


def test_decompression_and_records_cost() -> None:
    budget = ValidationBudget()
    before = budget.left
    check_content(bytearray(BATCH), 0, len(BATCH), ZSTD, 100, 1, budget)
    assert before - budget.left >= 100 + 4 * 146  # 150 KB
    with pytest.raises(ValidationBudgetExceeded):
        check_content(bytearray(BATCH), 0, len(BATCH), ZSTD, 100, 1, ValidationBudget(99))
    with pytest.raises(ValidationBudgetExceeded):
        check_content(bytearray(BATCH), 0, len(BATCH), ZSTD, 100, 1, ValidationBudget(300))


def varlong(value: int) -> bytes:
    rest = ((value << 1) ^ (value >> 63)) & ((1 << 64) - 1)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def records_with(deltas: list[int], size: int, rng: random.Random) -> bytes:
    """Records with these timestamp deltas; of the same length if `size` is not 0."""
    content = bytearray()
    for index, delta in enumerate(deltas):
        value = bytes(size or rng.randrange(90))
        body = b"\0" + varlong(delta) + varlong(index) + b"\x01"
        body += varlong(len(value)) + value + b"\0"
        content += varlong(len(body)) + body
    return bytes(content)


_SMALL = st.one_of(st.integers(0, 63), st.integers(-64, 63), st.integers(-8192, 8191))
_DELTAS = st.one_of(_SMALL, st.integers(-(2**40), 2**40), st.integers(-(2**63), 2**63 - 1))


@given(
    st.one_of(
        st.lists(_SMALL, min_size=1, max_size=300),
        st.lists(st.integers(0, 8191), min_size=1, max_size=300).map(sorted),
        st.lists(_DELTAS, min_size=1, max_size=40),
    ),
    st.one_of(st.just(1_700_000_000_000), st.just(-1), st.integers(-(2**63), 2**63 - 1)),
    st.sampled_from((0, 0, 5, 70)),
    st.sampled_from((NONE, GZIP, SNAPPY, LZ4, ZSTD)),
)
@example([-1, -5], 1_700_000_000_000, 5, NONE)
@example([*range(100), 3, 8191, 5], 0, 5, NONE)
@example([8191, -8192, 8190, *[8064] * 20], 0, 0, NONE)
@example([-(2**63)], -2, 0, NONE)
def test_the_newest_timestamp_is_that_of_the_records(
    deltas: list[int], base: int, size: int, codec: int
) -> None:
    payload = compress(codec, records_with(deltas, size, random.Random(1)))
    batch = bytes(BATCH_OVERHEAD) + payload
    newest = max(-1, *(wrap_int64(base + delta) for delta in deltas))
    found = check_content(bytearray(batch), 0, len(batch), codec, len(deltas), base, None)
    assert found == newest
    assert newest_timestamp(base, deltas) == newest


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_what_does_not_decompress_is_no_damage_on_the_way(codec: int) -> None:
    with pytest.raises(InvalidRecordError):
        decompress_content(codec, memoryview(b"\xff" * 40), None)
    with pytest.raises(InvalidRecordError):
        decompress_content(codec, memoryview(b"\xff" * 40), ValidationBudget())


def test_a_claim_without_the_bytes_is_refused_before_any_work() -> None:
    with pytest.raises(InvalidRecordError):
        check_content(bytearray(100), 0, 100, NONE, 2**31 - 1, 1, ValidationBudget(0))
    with pytest.raises(RecordTooLargeError):
        check_content(bytearray(100), 0, 100, LZ4, 2**31 - 1, 1, ValidationBudget(0))
    check_number(MAX_RECORDS_DECODED)


def test_what_is_not_compressed_is_copied() -> None:
    assert decompress_content(NONE, memoryview(b"content"), None) == b"content"
    assert len(decompress_content(ZSTD, memoryview(BATCH)[BATCH_OVERHEAD:], None)) > 150_000
