"""Writing to Apache Kafka and reading from it, for tests that compare what is on disk."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kazoo.client import KazooClient

from tests.doubles.apache_kafka import ApacheKafka
from tests.doubles.eventually import eventually

START_MS = 1_700_000_000_000
# For every single wait: a machine may be busy with other things.
SECONDS = 90.0
Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes]]]


def raise_leader_epochs(zookeeper: str, topics: list[str], epoch: int) -> None:
    """While no broker runs: the next leader of partition 0 of each topic will have this epoch."""
    client = KazooClient(hosts=zookeeper)
    client.start()
    for topic in topics:
        path = f"/brokers/topics/{topic}/partitions/0/state"
        state = json.loads(client.get(path)[0])
        state["leader_epoch"] = epoch
        client.set(path, json.dumps(state).encode())
    client.stop()
    client.close()


def wait_until_gone(zookeeper: str) -> None:
    """Waits until ZooKeeper has noticed that the broker was killed: else it cannot come back."""
    client = KazooClient(hosts=zookeeper)
    client.start()
    eventually(
        lambda: client.exists("/brokers/ids/0") is None,
        "the session of the killed broker does not end",
        seconds=SECONDS,
    )
    client.stop()
    client.close()


def produce(kafka: ApacheKafka, topic: str, first: int, count: int, **settings: object) -> None:
    """Records with timestamps that are out of order a little, keys, headers and some nulls."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, **settings})
    if "transactional.id" in settings:
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
    for number in range(first, first + count):
        producer.produce(
            topic,
            key=f"key-{number % 50}",
            value=None if number % 97 == 0 else f"value-{number}-" * 4,
            timestamp=START_MS + number * 10 + (number * 7919) % 100,
            headers=[("number", str(number).encode())] if number % 3 == 0 else None,
        )
        if number % 20 == 0:
            producer.flush()  # many small batches
    producer.flush()


def transactions(kafka: ApacheKafka, topic: str) -> None:
    for name, commit in (("a", True), ("b", False), ("c", True), ("d", False), ("e", None)):
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name})
        producer.init_transactions(SECONDS)
        for round_number in range(3):
            producer.begin_transaction()
            for number in range(5):
                producer.produce(
                    topic, key=name, value=f"{name}-{round_number}-{number}" * 20,
                    timestamp=START_MS + number,
                )  # fmt: skip
                producer.flush()
            if commit is None:
                return  # the last producer dies with its transaction open
            if commit:
                producer.commit_transaction(SECONDS)
            else:
                producer.abort_transaction(SECONDS)


def consume(kafka: ApacheKafka, topic: str, *, committed: bool = False) -> list[Row]:
    """Every record of partition 0, by Kafka itself."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    rows: list[Row] = []
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        headers = [(name, value) for name, value in message.headers() or []]
        rows.append(
            (message.offset(), message.timestamp()[1], message.key(), message.value(), headers)
        )
    else:
        pytest.fail(f"{topic} was not read to its end in time")
    consumer.close()
    return rows


def offsets_for_times(kafka: ApacheKafka, topic: str, times: list[int]) -> list[int]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "times"})
    found = []
    for timestamp in times:
        (response,) = consumer.offsets_for_times(
            [TopicPartition(topic, 0, timestamp)], timeout=SECONDS
        )
        found.append(response.offset)
    consumer.close()
    return found


def keyed_transactions(kafka: ApacheKafka, topic: str) -> None:
    """Keys that come again and again, some of them in transactions that are aborted."""
    names = ["p", "q", "r"]
    producers = [
        Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-{name}"})
        for name in names
    ]
    for producer in producers:
        producer.init_transactions(SECONDS)
    for round_number in range(12):
        for number, producer in enumerate(producers):
            producer.begin_transaction()
            for i in range(8):
                producer.produce(
                    topic,
                    key=f"key-{(round_number * 5 + i * 3 + number) % 17}",
                    value=None if i == 5 else f"{round_number}-{number}-{i}" * 30,
                    timestamp=START_MS + round_number * 100 + i,
                )
                producer.flush()
        for number, producer in enumerate(producers):
            if (round_number + number) % 3 == 0:
                producer.abort_transaction(SECONDS)
            else:
                producer.commit_transaction(SECONDS)
