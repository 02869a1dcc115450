"""What survives a stop and a kill."""

from __future__ import annotations

from pathlib import Path

from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.producing import Outgoing, produce, read_from_start

COUNT = 500


def write(broker: BrokerProcess, prefix: str) -> None:
    rows = [Outgoing(value.encode()) for value in expected(prefix)]
    produce(broker.bootstrap, "kept", rows, seconds=30, acks="all")


def kept(broker: BrokerProcess, count: int) -> list[str]:
    values = read_from_start(broker.bootstrap, "kept", count, seconds=60)
    return [str(value, "utf-8") for value in values if value is not None]


def expected(*prefixes: str) -> list[str]:
    return [f"{prefix}-{number}" for prefix in prefixes for number in range(COUNT)]


def test_a_stop_keeps_data_and_ends_with_zero(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        write(broker, "first")
        assert broker.stop() == 0
        broker.start()
        write(broker, "second")
        assert kept(broker, 2 * COUNT) == expected("first", "second")


def test_a_kill_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        write(broker, "first")
        broker.kill()
        broker.start()
        write(broker, "second")
        broker.kill()
        broker.start()
        assert kept(broker, 2 * COUNT) == expected("first", "second")
