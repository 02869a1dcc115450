"""What the scripts do with topics themselves: create, write and read them to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.doubles.eventually import eventually

DEADLINE_SECONDS = 120.0


class Record(NamedTuple):
    """A record as it was read, as text; a null is an empty text."""

    partition: int
    offset: int
    key: str
    value: str


def create_topics(bootstrap: str, names: Iterable[str], partitions: int = 1) -> None:
    """Creates topics with the replication factor of the cluster."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    factor = min(3, len(bootstrap.split(",")))
    for done in admin.create_topics(
        [NewTopic(name, partitions, factor) for name in names]
    ).values():
        done.result(DEADLINE_SECONDS)


def topic_settings(bootstrap: str, topic: str) -> dict[str, str]:
    """The settings of a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(DEADLINE_SECONDS)
    return {name: entry.value for name, entry in found.items()}


def produce(bootstrap: str, topic: str, values: Sequence[str], partition: int = 0) -> None:
    """Writes values to one partition, each acknowledged by all in-sync replicas."""
    errors: list[KafkaError] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for value in values:
        producer.produce(
            topic,
            value.encode(),
            key=f"key-{value}".encode(),
            partition=partition,
            on_delivery=lambda error, _: errors.append(error) if error is not None else None,
        )
        producer.poll(0)
    assert producer.flush(DEADLINE_SECONDS) == 0, "records were not acknowledged"
    assert not errors, errors


def read_topic(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Record]:
    """All records up to the end, partition by partition in order; empty without the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader-of-the-test",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=30).topics[topic]
        open_partitions = set(found.partitions)
        consumer.assign(
            [TopicPartition(topic, each, OFFSET_BEGINNING) for each in found.partitions]
        )
        records: list[Record] = []
        while open_partitions:
            message = consumer.poll(30.0)  # `consume` waits for a full batch, all the time it has
            assert message is not None, f"the end of {topic} was not reached"
            error = message.error()
            if error is None:
                key, value = message.key() or b"", message.value() or b""
                key_text, text = (each.decode("utf-8", "replace") for each in (key, value))
                partition, offset = message.partition() or 0, message.offset() or 0
                records.append(Record(partition, offset, key_text, text))
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
        return sorted(records)
    finally:
        consumer.close()


def read_until(
    bootstrap: str,
    topic: str,
    enough: Callable[[list[Record]], bool],
    seconds: float = DEADLINE_SECONDS,
) -> list[Record]:
    """Reads the topic again and again until what it holds is enough."""
    last: list[Record] = []

    def is_enough() -> bool:
        last[:] = read_topic(bootstrap, topic)
        return enough(last)

    eventually(
        is_enough,
        lambda: f"{topic} holds {len(last)} records, the last ones are {last[-2:]}",
        seconds=seconds,
        pause_seconds=0.5,
    )
    return last
