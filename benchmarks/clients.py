"""Measurements with librdkafka as the client; each returns plain numbers, bigger or smaller better
as its name says. The client runs in this process, the broker in another."""

import socket
import time
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

DEADLINE_S = 60.0
# Kafka takes minutes for the first append to each of 10,000 partitions.
APPEND_S = 600


def create_topic(
    bootstrap: str, topic: str, partitions: int, config: dict[str, str] | None = None
) -> None:
    """The topic of an earlier round is kept; one that is being deleted is waited for."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.perf_counter() + DEADLINE_S
    while True:
        new = NewTopic(topic, partitions, 1, config=config or {})
        try:
            admin.create_topics([new])[topic].result(DEADLINE_S)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        if topic in admin.list_topics(timeout=10).topics:
            return
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{topic} is still being deleted")
        time.sleep(0.1)


def append_to_each(bootstrap: str, topic: str, partitions: int) -> None:
    """Three batches to each partition, which are larger than `index.interval.bytes`: Kafka creates
    the indexes of a segment with its first entries. Returns when all are acknowledged."""
    settings = {"batch.num.messages": 1, "message.timeout.ms": APPEND_S * 1000}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    failures: list[object] = []

    def note(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    for _ in range(3):
        for partition in range(partitions):
            producer.produce(topic, bytes(5_000), partition=partition, on_delivery=note)
            producer.poll(0)
        if producer.flush(APPEND_S) or failures:
            raise TimeoutError(f"not every partition of {topic} took a record: {failures[:1]}")


def delete_topics(bootstrap: str) -> None:
    """All but the internal ones; returns when the broker has none of them any more."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.perf_counter() + DEADLINE_S
    while time.perf_counter() < deadline:
        left = [name for name in admin.list_topics(timeout=10).topics if name[:2] != "__"]
        if not left:
            return
        for deleted in admin.delete_topics(left).values():
            with suppress(KafkaException):  # deleted by the attempt before
                deleted.result(DEADLINE_S)
    raise TimeoutError("topics are not deleted")


def fill_topic(bootstrap: str, topic: str, count: int, size: int) -> None:
    """A topic of one partition has so many records; a line before may have written some."""
    create_topic(bootstrap, topic, 1)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-fill"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), DEADLINE_S)
    finally:
        consumer.close()
    if end < count:
        produce_records_per_s(bootstrap, topic, count - end, size, {})


def first_produce_s(bootstrap: str, since: float) -> float:
    """Seconds from `since` until a produced record is acknowledged, the topic made on the way."""
    host, _, port = bootstrap.partition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            break
        except OSError:
            if time.perf_counter() - since > DEADLINE_S:
                raise
            time.sleep(0.002)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    acknowledged: list[float] = []
    producer.produce(
        "first", b"x", on_delivery=lambda error, _: acknowledged.append(time.perf_counter())
    )
    producer.flush(DEADLINE_S)
    return acknowledged[0] - since


def produce_records_per_s(
    bootstrap: str, topic: str, count: int, size: int, options: dict[str, str]
) -> float:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "queue.buffering.max.messages": 200_000,
            "linger.ms": 5,
            **options,
        }
    )
    value = bytes(size)
    begun = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(DEADLINE_S) == 0
    return count / (time.perf_counter() - begun)


def tiny_requests_per_s(bootstrap: str, topic: str, count: int) -> float:
    """One record of ten bytes a request, five requests in flight on one connection."""
    options = {
        "linger.ms": "0",
        "batch.num.messages": "1",
        "max.in.flight.requests.per.connection": "5",
        "acks": "1",
    }
    return produce_records_per_s(bootstrap, topic, count, 10, options)


def consume_megabytes_per_s(
    bootstrap: str, topic: str, partitions: int, count: int, options: dict[str, str]
) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4_000_000,
            "queued.min.messages": 200_000,
            **options,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    seen = received = 0
    begun = time.perf_counter()
    while seen < count and time.perf_counter() - begun < DEADLINE_S:
        for message in consumer.consume(10_000, 1.0):
            seen += 1
            received += len(message.value() or b"")
    elapsed = time.perf_counter() - begun
    consumer.close()
    assert seen >= count, f"{seen} of {count} records"
    return received / elapsed / 1e6
