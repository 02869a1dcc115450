"""Logs which appends were refused, at most one line in an interval for each reason."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger("ottla.replication")

# How long the same refusal is not logged again, as clients retry, and for how many that is tracked.
_INTERVAL_MS = 10_000
_MAX_TRACKED = 1_000


class RefusalLog:
    """The refused appends of all partitions."""

    __slots__ = ("_logged", "_now_ms")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms` is monotonic."""
        self._now_ms = now_ms
        self._logged: dict[tuple[str, int, int], int] = {}

    def log(self, topic: str, index: int, code: int, error: Exception) -> None:
        """Logs that an append failed with this error code, unless it did so a short time ago."""
        now_ms = self._now_ms()
        if len(self._logged) >= _MAX_TRACKED:
            self._logged.clear()
        key = (topic, index, code)
        if now_ms - self._logged.get(key, -_INTERVAL_MS) < _INTERVAL_MS:
            return
        self._logged[key] = now_ms
        logger.info(
            "Append to partition %s-%d refused: %s",
            topic,
            index,
            error,
            extra={"topic": topic, "partition": index},
        )
