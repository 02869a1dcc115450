"""A producer that remembers what was acknowledged, and ways to look at what became of it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

TOPIC = "kept"
PARTITIONS = 6
SECONDS = 60.0


class AcknowledgedRecords:
    """Writes numbered records with acks=all and idempotence to a topic with three replicas."""

    def __init__(self, bootstrap: str) -> None:
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.acknowledged: list[bytes] = []
        self.failed: list[object] = []
        self._bootstrap = bootstrap
        self._next = 0
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True}
        )

    def create_topic(self, replicas: int = 3) -> None:
        created = self.admin.create_topics([NewTopic(TOPIC, PARTITIONS, replicas)])
        created[TOPIC].result(SECONDS)

    def produce(self, count: int) -> None:
        """Writes `count` more records and waits until each is acknowledged."""
        for _ in range(count):
            self._producer.produce(TOPIC, b"%d" % self._next, on_delivery=self._delivered)
            self._producer.poll(0)
            self._next += 1
        assert self._producer.flush(SECONDS) == 0
        assert self.failed == []

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged.append(message.value())  # type: ignore[attr-defined]  # a Message

    def partitions(self) -> list[PartitionMetadata]:
        """What the cluster says of the topic's partitions."""
        topic = self.admin.list_topics(TOPIC, timeout=SECONDS).topics[TOPIC]
        return list(topic.partitions.values())

    def leaders(self) -> set[int]:
        return {each.leader for each in self.partitions()}

    def all_in_sync(self) -> bool:
        return all(len(each.isrs) == len(each.replicas) for each in self.partitions())

    def read_back(self) -> list[bytes]:
        """Everything in the topic, read by a consumer group."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([TOPIC])
        values: list[bytes] = []
        deadline = time.monotonic() + SECONDS
        while len(values) < len(self.acknowledged) and time.monotonic() < deadline:
            values.extend(
                message.value() for message in consumer.consume(1000, 1) if not message.error()
            )
        consumer.close()
        return values

    def assert_nothing_lost_or_doubled(self) -> None:
        assert sorted(self.read_back()) == sorted(self.acknowledged)


def identical_logs(directories: Iterable[Path]) -> bool:
    """Whether the first segments of all replicas hold the same bytes."""
    for index in range(PARTITIONS):
        name = f"{TOPIC}-{index}/{0:020}.log"
        if len({(directory / name).read_bytes() for directory in directories}) != 1:
            return False
    return True
