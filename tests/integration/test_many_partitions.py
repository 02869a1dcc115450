"""Clients of a broker with more partitions than most requests may have elements."""

from __future__ import annotations

import time
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker.requests.request_parts import MAX_UNDIVIDED_ELEMENTS
from ottla.testing import Broker

PARTITIONS = MAX_UNDIVIDED_ELEMENTS + 500
WRITTEN = (0, 2_500, PARTITIONS - 1)
SECONDS = 120.0


def test_a_consumer_of_thousands_of_partitions() -> None:
    with Broker() as broker:
        broker.create_topic("t", PARTITIONS)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for partition in WRITTEN:
            producer.produce("t", value=str(partition), partition=partition)
        assert producer.flush(SECONDS) == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": str(uuid.uuid4())})
        try:
            consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
            found: set[int] = set()
            deadline = time.monotonic() + SECONDS
            while len(found) < len(WRITTEN) and time.monotonic() < deadline:
                for message in consumer.consume(100, 1.0):
                    assert message.error() is None, message.error()
                    found.add(int(message.value() or b""))
            assert found == set(WRITTEN)
        finally:
            consumer.close()
