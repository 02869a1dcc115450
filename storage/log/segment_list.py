"""The segments of a log in order, with lookup by offset."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from ottla.storage.log.segment import Segment


class SegmentList:
    """Segments sorted by base offset. The last one is the active one."""

    __slots__ = ("_bases", "_segments")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._segments: list[Segment] = []

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        """Iterates over a copy: the list may change during the iteration."""
        return iter(tuple(self._segments))

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def base_offsets(self) -> list[int]:
        return list(self._bases)

    def add(self, segment: Segment) -> None:
        """Inserts a segment. Raises ValueError when there is one with the same base offset."""
        index = bisect_left(self._bases, segment.base_offset)
        if index < len(self._bases) and self._bases[index] == segment.base_offset:
            raise ValueError(
                f"a segment with base offset {segment.base_offset} is in the list already"
            )
        self._bases.insert(index, segment.base_offset)
        self._segments.insert(index, segment)

    def remove(self, segment: Segment) -> None:
        index = bisect_left(self._bases, segment.base_offset)
        if index == len(self._bases) or self._segments[index] is not segment:
            raise ValueError(f"{segment!r} is not in the list")
        del self._bases[index]
        del self._segments[index]

    def clear(self) -> list[Segment]:
        """Removes and returns all segments."""
        removed = self._segments
        self._bases, self._segments = [], []
        return removed

    def floor(self, offset: int) -> Segment | None:
        """The last segment whose base offset is at or below `offset`, None if there is none."""
        index = bisect_right(self._bases, offset) - 1
        return self._segments[index] if index >= 0 else None

    def after(self, segment: Segment) -> Segment | None:
        """The next segment, None for the last one."""
        index = bisect_right(self._bases, segment.base_offset)
        return self._segments[index] if index < len(self._segments) else None

    def from_offset(self, offset: int) -> list[Segment]:
        """Every segment that may contain `offset` or a later one."""
        index = max(0, bisect_right(self._bases, offset) - 1)
        return self._segments[index:]

    def between(self, start: int, end: int) -> list[Segment]:
        """Every segment that may contain an offset in [start, end)."""
        if start >= end:
            return []
        low = max(0, bisect_right(self._bases, start) - 1)
        return self._segments[low : bisect_left(self._bases, end)]
