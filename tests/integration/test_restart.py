"""What survives a stop and a kill."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.doubles.broker_process import BrokerProcess, start_broker

COUNT = 500


def produce(broker: BrokerProcess, prefix: str) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for number in range(COUNT):
        producer.produce(
            "kept",
            f"{prefix}-{number}".encode(),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert failures == []


def consume(broker: BrokerProcess, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    consumer.assign([TopicPartition("kept", 0, 0)])
    values: list[str] = []
    try:
        while len(values) < count:
            found = consumer.consume(count - len(values), timeout=10)
            assert found, f"only {len(values)} of {count} records are there"
            for message in found:
                assert message.error() is None
                values.append(message.value().decode())
    finally:
        consumer.close()
    return values


def expected(*prefixes: str) -> list[str]:
    return [f"{prefix}-{number}" for prefix in prefixes for number in range(COUNT)]


def test_a_stop_keeps_data_and_ends_with_zero(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        produce(broker, "first")
        assert broker.stop() == 0
        broker.start()
        produce(broker, "second")
        assert consume(broker, 2 * COUNT) == expected("first", "second")


def test_a_kill_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        produce(broker, "first")
        broker.kill()
        broker.start()
        produce(broker, "second")
        broker.kill()
        broker.start()
        assert consume(broker, 2 * COUNT) == expected("first", "second")
