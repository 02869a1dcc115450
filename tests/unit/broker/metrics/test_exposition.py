"""Prometheus text, checked with the library's own parser."""

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.broker.metrics.exposition import read_metrics, render
from ottla.broker.metrics.statistics import (
    TIME_BUCKETS,
    HistogramReading,
    HistogramReadings,
    Metric,
    MetricsRegistry,
    Row,
)
from ottla.broker.runtime.tasks import spawn, stop
from tests.doubles.pace import steps_per_turn

STRANGE = 'a"b\\c\nd'


def test_the_librarys_parser_reads_it_back() -> None:
    plain = Metric("ottla_plain", "With a \\ and a\nline.", "gauge", (), lambda: 0)
    counter = Metric("ottla_seen", "Seen.", "counter", (), lambda: 0)
    labelled = Metric("ottla_lag", "Lag.", "gauge", ("group", "partition"), lambda: 0)
    text = render(
        [(plain, 1.5), (counter, 7), (labelled, {("g", "0"): 2, (STRANGE, "1"): 1e18})]
    ).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [(sample.name, sample.value) for sample in families["ottla_plain"].samples] == [
        ("ottla_plain", 1.5)
    ]
    assert families["ottla_plain"].documentation == "With a \\ and a\nline."
    assert families["ottla_seen"].type == "counter"
    assert families["ottla_seen"].samples[0].value == 7
    assert [(sample.labels, sample.value) for sample in families["ottla_lag"].samples] == [
        ({"group": "g", "partition": "0"}, 2),
        ({"group": STRANGE, "partition": "1"}, 1e18),
    ]


def test_histograms_are_cumulative() -> None:
    buckets = [0] * (len(TIME_BUCKETS) + 1)
    buckets[0], buckets[3], buckets[-1] = 2, 1, 4
    readings: HistogramReadings = {("A", STRANGE): HistogramReading(buckets, 1.5)}
    metric = Metric("ottla_seconds", "Time.", "histogram", ("api", "stage"), lambda: readings)
    (family,) = text_string_to_metric_families(render([(metric, readings)]).decode())
    assert family.type == "histogram"
    found = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert found["0.0001"] == found["0.0005"] == 2
    assert found["0.001"] == found["30.0"] == 3
    assert found["+Inf"] == found["ottla_seconds_count"] == 7
    assert found["ottla_seconds_sum"] == 1.5
    assert family.samples[0].labels["stage"] == STRANGE


def test_rows_and_values_without_labels() -> None:
    rows = Metric("ottla_rows", "Rows.", "gauge", ("row",), lambda: 0)
    single = Metric("ottla_single", "Single.", "gauge", (), lambda: 0)
    absent = Metric("ottla_absent", "Absent.", "gauge", (), lambda: 0)
    text = render([(rows, iter([(("a",), 1.0)])), (single, {(): 2}), (absent, {})]).decode()
    assert 'ottla_rows{row="a"} 1.0\n' in text
    assert "\nottla_single 2.0\n" in text
    assert "\nottla_absent " not in text


def test_no_readings_are_no_text() -> None:
    assert render([]) == b""


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


async def test_rows_and_steps_are_read_in_turns() -> None:
    """The loop runs others while thousands of rows are read."""
    registry = MetricsRegistry()

    def rows() -> Iterator[Row]:
        for number in range(1_000):
            yield (str(number),), number

    registry.counter("ottla_rows", "Rows.", rows, "row")
    registry.preparations.append(lambda: iter([None] * 400))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = spawn(count_turns(), name="count-turns")
    with steps_per_turn(100):
        ((_, reading),) = await read_metrics(registry)
    await stop(counting)
    assert isinstance(reading, dict)
    assert len(reading) == 1_000
    assert turns >= 14


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
