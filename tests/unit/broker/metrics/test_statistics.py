from __future__ import annotations

import pytest

from ottla.broker.metrics import statistics as metrics_module
from ottla.broker.metrics.statistics import (
    STAGES,
    TIME_BUCKETS,
    MetricsRegistry,
    NetworkStatistics,
    RequestStatistics,
    StallStatistics,
    Traffic,
)


class Request:
    """The moments of one request."""

    def __init__(self, received_at: float = 0.0, throttle_time_ms: int = 0) -> None:
        self.received_at = self.dequeued_at = received_at
        self.local_done_at = self.responded_at = self.send_started_at = received_at
        self.throttle_time_ms = throttle_time_ms
        self.frame_bytes = 100


def responded(received_at: float, throttle_time_ms: int = 0) -> Request:
    request = Request(received_at, throttle_time_ms)
    request.dequeued_at = received_at + 1
    request.local_done_at = received_at + 3
    request.responded_at = received_at + 6
    request.send_started_at = received_at + 10
    return request


def test_the_time_of_a_request_is_split() -> None:
    statistics = RequestStatistics("Metadata")
    statistics.record(4, responded(100.0), sent_at=115.0)
    statistics.record(4, responded(200.0, throttle_time_ms=1500), sent_at=215.0)
    assert statistics.by_version == {4: 2}
    assert statistics.count == 2
    assert statistics.request_bytes == 200
    assert statistics.queue_seconds == 2
    assert statistics.local_seconds == 4
    assert statistics.remote_seconds == 6
    assert statistics.response_seconds == 8
    assert statistics.send_seconds == 10
    assert statistics.throttle_seconds == 1.5
    assert statistics.total_seconds == 30


def test_each_stage_is_a_histogram() -> None:
    statistics = RequestStatistics("Metadata")
    statistics.record(4, responded(100.0), sent_at=115.0)
    statistics.record(4, responded(200.0, throttle_time_ms=1500), sent_at=215.0)
    statistics.record(4, Request(300.0), sent_at=300.0)  # all stages below the first bound
    above = {"queue": 1.0, "local": 2.5, "remote": 5.0, "response": 5.0, "send": 5.0}
    for stage in STAGES:
        reading = statistics.stage(stage)
        bounds = (*TIME_BUCKETS, float("inf"))
        found = {
            bound: count for bound, count in zip(bounds, reading.buckets, strict=True) if count
        }
        if stage == "throttle":
            assert found == {TIME_BUCKETS[0]: 2, 2.5: 1}
        else:
            assert found == {TIME_BUCKETS[0]: 1, above[stage]: 2}
        assert sum(reading.buckets) == statistics.count
        assert reading.total == getattr(statistics, f"{stage}_seconds")
    assert statistics.total().buckets[TIME_BUCKETS.index(30.0)] == 2


def test_failures_are_counted() -> None:
    statistics = RequestStatistics("Metadata")
    statistics.record_failure(Request(), ValueError())
    assert statistics.errors == 1


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (TIME_BUCKETS[0], 0), (0.00011, 1), (30.0, 16), (30.1, 17), (9e9, 17)],
)
def test_times_fall_into_buckets_by_their_upper_bound(seconds: float, bucket: int) -> None:
    statistics = RequestStatistics("Metadata")
    statistics.record(4, Request(), sent_at=seconds)
    assert statistics.total_buckets.index(1) == bucket


def test_network_statistics_begin_at_nothing() -> None:
    statistics = NetworkStatistics()
    assert {getattr(statistics, name) for name in NetworkStatistics.__slots__} == {0}


def test_stalls_are_counted_by_name_and_names_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_module.StallStatistics, "MAX_NAMES", 2)
    stalls = StallStatistics()
    for name, seconds in (("a", 0.06), ("b", 0.3), ("a", 0.1), ("c", 0.07), ("d", 0.07)):
        stalls.record(name, seconds)
    assert stalls.total == 5
    assert stalls.longest_seconds == 0.3
    assert stalls.by_name == {"a": 2, "b": 1, "other": 2}


def test_the_registry_keeps_what_is_offered() -> None:
    registry = MetricsRegistry()
    registry.gauge("ottla_things", "Things.", lambda: 3.0)
    registry.counter("ottla_events", "Events.", lambda: {("x",): 1.0}, "kind")
    gauge, counter = registry.metrics
    assert (gauge.name, gauge.kind, gauge.labels, gauge.read()) == ("ottla_things", "gauge", (), 3)
    assert (counter.kind, counter.labels, counter.read()) == ("counter", ("kind",), {("x",): 1})


def test_names_of_the_counts() -> None:
    assert Traffic(1, 2, 3)._asdict() == {"received_bytes": 1, "sent_bytes": 2, "requests": 3}
