"""Writing records with a real client until each is acknowledged, and reading them back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

SECONDS = 60.0
#: The client chooses.
ANY_PARTITION = -1


class Outgoing(NamedTuple):
    """A record to be written."""

    value: bytes | None
    key: bytes | None = None
    partition: int = ANY_PARTITION


def numbered(first: int, count: int, partitions: int = 0) -> list[Outgoing]:
    """Records whose values are the numbers from `first`; with `partitions`, in turn over them."""
    return [
        Outgoing(b"%d" % number, None, number % partitions if partitions else ANY_PARTITION)
        for number in range(first, first + count)
    ]


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[Outgoing],
    *,
    seconds: float = SECONDS,
    **settings: object,
) -> None:
    """Fails unless every record is acknowledged in time. `_` in a setting's name stands for `.`.

    A client that outlives a broker's death would print every connection that it loses.
    """
    given = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **given})
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for record in records:
        producer.produce(topic, record.value, record.key, record.partition, on_delivery=on_delivery)
        producer.poll(0)
    assert producer.flush(seconds) == 0, "records were not acknowledged in time"
    assert not failures, failures


def read_from_start(
    bootstrap: str, topic: str, count: int, *, partition: int = 0, seconds: float = SECONDS
) -> list[bytes | None]:
    """The first `count` values of a partition, each within `seconds` of the one before."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads"})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    values: list[bytes | None] = []
    try:
        while len(values) < count:
            message = consumer.poll(seconds)
            assert message is not None, f"only {len(values)} of {count} records are there"
            assert message.error() is None, message.error()
            values.append(message.value())
    finally:
        consumer.close()
    return values
