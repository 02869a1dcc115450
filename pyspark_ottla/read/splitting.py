"""How much a trigger takes and how a range becomes tasks. Pure arithmetic on offsets.

Both follow the rules of Spark's JVM connector (its `rateLimit` and `KafkaOffsetRangeCalculator`),
because users size their clusters by them. Neither reads from the cluster: a batch that is planned
again after a failure gets the same tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.offsets import OFFSET_MAX, OffsetRange, Offsets


def backlog(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """Offsets waiting per partition of `end`; none where `end` is not ahead."""
    return {tp: max(0, end[tp] - start.get(tp, end[tp])) for tp in end}


def limit_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int
) -> Offsets:
    """The end of a trigger that takes about `limit` offsets of what lies between start and end.

    Each partition gets its share of the limit by its share of the backlog, cut to a whole number;
    a share below one is rounded up, so that a quiet partition beside a busy one is not starved
    (and the total may exceed the limit by one for each such partition).
    """
    waiting = backlog(start, end)
    total = sum(waiting.values())
    if total == 0:
        return dict(end)
    ends: Offsets = {}
    for tp, size in waiting.items():
        share = limit * (size / total)
        taken = math.ceil(share) if share < 1 else math.floor(share)
        begin = start.get(tp, end[tp])
        ends[tp] = min(end[tp], OFFSET_MAX, begin + taken) if size else end[tp]
    return ends


def _share(size: int, total: int, parts: int) -> int:
    # floor(x + 0.5), as Java rounds; Python's round() goes to the even neighbour.
    return max(1, math.floor(size / total * parts + 0.5))


def _divide(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """`parts` ranges of nearly the same size; the later ones take what division leaves over."""
    pieces: list[OffsetRange] = []
    begin = whole.start
    for left in range(parts, 0, -1):
        end = begin + (whole.end - begin) // left
        if end > begin:
            pieces.append(whole._replace(start=begin, end=end))
        begin = end
    return pieces


def _divide_by_size(whole: OffsetRange, records_max: int) -> list[OffsetRange]:
    return _divide(whole, -(-whole.size // records_max))


def split_ranges(
    ranges: Iterable[OffsetRange], *, minimum: int | None, records_max: int | None
) -> list[OffsetRange]:
    """The ranges of the tasks, empty ones left out, the biggest first.

    `records_max` cuts every range into pieces of at most so many offsets. If that leaves fewer
    than `minimum` ranges, the big ones are cut in proportion to their size; those too small for
    a cut stay whole and do not count in the proportion of the rest. The result may be a little
    more or less than `minimum`.
    """
    pieces = [whole for whole in ranges if whole.size > 0]
    if records_max is not None:
        pieces = [piece for whole in pieces for piece in _divide_by_size(whole, records_max)]
    if minimum is not None and 0 < len(pieces) < minimum:
        total = sum(piece.size for piece in pieces)
        small = [piece for piece in pieces if _share(piece.size, total, minimum) == 1]
        big_total = total - sum(piece.size for piece in small)
        big_parts = max(1, minimum - len(small))
        whole_ones = set(small)
        pieces = [
            part
            for piece in pieces
            for part in (
                [piece]
                if piece in whole_ones
                else _divide(piece, _share(piece.size, big_total, big_parts))
            )
        ]
    return biggest_first(pieces)


def biggest_first(pieces: Iterable[OffsetRange]) -> list[OffsetRange]:
    """A long task that starts last makes all others wait; by name, replays get the same order."""
    return sorted(pieces, key=lambda piece: (-piece.size, piece.partition, piece.start))
