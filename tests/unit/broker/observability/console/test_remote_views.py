from __future__ import annotations

from ottla.broker.observability.console.topics import summed


def test_the_reports_of_all_brokers_are_added_up() -> None:
    reports = [{"copies": 2.0, "size_bytes": 10.0}, None, {"copies": 3.0}]
    assert summed(reports) == {"copies": 5, "size_bytes": 10}
    assert summed([None, None]) is None
