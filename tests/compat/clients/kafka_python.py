"""kafka-python: the pure Python client."""

import time
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from tests.compat.clients.model import GroupMember, Outgoing, Row

DEADLINE_S = 30.0
ACKS: dict[str, int | str] = {"0": 0, "1": 1, "all": "all"}


def to_row(record: Any) -> Row:
    headers = [(name, value) for name, value in record.headers]
    return Row(record.partition, record.offset, record.key, record.value, headers)


class Member:
    def __init__(self, bootstrap: str, group: str, topic: str, auto_commit: bool) -> None:
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=auto_commit,
            session_timeout_ms=30_000,
            heartbeat_interval_ms=500,
        )
        # A leader that assigns before it knows the topic's partitions joins again when it does. If
        # poll() times out during that second join, kafka-python 3.0 never takes its result: the
        # member keeps its old assignment and sends no heartbeats, with every broker.
        deadline = time.monotonic() + DEADLINE_S
        while not self._consumer.partitions_for_topic(topic) and time.monotonic() < deadline:
            pass

    def poll(self, timeout_s: float) -> list[Row]:
        polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [to_row(record) for records in polled.values() for record in records]

    def assignment(self) -> set[int]:
        return {part.partition for part in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class KafkaPython:
    name = "kafka-python"

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
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks=ACKS[acks],
            compression_type=None if compression == "none" else compression,
            enable_idempotence=idempotent,
            linger_ms=5,
        )
        futures = [
            producer.send(
                topic,
                value=record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
            )
            for record in records
        ]
        producer.flush(timeout=DEADLINE_S)
        for future in futures:
            future.get(timeout=DEADLINE_S)
        producer.close()

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Row]:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        rows: list[Row] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(rows) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=200).values():
                rows.extend(to_row(record) for record in records)
        consumer.close()
        return rows

    def join(
        self, bootstrap: str, group: str, topic: str, *, auto_commit: bool = False
    ) -> GroupMember:
        return Member(bootstrap, group, topic, auto_commit)

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1}})
        admin.close()
