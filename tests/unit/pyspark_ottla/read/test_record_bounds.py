"""Where records begin, against a walk over their lengths one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.protocol.records.errors import InvalidRecordError
from pyspark_ottla.read.record_bounds import RUN_MIN, RecordBounds


def varint(value: int) -> bytes:
    value <<= 1  # zigzag of a number that is not negative
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def section(sizes: list[int], fill: int = 0) -> tuple[bytes, list[int]]:
    """Records of these sizes, and where each begins and the last one ends."""
    out, begins = bytearray(), []
    for size in sizes:
        begins.append(len(out))
        out += varint(size) + bytes([fill]) * size
    return bytes(out), [*begins, len(out)]


def find(data: bytes, *counts: int, end: int | None = None) -> list[list[int]]:
    """The bounds of the same batch several times, of which each lies after the one before."""
    raw = np.frombuffer(data, np.uint8)
    bounds = RecordBounds()
    for number, count in enumerate(counts):
        bounds.add(data, raw, 0, end or len(data), count, shift=number * len(data))
    return [[int(bound) for bound in some] for some in bounds.starts_and_ends()]


RUNS = st.lists(
    st.tuples(st.sampled_from([0, 1, 5, 63, 64, 200, 8191, 8192]), st.integers(1, 300)), max_size=5
)


@given(RUNS, st.sampled_from([0, 10, 255]))
@example([(5, 2 * RUN_MIN)], 10)  # the bytes of a record are its length again
@example([(64, 200), (63, 200)], 0)
def test_runs_of_equal_and_of_other_lengths(runs: list[tuple[int, int]], fill: int) -> None:
    data, begins = section([size for size, times in runs for _ in range(times)], fill)
    assert find(data, len(begins) - 1) == [begins[:-1], begins[1:]]


@given(st.lists(st.integers(0, 20_000), max_size=400))
def test_any_lengths(sizes: list[int]) -> None:
    data, begins = section(sizes)
    again = [begin + len(data) for begin in begins]
    expected = [begins[:-1] + again[:-1], begins[1:] + again[1:]]
    assert find(data, len(sizes), len(sizes)) == expected


@pytest.mark.parametrize("times", [10, 1000])
def test_records_that_do_not_fill_the_batch(times: int) -> None:
    data, _ = section([10] * times)
    for wrong, count in (
        (data, times - 1),
        (data, times + 1),
        (data[:-1], times),
        (data + b"\0", times),
        (data[:-11] + b"\xff" * 11, times),
        (b"\xff" * 40 + data, times),
    ):
        with pytest.raises(InvalidRecordError, match=f"its {count} records do not fill it"):
            find(wrong, count)


def test_a_run_ends_with_its_batch() -> None:
    """What follows in the buffer looks like more of the same records."""
    data, begins = section([10] * 200)
    assert find(data * 2, 200, end=len(data)) == [begins[:-1], begins[1:]]
    with pytest.raises(InvalidRecordError):
        find(data * 2, 300, end=len(data))
