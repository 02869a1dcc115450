"""What is recognized is valid, too; what is usual is recognized."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.check import LEAST_RUN, check_records
from ottla.protocol.records.errors import InvalidRecordError
from ottla.storage.records.plain_records import are_plain_records

TIME = 1_700_000_000_000
TEXTS = st.one_of(st.none(), st.binary(max_size=200), st.just(b"x" * 20_000))


def content(*values: tuple[int, bytes | None, bytes | None]) -> bytearray:
    records = [(TIME + delta, key, value, []) for delta, key, value in values]
    return bytearray(build_batch(records)[61:])


def is_valid(data: bytes, count: int) -> bool:
    try:
        check_records(data, 0, len(data), count)
    except InvalidRecordError:
        return False
    return True


@given(st.lists(st.tuples(st.integers(0, 8000), TEXTS, TEXTS), min_size=1, max_size=LEAST_RUN - 1))
def test_usual_records_are_recognized(values: list[tuple[int, bytes | None, bytes | None]]) -> None:
    data = content((0, b"k", b"v"), *values[1:])
    count = len(values)
    framed = b"before" + data + b"behind"
    assert are_plain_records(bytearray(framed), 6, 6 + len(data), count)
    assert are_plain_records(memoryview(framed), 6, 6 + len(data), count)
    assert not are_plain_records(data, 0, len(data), count + 1)
    assert not are_plain_records(data, 0, len(data) - 1, count)
    assert is_valid(bytes(data), count)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_recognized_is_valid(seed: int) -> None:
    rng = random.Random(seed)
    recognized = 0
    for _ in range(300):
        count = rng.randrange(1, LEAST_RUN)
        data = content(
            *((n, rng.choice([None, b"key"]), b"v" * rng.choice([0, 5, 300])) for n in range(count))
        )
        for _ in range(rng.choice([0, 1, 1, 2])):
            position = rng.randrange(len(data))
            data[position] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        if are_plain_records(data, 0, len(data), count):
            recognized += 1
            assert is_valid(bytes(data), count)
    assert recognized > 50


def test_a_record_that_extends_beyond_the_batch_is_not_recognized() -> None:
    one, two = content((0, None, b"value")), content((0, None, b"value" * 3))
    framed = two + one
    assert not are_plain_records(framed, 0, len(one), 1)


def test_headers_and_long_timestamps_are_left_to_the_other_check() -> None:
    headers = build_batch([(TIME, None, b"v", [("h", b"x")])])[61:]
    assert not are_plain_records(bytearray(headers), 0, len(headers), 1)
    late = content((0, None, b"v"), (10_000_000, None, b"v"))
    assert not are_plain_records(late, 0, len(late), 2)
    assert is_valid(bytes(late), 2)
