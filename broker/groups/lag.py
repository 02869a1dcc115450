"""How far groups are behind, in records and in time, out of the coordinator's memory.

The lag in records is the end of the log less the committed offset. The lag in time is the age of
the oldest record that was not read: no record is looked up for it. Whenever somebody asks, the
ends of the logs are noted with the time; a later question finds between which two notes the
committed offset was the end. So the first answers are too small, and then they get right.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from ottla.broker.groups.admin import GroupAdmin
from ottla.protocol.topics import TopicPartition

EndOffset = Callable[[TopicPartition], int | None]
"""The high watermark of a partition that this broker leads, None for any other."""

MAX_NOTES = 240  # an hour at one scrape in 15 s; 20,000 partitions with them take about 400 MB
MIN_NOTE_INTERVAL_MS = 1_000

Labels = tuple[str, str, str]


class Lags(NamedTuple):
    """Readings by (group, topic, partition)."""

    records: dict[tuple[str, ...], float]
    seconds: dict[tuple[str, ...], float]


class _Ends:
    """Where the end of one log was, since when and until when, oldest first."""

    __slots__ = ("offsets", "since_ms", "until_ms")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.since_ms: list[int] = []
        self.until_ms: list[int] = []

    def note(self, offset: int, now_ms: int) -> None:
        if self.offsets:
            if offset == self.offsets[-1]:
                self.until_ms[-1] = now_ms
                return
            if offset < self.offsets[-1] or now_ms - self.since_ms[-1] < MIN_NOTE_INTERVAL_MS:
                return
        if len(self.offsets) >= MAX_NOTES:
            # Every second note of the older half goes: far back, a coarser picture will do.
            half = MAX_NOTES // 2
            for column in (self.offsets, self.since_ms, self.until_ms):
                column[:half] = column[:half:2]
        self.offsets.append(offset)
        self.since_ms.append(now_ms)
        self.until_ms.append(now_ms)

    def written_ms(self, offset: int) -> int:
        """About when the record at `offset` was written: after the end was last seen at or
        before it, and before the end was first seen behind it."""
        index = bisect_right(self.offsets, offset)
        if index == len(self.offsets):
            return self.until_ms[-1]
        if index == 0:
            return self.since_ms[0]
        before, after = self.offsets[index - 1], self.offsets[index]
        begin, end = self.until_ms[index - 1], self.since_ms[index]
        return begin + round((offset - before) / (after - before) * (end - begin))


class LagReader:
    """Reads all lags of the groups coordinated here. Loop only."""

    def __init__(self, admin: GroupAdmin, end_offset: EndOffset, now_ms: Callable[[], int]) -> None:
        self._admin = admin
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._ends: dict[TopicPartition, _Ends] = {}
        self._labels: dict[int, str] = {}

    def read(self) -> Lags:
        """Every committed offset in a partition that is led here, and how far it is behind."""
        now_ms = self._now_ms()
        ends: dict[TopicPartition, int | None] = {}
        records: dict[tuple[str, ...], float] = {}
        seconds: dict[tuple[str, ...], float] = {}
        for group in self._admin.all_groups():
            group_id = group.group_id
            for partition, value in group.offsets.committed.items():
                if partition in ends:
                    end = ends[partition]
                else:
                    end = ends[partition] = self._note(partition, now_ms)
                if end is None:
                    continue
                topic, index = partition
                labels = (group_id, topic, self._label(index))
                behind = end - value.offset
                if behind > 0:
                    records[labels] = behind
                    written_ms = self._ends[partition].written_ms(value.offset)
                    seconds[labels] = max(0, now_ms - written_ms) / 1000
                else:
                    records[labels] = seconds[labels] = 0
        for forgotten in self._ends.keys() - ends.keys():
            del self._ends[forgotten]
        return Lags(records, seconds)

    def _note(self, partition: TopicPartition, now_ms: int) -> int | None:
        end = self._end_offset(partition)
        if end is not None:
            found = self._ends.get(partition)
            if found is None:
                found = self._ends[partition] = _Ends()
            found.note(end, now_ms)
        return end

    def _label(self, index: int) -> str:
        label = self._labels.get(index)
        if label is None:
            label = self._labels[index] = str(index)
        return label
