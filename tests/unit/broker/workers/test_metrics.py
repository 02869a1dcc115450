"""Metrics of several workers in one text."""

from __future__ import annotations

from ottla.broker.workers.metrics import merge, own_metrics, total

FIRST = b"""\
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{api="Fetch"} 2.0
requests_total{api="a \\"b\\" {c}"} 1.0
# HELP lag_seconds Time.
# TYPE lag_seconds gauge
lag_seconds 0.5
# HELP waits Times.
# TYPE waits histogram
waits_bucket{le="1.0"} 1.0
waits_bucket{le="+Inf"} 2.0
waits_sum 3.0
waits_count 2.0
"""
SECOND = b"""\
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{api="Fetch"} 5.0
# HELP partitions Here.
# TYPE partitions gauge
partitions 7.0
# HELP lag_seconds Time.
# TYPE lag_seconds gauge
lag_seconds 0.25
# HELP waits Times.
# TYPE waits histogram
waits_bucket{le="1.0"} 4.0
waits_bucket{le="+Inf"} 4.0
waits_sum 2.0
waits_count 4.0
"""


def test_samples_name_their_worker() -> None:
    lines = merge({0: FIRST, 1: SECOND}, "").decode().splitlines()
    assert lines[:5] == [
        "# HELP requests_total Requests.",
        "# TYPE requests_total counter",
        'requests_total{worker="0",api="Fetch"} 2.0',
        'requests_total{worker="0",api="a \\"b\\" {c}"} 1.0',
        'requests_total{worker="1",api="Fetch"} 5.0',
    ]
    assert 'lag_seconds{worker="1"} 0.25' in lines
    assert 'waits_bucket{worker="1",le="1.0"} 4.0' in lines
    assert 'partitions{worker="1"} 7.0' in lines
    for family in ("requests_total", "lag_seconds", "waits", "partitions"):
        assert sum(line.startswith(f"# TYPE {family} ") for line in lines) == 1


def test_the_total_is_that_of_one_broker() -> None:
    lines = total({0: FIRST, 1: SECOND}, "").decode().splitlines()
    assert 'requests_total{api="Fetch"} 7.0' in lines
    assert 'requests_total{api="a \\"b\\" {c}"} 1.0' in lines
    assert 'waits_bucket{le="1.0"} 5.0' in lines
    assert "waits_sum 5.0" in lines
    assert "partitions 7.0" in lines
    assert "lag_seconds 0.5" in lines  # a time: the longest


def test_prometheus_reads_both() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    own = own_metrics([(0, True, 0), (1, False, 3)])
    for text in (merge({0: FIRST, 1: SECOND}, own), total({0: FIRST, 1: SECOND}, own)):
        families = {each.name: each for each in text_string_to_metric_families(text.decode())}
        up = {each.labels["worker"]: each.value for each in families["ottla_worker_up"].samples}
        assert up == {"0": 1.0, "1": 0.0}
        assert families["waits"].type == "histogram"


def test_without_a_worker_there_are_the_supervisors_own() -> None:
    own = own_metrics([(0, False, 2)])
    assert merge({}, own).decode() == own == total({}, own).decode()
