"""What the console draws over time: the broker's rates and the groups' lags, an hour of them."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

from ottla.broker.groups.lag import LagReader
from ottla.broker.observability.end_offsets import end_offset_reader
from ottla.broker.runtime.tasks import spawn, stop

if TYPE_CHECKING:
    from ottla.broker.observability.console.console_parts import ConsoleParts

INTERVAL_SECONDS = 5.0
# An hour. A point of the broker is four numbers, one of a group is two.
MAX_POINTS = 720
# With the points above about 15 MB at worst; the groups with the greatest lag are kept.
MAX_GROUPS = 200


class History:
    """Samples every few seconds while the console is on. Loop only."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts
        self._lags = LagReader(
            parts.groups.admin,
            end_offset_reader(parts.replica_manager),
            parts.now_ms,
        )
        #: (time in ms, bytes in, bytes out, requests) since the start, oldest first.
        self.totals: deque[tuple[int, int, int, int]] = deque(maxlen=MAX_POINTS)
        self._group_lags: dict[str, deque[tuple[int, int]]] = {}
        self._group_seconds: dict[str, float] = {}  # of the groups above
        self._task: asyncio.Task[None] | None = None
        self.started_ms = parts.now_ms()

    def start(self) -> None:
        self._task = spawn(self._run(), name="console-history")

    async def stop(self) -> None:
        if self._task is not None:
            await stop(self._task)
            self._task = None

    async def _run(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(INTERVAL_SECONDS)

    def sample(self) -> None:
        """Notes one point of everything."""
        parts = self._parts
        now_ms = parts.now_ms()
        statistics = parts.network.statistics
        requests = sum(
            count
            for route in parts.request_channel.routes.values()
            for count in route.statistics.by_version.values()
        )
        self.totals.append((now_ms, statistics.bytes_in, statistics.bytes_out, requests))
        self._note_lags(now_ms)

    def _note_lags(self, now_ms: int) -> None:
        sums: dict[str, int] = {}
        longest: dict[str, float] = {}
        found = self._lags.read()
        for labels, records in found.records.items():
            group_id = labels[0]
            sums[group_id] = sums.get(group_id, 0) + int(records)
            longest[group_id] = max(longest.get(group_id, 0.0), found.seconds[labels])
        chosen = sorted(sums, key=lambda name: -sums[name])[:MAX_GROUPS]
        known = self._group_lags
        # A group that is gone, or has caught up while others are behind, makes room.
        self._group_lags = {
            name: known.get(name) or deque(maxlen=MAX_POINTS) for name in sorted(chosen)
        }
        for name, points in self._group_lags.items():
            points.append((now_ms, sums[name]))
        self._group_seconds = {name: longest[name] for name in self._group_lags}

    def lag_points(self, group_id: str) -> list[tuple[int, int]]:
        """(time in ms, records behind) of one group, oldest first."""
        return list(self._group_lags.get(group_id, ()))

    def lag_seconds(self, group_id: str) -> float | None:
        """The age of the oldest record that the group has not committed, at the last sample."""
        return self._group_seconds.get(group_id)

    def lags(self, group_id: str) -> dict[tuple[str, int], tuple[int, float]]:
        """How far one group is behind now, by topic and partition led here: records and seconds."""
        found = self._lags.read()
        return {
            (topic, int(index)): (int(records), found.seconds[name, topic, index])
            for (name, topic, index), records in found.records.items()
            if name == group_id
        }

    def rates(self) -> list[dict[str, float]]:
        """Per second between one point and the next, oldest first."""
        found = []
        points = list(self.totals)
        for before, after in pairwise(points):
            seconds = (after[0] - before[0]) / 1000
            if seconds > 0:
                found.append(
                    {
                        "time_ms": after[0],
                        "bytes_in": (after[1] - before[1]) / seconds,
                        "bytes_out": (after[2] - before[2]) / seconds,
                        "requests": (after[3] - before[3]) / seconds,
                    }
                )
        return found
