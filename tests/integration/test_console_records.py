"""What the console shows of records: transactions, gaps, damage, and the bounds of a look."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from ottla.broker.observability.console import browse
from ottla.testing import Broker
from tests.doubles.console_client import ConsoleClient

SECONDS = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(ottla_console_enable=True, ottla_metrics_address="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def page(broker: Broker) -> ConsoleClient:
    return ConsoleClient(broker.server.metrics_port)


def produce(broker: Broker, topic: str, count: int, padding: int = 0, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for number in range(count):
        producer.produce(topic, f"value {number}{' ' * padding}")
    assert producer.flush(SECONDS) == 0


def offsets(found: dict[str, list[dict[str, int]]]) -> list[int]:
    return [row["offset"] for row in found["records"]]


def test_markers_of_transactions_are_no_records(broker: Broker, page: ConsoleClient) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer"})
    producer.init_transactions(SECONDS)
    for number in range(3):
        producer.begin_transaction()
        producer.produce("transactions", f"value {number}")
        producer.commit_transaction(SECONDS)
    # Every second offset is a marker.
    found = page.get("messages?topic=transactions&offset=0")
    assert offsets(found) == [0, 2, 4]
    assert found["at_end"]
    assert offsets(page.get("messages?topic=transactions&limit=2")) == [2, 4]
    # A look that begins at a marker continues behind it.
    assert offsets(page.get("messages?topic=transactions&offset=1&limit=1")) == [2]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_searched(broker: Broker, page: ConsoleClient, codec: str) -> None:
    topic = f"compressed-{codec}"
    produce(broker, topic, 500, **{"compression.type": codec})
    found = page.get(f"messages?topic={topic}&offset=0&value=value%20499")
    assert offsets(found) == [499]
    assert found["scanned"] == 500


def test_a_look_is_bounded_and_says_how_far_it_came(
    broker: Broker, page: ConsoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker, "long", 3000, 200, **{"batch.num.messages": 100})
    monkeypatch.setattr(browse, "MAX_SCANNED", 1000)
    monkeypatch.setattr(browse, "FETCH_BYTES", 64 << 10)
    position, scanned, looks = 0, 0, 0
    while True:
        found = page.get(f"messages?topic=long&partition=0&offset={position}&value=value%202999")
        scanned += found["scanned"]
        looks += 1
        position = found["partitions"][0]["next"]
        if found["at_end"]:
            break
        assert offsets(found) == []
    assert offsets(found) == [2999]
    assert (scanned, looks > 1) == (3000, True)


def test_offsets_outside_of_the_log(broker: Broker, page: ConsoleClient) -> None:
    produce(broker, "few", 5)
    assert offsets(page.get("messages?topic=few&offset=99")) == []
    assert offsets(page.get("messages?topic=few&time=99999999999999")) == []
    assert offsets(page.get("messages?topic=few&time=0")) == [0, 1, 2, 3, 4]
