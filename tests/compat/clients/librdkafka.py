"""confluent-kafka, which is librdkafka underneath: the C client most languages build on."""

import time

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients.model import GroupMember, Outgoing, Row

DEADLINE_S = 30.0


def to_row(message: Message) -> Row:
    assert message.error() is None, message.error()
    headers = [(name, value) for name, value in message.headers() or []]
    return Row(message.partition(), message.offset(), message.key(), message.value(), headers)


class Member:
    def __init__(self, bootstrap: str, group: str, topic: str, auto_commit: bool) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": auto_commit,
                "session.timeout.ms": 30_000,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self, timeout_s: float) -> list[Row]:
        return [to_row(message) for message in self._consumer.consume(500, timeout_s)]

    def assignment(self) -> set[int]:
        return {part.partition for part in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class Librdkafka:
    name = "confluent-kafka"

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: list[Outgoing],
        *,
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
    ) -> None:
        failures: list[str] = []
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": acks,
                "compression.type": compression,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
            }
        )

        def on_delivery(error: object, _message: object) -> None:
            if error is not None:
                failures.append(str(error))

        for record in records:
            options = {} if record.partition is None else {"partition": record.partition}
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=record.headers,
                on_delivery=on_delivery,
                **options,
            )
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        assert not failures, failures[:3]

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Row]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "assigned",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        rows: list[Row] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(rows) < count and time.monotonic() < deadline:
            rows.extend(to_row(message) for message in consumer.consume(500, 0.2))
        consumer.close()
        return rows

    def join(
        self, bootstrap: str, group: str, topic: str, *, auto_commit: bool = False
    ) -> GroupMember:
        return Member(bootstrap, group, topic, auto_commit)

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        created = admin.create_topics([NewTopic(topic, num_partitions=partitions)])
        created[topic].result(DEADLINE_S)
