import asyncio
from collections.abc import Iterator

import pytest

from ottla.broker.metrics import exposition as scrape_module
from ottla.broker.metrics.exposition import ROWS_PER_CHECK, read_metrics
from ottla.broker.metrics.statistics import Metric, MetricsRegistry, Row
from ottla.broker.runtime.tasks import spawn, stop


async def test_preparations_run_before_what_reads_them() -> None:
    registry = MetricsRegistry()
    total = 0

    def prepare() -> Iterator[None]:
        nonlocal total
        for _ in range(3):
            total += 1
            yield

    registry.preparations.append(prepare)
    registry.gauge("ottla_total", "Total.", lambda: total)
    assert [reading for _, reading in await read_metrics(registry)] == [3]


async def test_rows_and_steps_are_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop runs others while thousands of rows are read."""
    monkeypatch.setattr(scrape_module, "SLICE_SECONDS", 0.0)
    registry = MetricsRegistry()

    def rows() -> Iterator[Row]:
        for number in range(4 * ROWS_PER_CHECK):
            yield (str(number),), number

    registry.counter("ottla_rows", "Rows.", rows, "row")
    registry.preparations.append(lambda: iter([None] * 4))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = spawn(count_turns(), name="count-turns")
    ((_, reading),) = await read_metrics(registry)
    await stop(counting)
    assert isinstance(reading, dict)
    assert len(reading) == 4 * ROWS_PER_CHECK
    assert turns >= 8


async def test_what_cannot_be_read_is_logged_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = MetricsRegistry()

    def broken_rows() -> Iterator[Row]:
        yield ("a",), 1
        raise RuntimeError

    def broken_preparation() -> Iterator[None]:
        yield
        raise RuntimeError

    registry.preparations.append(broken_preparation)
    registry.gauge("ottla_rows", "Rows.", broken_rows, "row")
    registry.gauge("ottla_whole", "Whole.", lambda: 5)
    family = Metric("ottla_of_clients", "Pushed.", "gauge", (), lambda: 0)
    registry.families.append(lambda: [(family, 2.0)])
    found = await read_metrics(registry)
    assert [(metric.name, reading) for metric, reading in found] == [
        ("ottla_whole", 5),
        ("ottla_of_clients", 2.0),
    ]
    assert "cannot prepare metrics" in caplog.text
    assert "metric ottla_rows cannot be read" in caplog.text
