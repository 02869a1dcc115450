"""docs/metrics.md has what a broker serves and each of Kafka's JMX names."""

from __future__ import annotations

import pytest

from tools.kafka_jmx_names import NAMES, names_in
from tools.metrics_page import PAGE, Served, mapping, metrics_in, page, row_of, served

# Prometheus makes it for each target.
OF_PROMETHEUS = {"up"}


@pytest.fixture(scope="module")
def metrics() -> list[Served]:
    return served()


def test_it_is_current(metrics: list[Served]) -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(metrics), "run python -m tools.metrics_page"


def test_each_name_of_kafka_has_a_row() -> None:
    rows = mapping()
    names = NAMES.read_text(encoding="ascii").splitlines()
    assert len(names) > 200
    assert [name for name in names if row_of(name, rows) is None] == []


def test_each_row_is_a_query_or_has_a_reason() -> None:
    assert [row.name for row in mapping() if not row.query and not row.remark] == []


def test_queries_read_metrics_that_are_served(metrics: list[Served]) -> None:
    known = {metric.name for metric in metrics}
    for row in mapping():
        assert metrics_in(f"{row.query} {row.remark}") <= known, row
        assert not row.query or metrics_in(row.query) or row.query in OF_PROMETHEUS, row


def test_rates_are_of_counters_and_of_histograms(metrics: list[Served]) -> None:
    kinds = {metric.name: metric.kind for metric in metrics}
    for row in mapping():
        for name in metrics_in(row.query):
            if f"rate({name}" in row.query:
                assert kinds[name] != "gauge", row


def test_names_follow_the_conventions_of_prometheus(metrics: list[Served]) -> None:
    for metric in metrics:
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric
        assert not metric.name.endswith(("_ms", "_milliseconds", "_kilobytes")), metric
        assert metric.help.endswith("."), metric


def test_names_are_read_from_a_report_of_jmxtool() -> None:
    report = (
        "time=1\n"
        "kafka.log:type=Log,name=Size,topic=a,partition=0:Value=1\n"
        "kafka.log:type=Log,name=Size,topic=b,partition=0:Value=1\n"
        "kafka.server:type=Fetch:queue-size=0.0\n"
        "kafka.server:type=forwarding-metrics,BrokerId=0:io-ratio=0.0\n"
    )
    assert names_in(report) == [
        "kafka.log:type=Log,name=Size,topic=*,partition=*",
        "kafka.server:type=Fetch queue-size",
        "kafka.server:type=forwarding-metrics,BrokerId=*",
    ]
