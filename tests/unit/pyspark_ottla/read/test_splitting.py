"""Rate limits and task ranges: the JVM connector's arithmetic, and what must always hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.offsets import OffsetRange, Offsets
from pyspark_ottla.read.splitting import limit_offsets, split_ranges

A, B, C, D = (TopicPartition("t", number) for number in range(4))


def test_limit_is_shared_by_backlog() -> None:
    start = {A: 0, B: 0, C: 50}
    end = {A: 300, B: 100, C: 50}
    assert limit_offsets(start, end, 40) == {A: 30, B: 10, C: 50}


def test_a_share_below_one_is_rounded_up() -> None:
    assert limit_offsets({A: 0, B: 0}, {A: 1000, B: 1}, 10) == {A: 9, B: 1}


def test_a_limit_above_the_backlog_takes_all() -> None:
    assert limit_offsets({A: 5}, {A: 9}, 100) == {A: 9}
    assert limit_offsets({A: 9}, {A: 9}, 100) == {A: 9}
    assert limit_offsets({A: 0}, {A: 2**63 - 1}, 2**63 - 1) == {A: 2**63 - 1}


def test_an_end_behind_the_start_is_left_alone() -> None:
    """Whether records were lost is for the reader to decide."""
    assert limit_offsets({A: 9, B: 0}, {A: 5, B: 10}, 4) == {A: 5, B: 4}


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", i), 0, size) for i, size in enumerate(sizes)]


def sizes(found: list[OffsetRange]) -> list[tuple[int, int]]:
    return sorted((piece.partition.partition, piece.size) for piece in found)


def test_without_limits_one_task_a_partition() -> None:
    assert sizes(split_ranges(ranges(5, 0, 7), minimum=None, records_max=None)) == [(0, 5), (2, 7)]
    assert sizes(split_ranges(ranges(5, 7), minimum=2, records_max=None)) == [(0, 5), (1, 7)]


@pytest.mark.parametrize(
    ("given_sizes", "minimum", "expected"),
    [
        # One partition is cut evenly, the last piece takes what is left over.
        ([4], 2, [(0, 2), (0, 2)]),
        ([5], 3, [(0, 1), (0, 2), (0, 2)]),
        # As many as requested, by size.
        ([100, 5], 3, [(0, 50), (0, 50), (1, 5)]),
        ([1, 2], 3, [(0, 1), (1, 1), (1, 1)]),
        # Fewer records than tasks: no empty ones.
        ([2], 9, [(0, 1), (0, 1)]),
        # Small ranges stay whole and do not use up the share of the big ones (SPARK-36576).
        ([1, 1, 100], 6, [(0, 1), (1, 1), (2, 25), (2, 25), (2, 25), (2, 25)]),
    ],
)
def test_minimum(given_sizes: list[int], minimum: int, expected: list[tuple[int, int]]) -> None:
    found = split_ranges(ranges(*given_sizes), minimum=minimum, records_max=None)
    assert sizes(found) == expected


def test_records_max_cuts_by_size() -> None:
    found = split_ranges(ranges(10, 3), minimum=None, records_max=4)
    assert sizes(found) == [(0, 3), (0, 3), (0, 4), (1, 3)]


def test_both_limits() -> None:
    found = split_ranges(ranges(8), minimum=4, records_max=4)
    assert sizes(found) == [(0, 2)] * 4


def test_the_biggest_come_first() -> None:
    found = split_ranges(ranges(3, 9, 5), minimum=None, records_max=None)
    assert [piece.size for piece in found] == [9, 5, 3]


@given(
    st.lists(st.integers(0, 10**6), max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(10**4, 10**6),
)
def test_every_offset_is_in_exactly_one_task(
    given_sizes: list[int], minimum: int | None, records_max: int | None
) -> None:
    whole = ranges(*given_sizes)
    found = split_ranges(whole, minimum=minimum, records_max=records_max)
    assert all(piece.size > 0 for piece in found)
    for one in whole:
        mine = sorted(piece[1:3] for piece in found if piece.partition == one.partition)
        position = one.start
        for start, end in mine:
            assert start == position
            position = end
        assert position == one.end
    if records_max is not None:
        assert all(piece.size <= records_max for piece in found)
    assert found == split_ranges(reversed(whole), minimum=minimum, records_max=records_max)


@given(
    st.dictionaries(st.sampled_from([A, B, C, D]), st.integers(0, 10**9), min_size=1),
    st.integers(0, 10**9),
    st.integers(1, 10**6),
)
def test_a_limit_never_overshoots_and_always_moves(start: Offsets, more: int, limit: int) -> None:
    end = {tp: offset + more for tp, offset in start.items()}
    ends = limit_offsets(start, end, limit)
    assert all(start[tp] <= ends[tp] <= end[tp] for tp in start)
    assert sum(ends.values()) - sum(start.values()) <= limit + len(start)
    assert not more or any(ends[tp] > start[tp] for tp in start)
