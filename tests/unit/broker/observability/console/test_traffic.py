"""Rates of the cluster from the counts of its brokers."""

from __future__ import annotations

from typing import Any

from ottla.broker.observability.console.history import ClusterTraffic


def state(received: int, sent: int, requests: int) -> dict[str, Any]:
    return {
        "traffic": {"received_bytes": received, "sent_bytes": sent, "requests": requests},
        "ready": True,
    }


def test_brokers_are_added_up() -> None:
    traffic = ClusterTraffic(10)
    traffic.add(1_000, {1: state(0, 100, 5), 2: state(7, 0, 0)})
    assert (traffic.points(), traffic.brokers) == ([], 0)
    traffic.add(3_000, {1: state(20, 100, 7), 2: state(27, 40, 4)})
    point = {"bytes_in": 20.0, "bytes_out": 20.0, "requests": 3.0}
    assert traffic.points() == [{"time_ms": 3_000, **point, "brokers": 2}]


def test_a_broker_counts_between_two_samples_that_have_it() -> None:
    traffic = ClusterTraffic(10)
    traffic.add(0, {1: state(0, 0, 0), 2: state(1_000, 0, 0), 3: {"faults": []}})
    traffic.add(1_000, {1: state(10, 0, 0), 4: state(99, 9, 9)})  # 2 is away, 4 is new
    assert (traffic.points()[-1]["bytes_in"], traffic.brokers) == (10.0, 1)
    traffic.add(2_000, {1: state(20, 0, 0), 2: state(2_000, 0, 0), 4: state(100, 9, 9)})
    assert (traffic.points()[-1]["bytes_in"], traffic.brokers) == (11.0, 2)
    # 1 was started again.
    traffic.add(3_000, {1: state(3, 0, 0), 2: state(2_005, 0, 0), 4: state(100, 9, 9)})
    assert (traffic.points()[-1]["bytes_in"], traffic.brokers) == (5.0, 2)


def test_nothing_is_drawn_while_no_broker_reports() -> None:
    traffic = ClusterTraffic(10)
    for now_ms in (0, 1_000, 1_000):
        traffic.add(now_ms, {})
    assert (traffic.points(), traffic.brokers) == ([], 0)
    traffic.add(1_000, {1: state(0, 0, 0)})
    traffic.add(1_000, {1: state(5, 0, 0)})  # no time has passed
    assert traffic.points() == []


def test_the_points_are_bounded() -> None:
    traffic = ClusterTraffic(3)
    for second in range(9):
        traffic.add(second * 1_000, {1: state(second, 0, 0)})
    assert [point["time_ms"] for point in traffic.points()] == [6_000, 7_000, 8_000]
