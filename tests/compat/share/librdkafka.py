"""librdkafka's share consumer (confluent-kafka 2.16 and later) on a broker, as `ShareWork.java`.

    python -m tests.compat.share.librdkafka

starts Apache Kafka 4.3.1; tests/compat/test_share_librdkafka.py has the same on Ottla.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from pathlib import Path

import confluent_kafka
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.output import Failure
from ottla.cli.session import Session
from ottla.cli.share_group_requests import alter, described
from ottla.protocol.topics import TopicPartition
from tests.compat.share.work import DEADLINE_S, Deliveries, expected, values
from tests.doubles.kraft_kafka import VERSION, start_kraft

MAX_DELIVERIES = 5  # group.share.delivery.count.limit


def decide(value: str, count: int) -> str:
    """What to do with a record, from its value and its delivery count."""
    kind = value.partition("-")[0]
    if kind == "exhaust" or (kind == "release" and count == 1):
        return "release"
    return "reject" if kind == "reject" else "accept"


def consume(bootstrap: str, topic: str, group: str, records: list[str]) -> Deliveries:
    """Writes `records`; what the share consumer was given of each, and what it did with it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    begin_with_first_record(bootstrap, topic, group)
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in records:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    consumer = share_consumer(bootstrap, group)
    found: Deliveries = defaultdict(list)
    finished = 0
    deadline = time.monotonic() + DEADLINE_S
    kinds = confluent_kafka.AcknowledgeType
    try:
        consumer.subscribe([topic])
        while finished < len(records) and time.monotonic() < deadline:
            for message in consumer.poll(timeout=1.0):
                assert message.error() is None, message.error()
                value, count = message.value().decode(), message.delivery_count()
                decision = decide(value, count)
                found[value].append((count, decision))
                consumer.acknowledge(message, getattr(kinds, decision.upper()))
                finished += decision != "release" or count == MAX_DELIVERIES
            results = consumer.commit_sync(timeout=30.0)
            assert all(error is None for error in results.values()), results
    finally:
        consumer.close()
    return dict(found)


def share_consumer(bootstrap: str, group: str) -> confluent_kafka.ShareConsumer:
    """A consumer that acknowledges each record by itself."""
    return confluent_kafka.ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
    )


def begin_with_first_record(bootstrap: str, topic: str, group: str) -> None:
    """A group that does not exist begins at the end of the log: a member joins and leaves, then
    the start offset of the empty group is set."""
    consumer = share_consumer(bootstrap, group)
    consumer.subscribe([topic])
    deadline = time.monotonic() + DEADLINE_S
    session = Session(bootstrap, "", 30.0, False)
    try:
        while True:
            consumer.poll(timeout=1.0)
            if consumer_has_joined(session, group):
                break
            assert time.monotonic() < deadline, "the consumer did not join"
        consumer.close()
        alter(session, group, {TopicPartition(topic, 0): 0})
    finally:
        session.close()


def consumer_has_joined(session: Session, group: str) -> bool:
    """Whether the group has a member."""
    try:
        return bool(described(session, group).members)
    except Failure:
        return False


def main() -> None:
    with tempfile.TemporaryDirectory() as name, start_kraft(Path(name)) as bootstrap:
        found = consume(bootstrap, "work", "workers", values())
    assert found == expected(), found
    library = confluent_kafka.libversion()[0]
    print(f"librdkafka {library} on Apache Kafka {VERSION}: the deliveries of KafkaShareConsumer")


if __name__ == "__main__":
    main()
