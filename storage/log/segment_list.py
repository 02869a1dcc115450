"""The segments of a log in order, found by offset."""

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
        """The segments as they are now; changes during the iteration are not seen."""
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
        """Puts a segment in its place; one with the same base offset must not be there."""
        index = bisect_left(self._bases, segment.base_offset)
        if index < len(self._bases) and self._bases[index] == segment.base_offset:
            raise ValueError(f"there is a segment at {segment.base_offset} already")
        self._bases.insert(index, segment.base_offset)
        self._segments.insert(index, segment)

    def remove(self, segment: Segment) -> None:
        index = bisect_left(self._bases, segment.base_offset)
        if index == len(self._bases) or self._segments[index] is not segment:
            raise ValueError(f"{segment!r} is not in this log")
        del self._bases[index]
        del self._segments[index]

    def clear(self) -> list[Segment]:
        """Removes and returns all segments."""
        removed = self._segments
        self._bases, self._segments = [], []
        return removed

    def floor(self, offset: int) -> Segment | None:
        """The segment that holds `offset` if any does: the last that begins at or below it."""
        index = bisect_right(self._bases, offset) - 1
        return self._segments[index] if index >= 0 else None

    def after(self, segment: Segment) -> Segment | None:
        """The segment behind this one."""
        index = bisect_right(self._bases, segment.base_offset)
        return self._segments[index] if index < len(self._segments) else None

    def from_offset(self, offset: int) -> list[Segment]:
        """Every segment that may hold `offset` or a later one."""
        index = max(0, bisect_right(self._bases, offset) - 1)
        return self._segments[index:]

    def between(self, start: int, end: int) -> list[Segment]:
        """Every segment that may hold an offset in [start, end)."""
        if start >= end:
            return []
        low = max(0, bisect_right(self._bases, start) - 1)
        return self._segments[low : bisect_left(self._bases, end)]
