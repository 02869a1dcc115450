"""Prometheus text, checked with the library's own parser."""

from prometheus_client.parser import text_string_to_metric_families

from ottla.broker.metrics.exposition import render
from ottla.broker.metrics.statistics import Metric

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


def test_no_readings_are_no_text() -> None:
    assert render([]) == b""
