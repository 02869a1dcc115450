"""Which ranges share a task, and the bounds of such a task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.read.reader import OffsetRangePartition, SharedPartition, to_input_partitions
from pyspark_ottla.read.sharing import (
    SHARED_BYTES_MAX,
    SHARED_RANGES_MAX,
    SMALL_OFFSETS_MAX,
    Sharing,
    share_tasks,
)
from pyspark_ottla.read.splitting import biggest_first


def ranges(*sizes: int) -> list[OffsetRange]:
    pieces = [OffsetRange(TopicPartition("t", n), 5, 5 + size) for n, size in enumerate(sizes)]
    return biggest_first(pieces)


def test_three_hundred_small_ranges_are_a_task_for_each_core() -> None:
    tasks = share_tasks(ranges(*[3] * 300), Sharing(4), lambda _: 100.0)
    assert [len(task) for task in tasks] == [75] * 4


def test_big_ranges_are_alone_and_count_for_the_cores() -> None:
    tasks = share_tasks(ranges(50_000, SMALL_OFFSETS_MAX + 1, 10, 10), Sharing(3), lambda _: 100.0)
    assert [len(task) for task in tasks] == [1, 1, 2]


def test_as_many_ranges_as_cores_are_left_alone_and_not_looked_at() -> None:
    def look(_: OffsetRange) -> float | None:
        raise AssertionError("a request")

    assert [len(task) for task in share_tasks(ranges(1, 2, 3), Sharing(4), look)] == [1, 1, 1]


@pytest.mark.parametrize(("size", "tasks"), [(100.0, 2), (1 << 20, 32), (None, 2)])
def test_bytes_bound_a_task(size: float | None, tasks: int) -> None:
    found = share_tasks(ranges(*[16] * 32), Sharing(2), lambda _: size)
    assert len(found) == tasks


def test_ranges_bound_a_task() -> None:
    assert len(share_tasks(ranges(*[1] * 1000), Sharing(2), lambda _: 1.0)) == -(
        -1000 // SHARED_RANGES_MAX
    )


@given(
    st.lists(st.integers(1, 9000), max_size=200),
    st.integers(1, 16),
    st.integers(1, 20_000),
    st.floats(0.5, 1e6),
)
def test_every_range_has_one_task(
    sizes: list[int], tasks_min: int, offsets_max: int, size: float
) -> None:
    pieces = ranges(*sizes)
    tasks = share_tasks(pieces, Sharing(tasks_min, offsets_max), lambda _: size)
    assert sorted(piece for task in tasks for piece in task) == sorted(pieces)
    assert len(tasks) >= min(tasks_min, len(pieces))
    for task in tasks:
        if len(task) > 1:
            total = sum(piece.size for piece in task)
            assert total <= offsets_max
            assert total * size <= SHARED_BYTES_MAX


def test_options() -> None:
    base = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}

    def tasks(**given: str) -> list[int]:
        options = parse_source_options(base | given)
        found = to_input_partitions(options, ranges(*[10] * 40), None, lambda *_: 100.0)
        return [len(task.parts) if isinstance(task, SharedPartition) else 1 for task in found]

    assert tasks(numCores="4") == [10] * 4
    assert tasks(numCores="4", minPartitions="8") == [5] * 8
    assert tasks(numCores="4", maxRecordsPerPartition="20") == [2] * 20
    assert tasks(sharedTasks="false") == [1] * 40
    options = parse_source_options(base | {"numCores": "4"})
    plain = to_input_partitions(options, ranges(*[10] * 40))
    assert all(isinstance(task, OffsetRangePartition) for task in plain)
