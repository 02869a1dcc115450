"""Rates of a topic in remote storage from the counts of its brokers."""

from __future__ import annotations

from typing import Any

from ottla.broker.observability.console.history import RemoteRates


def report(**topics: tuple[int, int, int]) -> dict[str, Any]:
    return {
        "topics": {
            topic: {"copied_bytes": copied, "read_bytes": read, "copy_errors": errors}
            for topic, (copied, read, errors) in topics.items()
        },
        "problem": None,
    }


def test_brokers_are_added_up() -> None:
    rates = RemoteRates(10, 10)
    assert not rates.is_watching
    assert rates.watch("t") == []
    assert rates.is_watching
    rates.add(1_000, {1: report(t=(0, 0, 0), other=(5, 5, 5)), 2: report(t=(100, 7, 1))})
    assert rates.watch("t") == []
    rates.add(3_000, {1: report(t=(40, 0, 0), other=(9, 9, 9)), 2: report(t=(120, 9, 2))})
    point = {"time_ms": 3_000, "copied_bytes": 30.0, "read_bytes": 1.0, "errors": 0.5}
    assert rates.watch("t") == [point]
    assert rates.watch("other") == []


def test_all_kinds_of_errors_count() -> None:
    rates = RemoteRates(10, 10)
    rates.watch("t")
    for now_ms in (1_000, 2_000):
        errors = ("copy_errors", "read_errors", "delete_errors", "state_build_errors")
        rates.add(now_ms, {1: {"topics": {"t": dict.fromkeys(errors, now_ms // 1_000)}}})
    assert [point["errors"] for point in rates.watch("t")] == [4.0]


def test_a_broker_counts_between_two_samples_that_have_it() -> None:
    rates = RemoteRates(10, 10)
    rates.watch("t")
    rates.add(1_000, {1: report(t=(0, 0, 0)), 2: report(t=(1_000, 0, 0)), 3: report()})
    rates.add(2_000, {1: report(t=(10, 0, 0)), 4: report(t=(99, 0, 0))})  # 2 is away, 4 is new
    assert [point["copied_bytes"] for point in rates.watch("t")] == [10.0]
    rates.add(3_000, {1: report(t=(3, 0, 0)), 4: report(t=(100, 0, 0))})  # 1 was started again
    assert [point["copied_bytes"] for point in rates.watch("t")] == [10.0, 1.0]
    rates.add(3_000, {4: report(t=(200, 0, 0))})  # no time has passed
    rates.add(4_000, {})
    assert len(rates.watch("t")) == 2


def test_topics_and_points_are_bounded() -> None:
    rates = RemoteRates(2, 2)
    for topic in ("a", "b", "a", "c"):  # b was opened first
        rates.watch(topic)
    for second in range(9):
        rates.add(second * 1_000, {1: report(a=(second, 0, 0), b=(0, 0, 0), c=(0, 0, 0))})
    assert [point["time_ms"] for point in rates.watch("a")] == [7_000, 8_000]
    assert rates.watch("b") == []  # and now c goes, which was opened before a
    assert rates.watch("c") == []


def test_topics_that_are_deleted_are_forgotten() -> None:
    rates = RemoteRates(10, 10)
    rates.watch("t")
    rates.keep(["t", "other"])
    assert rates.is_watching
    rates.keep(["other"])
    assert not rates.is_watching
