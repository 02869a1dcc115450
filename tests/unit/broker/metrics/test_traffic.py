"""The fields are those of /statusz: brokers of other versions read them by name."""

from __future__ import annotations

from ottla.broker.metrics.statistics import Traffic


def test_names_of_the_counts() -> None:
    assert Traffic(1, 2, 3)._asdict() == {"received_bytes": 1, "sent_bytes": 2, "requests": 3}
