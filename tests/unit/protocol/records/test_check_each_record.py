"""Records checked one by one where they are, in a buffer that goes on behind them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.check import LEAST_RUN, check_each_record, check_records
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.record import NewRecord

TIME = 1_700_000_000_000
TEXTS = st.one_of(st.none(), st.binary(max_size=200), st.just(b"x" * 20_000))
HEADERS = st.lists(st.tuples(st.text(max_size=9), st.one_of(st.none(), st.binary())), max_size=2)


def content(*values: NewRecord) -> bytearray:
    records = [(TIME + delta, key, value, headers) for delta, key, value, headers in values]
    return bytearray(build_batch(records)[61:])


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000_000), TEXTS, TEXTS, HEADERS),
        min_size=1,
        max_size=LEAST_RUN - 1,
    )
)
def test_bytes_around_the_records_do_not_matter(values: list[NewRecord]) -> None:
    data = content((0, b"k", b"v", []), *values[1:])
    count = len(values)
    framed = b"before" + data + b"behind"
    newest = max([0, *(delta for delta, *_ in values[1:])])
    for buffer in (bytearray(framed), memoryview(framed), framed):
        assert check_each_record(buffer, 6, 6 + len(data), 0, count) == newest
        for wrong_end, wrong_count in ((6 + len(data), count + 1), (5 + len(data), count)):
            with pytest.raises(InvalidRecordError):
                check_each_record(buffer, 6, wrong_end, 0, wrong_count)
    assert check_records(bytes(data), 0, len(data), count) == newest


@pytest.mark.parametrize("seed", range(20))
def test_damaged_records_are_refused_as_in_a_buffer_of_their_own(seed: int) -> None:
    rng = random.Random(seed)
    valid = 0
    for _ in range(300):
        count = rng.randrange(1, LEAST_RUN)
        data = content(
            *(
                (n, rng.choice([None, b"key"]), b"v" * rng.choice([0, 5, 300]), [])
                for n in range(count)
            )
        )
        for _ in range(rng.choice([0, 1, 1, 2])):
            position = rng.randrange(len(data))
            data[position] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        try:
            newest = check_records(bytes(data), 0, len(data), count)
        except InvalidRecordError:
            with pytest.raises(InvalidRecordError):
                check_each_record(data + bytes(99), 0, len(data), 0, count)
        else:
            valid += 1
            assert check_each_record(data + bytes(99), 0, len(data), 0, count) == newest
    assert valid > 50


def test_a_record_that_extends_into_the_next_batch_is_refused() -> None:
    one, two = content((0, None, b"value", [])), content((0, None, b"value" * 3, []))
    with pytest.raises(InvalidRecordError, match="extends beyond its end"):
        check_each_record(two + one, 0, len(one), 0, 1)


def test_negative_timestamp_deltas_alone() -> None:
    data = bytearray.fromhex("0e 00 01 00 01 02 61 00")
    assert check_each_record(data, 0, len(data), 0, 1) == -1
