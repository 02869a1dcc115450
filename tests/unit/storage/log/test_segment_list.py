"""Segments in order."""

from typing import cast

import pytest

from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import SegmentList


class Fake:
    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset


def listed(*bases: int) -> tuple[SegmentList, dict[int, Segment]]:
    segments = SegmentList()
    by_base = {base: cast(Segment, Fake(base)) for base in bases}
    for segment in by_base.values():
        segments.add(segment)
    return segments, by_base


def test_they_are_kept_in_order() -> None:
    segments, by = listed(50, 0, 20)
    assert segments.base_offsets == [0, 20, 50]
    assert len(segments) == 3
    assert (segments.first, segments.active) == (by[0], by[50])
    assert list(segments) == [by[0], by[20], by[50]]


def test_finding() -> None:
    segments, by = listed(10, 20, 50)
    assert segments.floor(9) is None
    assert segments.floor(10) is by[10]
    assert segments.floor(49) is by[20]
    assert segments.floor(1000) is by[50]
    assert segments.after(by[10]) is by[20]
    assert segments.after(by[50]) is None
    assert segments.from_offset(0) == [by[10], by[20], by[50]]
    assert segments.from_offset(25) == [by[20], by[50]]
    assert segments.between(15, 20) == [by[10]]
    assert segments.between(15, 21) == [by[10], by[20]]
    assert segments.between(20, 20) == []


def test_changing_while_iterating() -> None:
    segments, by = listed(0, 10, 20)
    for segment in segments:
        segments.remove(segment)
    assert len(segments) == 0
    assert by


def test_doubles_and_other_files_are_refused() -> None:
    segments, _ = listed(0, 10)
    with pytest.raises(ValueError, match="already"):
        segments.add(cast(Segment, Fake(10)))
    with pytest.raises(ValueError, match="not in the list"):
        segments.remove(cast(Segment, Fake(10)))
    assert len(segments.clear()) == 2
    assert len(segments) == 0
