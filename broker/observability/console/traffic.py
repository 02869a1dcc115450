"""Bytes and requests a second of the cluster: the sum over the brokers that report theirs.

Each broker of Ottla reports counts since its start in its state. A broker counts between two
samples that both have it: not when it has just been found, and not over a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.broker.metrics.traffic import Traffic


class Point(NamedTuple):
    """Rates per second at a time, of that many brokers."""

    time_ms: int
    bytes_in: float
    bytes_out: float
    requests: float
    brokers: int


class ClusterTraffic:
    """The last `max_points` samples. Loop only."""

    def __init__(self, max_points: int) -> None:
        self._points: deque[Point] = deque(maxlen=max_points)
        self._before: dict[int, Traffic] = {}
        self._before_ms = 0

    def add(self, now_ms: int, states: Mapping[int, Mapping[str, Any]]) -> None:
        """A sample: the state of each broker that has one, by its id."""
        found = {
            broker_id: Traffic(**state["traffic"])
            for broker_id, state in states.items()
            if state.get("traffic") is not None
        }
        seconds = (now_ms - self._before_ms) / 1000
        grown = [
            [now - then for now, then in zip(found[each], self._before[each], strict=True)]
            for each in found.keys() & self._before.keys()
        ]
        # Counts that went back are those of a broker that was started again.
        rising = [counts for counts in grown if min(counts) >= 0]
        if rising and seconds > 0:
            received, sent, requests = (
                sum(column) / seconds for column in zip(*rising, strict=True)
            )
            self._points.append(Point(now_ms, received, sent, requests, len(rising)))
        self._before, self._before_ms = found, now_ms

    def points(self) -> list[dict[str, float]]:
        """Oldest first."""
        return [point._asdict() for point in self._points]

    @property
    def brokers(self) -> int:
        """Of how many brokers the last point is; 0 without one."""
        return self._points[-1].brokers if self._points else 0
