"""librdkafka's share consumer on a broker of one."""

from __future__ import annotations

from pathlib import Path

from tests.compat.share.librdkafka import consume
from tests.compat.share.work import expected, values
from tests.doubles.broker_process import start_broker


def test_its_deliveries_are_those_of_the_java_client(tmp_path: Path) -> None:
    """And those on Apache Kafka 4.3.1 (`python -m tests.compat.share.librdkafka`)."""
    with start_broker(tmp_path) as broker:
        assert consume(broker.bootstrap, "work", "workers", values()) == expected()
