"""Reads all metrics for one scrape, without holding the event loop."""

import asyncio
import logging
from collections.abc import Iterator
from time import monotonic

from ottla.broker.metrics.statistics import (
    HistogramReadings,
    Metric,
    MetricsRegistry,
    Reading,
    Row,
)

logger = logging.getLogger("ottla.metrics")

# The loop does other work after so long: a scrape of 10,000 topics takes some 100 ms in all.
SLICE_SECONDS = 0.002

# Rows between two readings of the clock: about 0.1 ms.
ROWS_PER_CHECK = 256


class _Slices:
    """Gives up the loop when a slice is over."""

    def __init__(self) -> None:
        self._started_at = monotonic()

    async def pause(self) -> None:
        if monotonic() - self._started_at > SLICE_SECONDS:
            await asyncio.sleep(0)
            self._started_at = monotonic()


async def read_metrics(
    registry: MetricsRegistry,
) -> list[tuple[Metric, Reading | HistogramReadings]]:
    """The readings of all metrics; one that cannot be read is logged and left out.

    The numbers of one metric may be some milliseconds older than those of another.
    """
    slices = _Slices()
    for preparation in registry.preparations:
        try:
            for _ in preparation():
                await slices.pause()
        except Exception:
            logger.exception("cannot prepare metrics")
    readings: list[tuple[Metric, Reading | HistogramReadings]] = []
    for metric in registry.metrics:
        try:
            reading = metric.read()
            if isinstance(reading, Iterator):
                reading = await _collect(reading, slices)
        except Exception:
            logger.exception("metric %s cannot be read", metric.name)
            continue
        readings.append((metric, reading))
        await slices.pause()
    for family in registry.families:
        for each in family():
            readings.append(each)
            await slices.pause()
    return readings


async def _collect(rows: Iterator[Row], slices: _Slices) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for labels, value in rows:
        found[labels] = value
        if not len(found) % ROWS_PER_CHECK:
            await slices.pause()
    return found
