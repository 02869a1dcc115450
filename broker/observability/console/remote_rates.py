"""What is copied, read and fails a second in remote storage, by topic, for the topics on pages.

Each broker of Ottla reports counts since its start. As in `traffic`, a broker counts between two
samples that both have it: not over a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_ERRORS = ("copy_errors", "read_errors", "delete_errors", "state_build_errors")
_Counts = tuple[float, float, float]


class RemotePoint(NamedTuple):
    """Rates per second of one topic, the sum of its brokers."""

    time_ms: int
    copied_bytes: float
    read_bytes: float
    errors: float


class RemoteRates:
    """The last `max_points` samples of the `max_topics` topics whose pages were opened last. Loop
    only."""

    def __init__(self, max_points: int, max_topics: int) -> None:
        self._max_points = max_points
        self._max_topics = max_topics
        self._points: dict[str, deque[RemotePoint]] = {}
        self._before: dict[tuple[str, int], _Counts] = {}
        self._before_ms = 0

    @property
    def is_watching(self) -> bool:
        """Whether a sample is of use: the page of a tiered topic was opened."""
        return bool(self._points)

    def watch(self, topic: str) -> list[dict[str, float]]:
        """The points of a topic, oldest first; later samples have it."""
        points = self._points.pop(topic, None)
        self._points[topic] = deque(maxlen=self._max_points) if points is None else points
        while len(self._points) > self._max_topics:
            del self._points[next(iter(self._points))]
        return [point._asdict() for point in self._points[topic]]

    def add(self, now_ms: int, reports: Mapping[int, Mapping[str, Any]]) -> None:
        """A sample: the reports of the brokers that respond (`remote_report`)."""
        seconds = (now_ms - self._before_ms) / 1000
        before, self._before = self._before, {}
        for topic, points in self._points.items():
            found = {
                (topic, broker_id): _counts(report["topics"][topic])
                for broker_id, report in reports.items()
                if topic in report["topics"]
            }
            self._before |= found
            grown = [
                [now - then for now, then in zip(found[each], before[each], strict=True)]
                for each in found.keys() & before.keys()
            ]
            # Counts that went back are those of a broker that was started again.
            rising = [counts for counts in grown if min(counts) >= 0]
            if rising and seconds > 0:
                rates = (sum(column) / seconds for column in zip(*rising, strict=True))
                points.append(RemotePoint(now_ms, *rates))
        self._before_ms = now_ms

    def keep(self, topics: Iterable[str]) -> None:
        """Forgets the topics that are not in the cluster any more."""
        for topic in self._points.keys() - set(topics):
            del self._points[topic]


def _counts(report: Mapping[str, float]) -> _Counts:
    """Of one topic on one broker; a broker that leads none of it reports no counts."""
    errors = sum(report.get(name, 0) for name in _ERRORS)
    return report.get("copied_bytes", 0), report.get("read_bytes", 0), errors
