"""What is recognized is valid, too; what is usual is recognized."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.check import LEAST_RUN, check_records
from ottla.storage.records.plain_records import newest_of_plain_records

TIME = 1_700_000_000_000
TEXTS = st.one_of(st.none(), st.binary(max_size=200), st.just(b"x" * 20_000))


def content(*values: tuple[int, bytes | None, bytes | None]) -> bytearray:
    records = [(TIME + delta, key, value, []) for delta, key, value in values]
    return bytearray(build_batch(records)[61:])


@given(st.lists(st.tuples(st.integers(0, 8000), TEXTS, TEXTS), min_size=1, max_size=LEAST_RUN - 1))
def test_usual_records_are_recognized(values: list[tuple[int, bytes | None, bytes | None]]) -> None:
    data = content((0, b"k", b"v"), *values[1:])
    count = len(values)
    framed = b"before" + data + b"behind"
    newest = max([0, *(delta for delta, _, _ in values[1:])])
    assert newest_of_plain_records(bytearray(framed), 6, 6 + len(data), count) == newest
    assert newest_of_plain_records(memoryview(framed), 6, 6 + len(data), count) == newest
    assert newest_of_plain_records(data, 0, len(data), count + 1) == -1
    assert newest_of_plain_records(data, 0, len(data) - 1, count) == -1
    assert check_records(bytes(data), 0, len(data), count) == newest


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
        newest = newest_of_plain_records(data, 0, len(data), count)
        if newest >= 0:
            recognized += 1
            assert check_records(bytes(data), 0, len(data), count) == newest
    assert recognized > 50


def test_a_record_that_extends_beyond_the_batch_is_not_recognized() -> None:
    one, two = content((0, None, b"value")), content((0, None, b"value" * 3))
    framed = two + one
    assert newest_of_plain_records(framed, 0, len(one), 1) == -1


def test_headers_and_long_timestamps_are_left_to_the_other_check() -> None:
    headers = build_batch([(TIME, None, b"v", [("h", b"x")])])[61:]
    assert newest_of_plain_records(bytearray(headers), 0, len(headers), 1) == -1
    late = content((0, None, b"v"), (10_000_000, None, b"v"))
    assert newest_of_plain_records(late, 0, len(late), 2) == -1
    assert check_records(bytes(late), 0, len(late), 2) == 10_000_000


def test_negative_timestamp_deltas_are_left_to_the_other_check() -> None:
    data = bytearray.fromhex("0e 00 01 00 01 02 61 00")
    assert newest_of_plain_records(data, 0, len(data), 1) == -1
    assert check_records(bytes(data), 0, len(data), 1) == -1
