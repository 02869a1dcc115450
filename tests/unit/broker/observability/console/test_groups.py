from __future__ import annotations

from typing import Any

from ottla.broker.observability.console.groups import summed


def row(topic: str, partition: int, locked: int, oldest_lock_ms: int | None) -> dict[str, Any]:
    lock = {"locked": locked, "oldest_lock_ms": oldest_lock_ms}
    return {"topic": topic, "partition": partition, "in_flight": 10, **lock}


def counts(delivered: int) -> dict[str, Any]:
    acknowledged = {"accept": 3, "reject": 0}
    found = {"delivered": delivered, "redelivered": 1, "expired_locks": 2}
    return {**found, "acknowledged": acknowledged}


def test_the_reports_of_all_brokers_are_added_up() -> None:
    loading = {"topic": "t", "partition": 0, "leader_epoch": 1}
    rows = [row("t", 2, 4, 700), row("secret", 0, 9, 9000)]
    found = summed(
        {
            1: {"partitions": rows, "counts": counts(5)},
            2: {"partitions": [row("t", 1, 0, None), loading], "counts": None},
            3: {"partitions": [], "counts": counts(6)},
        },
        lambda topic: topic != "secret",
    )
    places = [(each["partition"], each["broker"]) for each in found["rows"]]
    assert places == [(0, 2), (1, 2), (2, 1)]
    assert (found["in_flight"], found["locked"], found["oldest_lock_ms"]) == (20, 4, 700)
    assert (found["delivered"], found["redelivered"], found["expired_locks"]) == (11, 2, 4)
    assert found["acknowledged"] == {"accept": 6, "reject": 0}
    assert summed({}, lambda topic: True)["oldest_lock_ms"] is None
