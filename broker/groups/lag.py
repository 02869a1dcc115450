"""The consumer lag of groups, in records and in time, from the memory of the coordinator.

The lag in records is the high watermark less the committed offset. The lag in time is the age of
the oldest record after the committed offset, without a lookup of that record: each reading samples
the high watermarks with the time, and a later one interpolates between the two samples around the
committed offset. So the first readings are too low.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from ottla.broker.groups.admin import GroupAdmin
from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition

EndOffset = Callable[[TopicPartition], int | None]
"""The high watermark of a partition that this broker leads, None for any other."""

MAX_SAMPLES = 240  # an hour at one scrape in 15 s; of 20,000 partitions about 400 MB
MIN_SAMPLE_INTERVAL_MS = 1_000

Labels = tuple[str, str, str]


class Lags(NamedTuple):
    """Readings by (group, topic, partition)."""

    records: dict[tuple[str, ...], float]
    seconds: dict[tuple[str, ...], float]


class LogEndHistory:
    """Samples of the high watermark of one partition, each with its time range, oldest first."""

    __slots__ = ("offsets", "since_ms", "until_ms")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.since_ms: list[int] = []
        self.until_ms: list[int] = []

    def add_sample(self, offset: int, now_ms: int) -> None:
        if self.offsets:
            if offset == self.offsets[-1]:
                self.until_ms[-1] = now_ms
                return
            if offset < self.offsets[-1] or now_ms - self.since_ms[-1] < MIN_SAMPLE_INTERVAL_MS:
                return
        if len(self.offsets) >= MAX_SAMPLES:
            # Drops every second sample of the older half: old samples may be coarser.
            half = MAX_SAMPLES // 2
            for column in (self.offsets, self.since_ms, self.until_ms):
                column[:half] = column[:half:2]
        self.offsets.append(offset)
        self.since_ms.append(now_ms)
        self.until_ms.append(now_ms)

    def reaches(self, offset: int) -> bool:
        """Whether there is a sample at or before `offset`: else `written_ms` is too late."""
        return bool(self.offsets) and self.offsets[0] <= offset

    def written_ms(self, offset: int) -> int:
        """Return the approximate append time of the record at `offset`.

        It is after the last sample at or before that offset, and before the first sample beyond it.
        """
        index = bisect_right(self.offsets, offset)
        if index == len(self.offsets):
            return self.until_ms[-1]
        if index == 0:
            return self.since_ms[0]
        before, after = self.offsets[index - 1], self.offsets[index]
        begin, end = self.until_ms[index - 1], self.since_ms[index]
        return begin + round((offset - before) / (after - before) * (end - begin))


class LagReader:
    """Reads the lags of the groups of this coordinator. Loop only."""

    def __init__(self, admin: GroupAdmin, end_offset: EndOffset, now_ms: Callable[[], int]) -> None:
        self._admin = admin
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._ends: dict[TopicPartition, LogEndHistory] = {}
        self._labels: dict[int, str] = {}
        #: The last result of `read`.
        self.lags = Lags({}, {})

    def read(self) -> Steps[Lags]:
        """Return the lag of every committed offset of a partition that this broker leads.

        In a pause offsets may be committed; the end of each partition is read once.
        """
        now_ms = self._now_ms()
        ends: dict[TopicPartition, int | None] = {}
        records: dict[tuple[str, ...], float] = {}
        seconds: dict[tuple[str, ...], float] = {}
        for group in list(self._admin.all_groups()):
            group_id = group.group_id
            for partition, value in list(group.offsets.committed.items()):
                yield
                if partition in ends:
                    end = ends[partition]
                else:
                    end = ends[partition] = self._sample(partition, now_ms)
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
        for unused in self._ends.keys() - ends.keys():
            del self._ends[unused]
        self.lags = Lags(records, seconds)
        return self.lags

    def _sample(self, partition: TopicPartition, now_ms: int) -> int | None:
        end = self._end_offset(partition)
        if end is not None:
            found = self._ends.get(partition)
            if found is None:
                found = self._ends[partition] = LogEndHistory()
            found.add_sample(end, now_ms)
        return end

    def _label(self, index: int) -> str:
        label = self._labels.get(index)
        if label is None:
            label = self._labels[index] = str(index)
        return label
