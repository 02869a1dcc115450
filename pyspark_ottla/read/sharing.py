"""Small ranges of offsets share a task, because a task costs Spark more than reading them.

A topic with hundreds of partitions and a few records in each would be as many tasks, of some
milliseconds of work each and ten times that for their start. Ranges of up to a few thousand offsets
are therefore put together, as long as every core has a task, and a task stays short: its offsets
and the bytes that they are estimated to have are bounded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from pyspark_ottla.offsets import OffsetRange

# A range with more offsets has a task of its own.
SMALL_OFFSETS_MAX = 4096
# Of one task with several ranges: about a tenth of a second of decoding.
SHARED_OFFSETS_MAX = 16_384
SHARED_BYTES_MAX = 16 << 20
# Each range costs a request; a task with more of them would take a second.
SHARED_RANGES_MAX = 128
# Ranges whose records are looked at for their size.
SAMPLED_RANGES = 4
# Of records that could not be looked at; more than most records have.
UNKNOWN_OFFSET_BYTES = 16 << 10


class Sharing(NamedTuple):
    """How many tasks there are to be at least, and how many offsets a task may have at most."""

    tasks_min: int
    offsets_max: int = SHARED_OFFSETS_MAX


def cores(given: int | None) -> int:
    """The option numCores, or the cores of this machine."""
    return given or max(2, os.cpu_count() or 1)


def share_tasks(
    pieces: Sequence[OffsetRange],
    sharing: Sharing,
    bytes_per_offset: Callable[[OffsetRange], float | None],
) -> list[list[OffsetRange]]:
    """The ranges of each task; big ones alone and first. `bytes_per_offset` looks at the records of
    a range, and is called for few of them, if any can share a task."""
    small = [piece for piece in pieces if piece.size <= min(SMALL_OFFSETS_MAX, sharing.offsets_max)]
    chosen = set(small)
    alone = [[piece] for piece in pieces if piece not in chosen]
    least = max(1, sharing.tasks_min - len(alone))
    if len(small) <= least:
        return [[piece] for piece in pieces]
    average = _average_bytes(small, bytes_per_offset)
    total = sum(piece.size for piece in small)
    offsets_max = max(1, min(sharing.offsets_max, int(SHARED_BYTES_MAX / average)))
    count = max(least, -(-total // offsets_max), -(-len(small) // SHARED_RANGES_MAX))
    return alone + _divided(small, min(count, len(small)), offsets_max)


def _average_bytes(
    small: Sequence[OffsetRange], bytes_per_offset: Callable[[OffsetRange], float | None]
) -> float:
    """Of an offset; the largest of some ranges counts, as one of them may have large records."""
    biggest = sorted(small, key=lambda piece: (-piece.size, piece.partition))[:SAMPLED_RANGES]
    found = [bytes_per_offset(piece) for piece in biggest]
    return max((size for size in found if size), default=float(UNKNOWN_OFFSET_BYTES))


def _divided(small: Sequence[OffsetRange], count: int, offsets_max: int) -> list[list[OffsetRange]]:
    """At least `count` tasks of about the same size: each range goes to the smallest one, or to
    another one if that is full."""
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    waiting = [(0, number) for number in range(count)]  # offsets and number; the smallest first
    for piece in small:  # the biggest first
        # With no room in the smallest one, there is none in the others.
        if not waiting or (waiting[0][0] and waiting[0][0] + piece.size > offsets_max):
            heappush(waiting, (0, len(tasks)))
            tasks.append([])
        size, number = heappop(waiting)
        tasks[number].append(piece)
        if len(tasks[number]) < SHARED_RANGES_MAX:
            heappush(waiting, (size + piece.size, number))
    return [task for task in tasks if task]
