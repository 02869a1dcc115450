"""aiokafka: the asyncio client. Its loop runs in a thread of its own, so that the scenarios,
which are plain blocking code, need not know."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.compat.clients.model import GroupMember, Outgoing, Row

DEADLINE_S = 30.0
ACKS: dict[str, int | str] = {"0": 0, "1": 1, "all": "all"}
T = TypeVar("T")


class LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(2 * DEADLINE_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE_S)
        self.loop.close()


def to_row(record: Any) -> Row:
    headers = [(name, value) for name, value in record.headers]
    return Row(record.partition, record.offset, record.key, record.value, headers)


class Member:
    def __init__(self, bootstrap: str, group: str, topic: str, auto_commit: bool) -> None:
        self._thread = LoopThread()
        self._consumer: AIOKafkaConsumer = self._thread.run(
            self._start(bootstrap, group, topic, auto_commit)
        )

    async def _start(
        self, bootstrap: str, group: str, topic: str, auto_commit: bool
    ) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=auto_commit,
            session_timeout_ms=30_000,
            heartbeat_interval_ms=500,
            metadata_max_age_ms=2000,
        )
        await consumer.start()
        return consumer

    def poll(self, timeout_s: float) -> list[Row]:
        polled = self._thread.run(self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        return [to_row(record) for records in polled.values() for record in records]

    def assignment(self) -> set[int]:
        return {part.partition for part in self._consumer.assignment()}

    def commit(self) -> None:
        self._thread.run(self._consumer.commit())

    def close(self) -> None:
        self._thread.run(self._consumer.stop())
        self._thread.close()


class Aiokafka:
    name = "aiokafka"

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
        async def send() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks=ACKS[acks],
                compression_type=None if compression == "none" else compression,
                enable_idempotence=idempotent,
                linger_ms=5,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=record.headers,
                        partition=record.partition,
                    )
                    for record in records
                ]
                await asyncio.wait_for(asyncio.gather(*futures), DEADLINE_S)
            finally:
                await producer.stop()

        asyncio.run(send())

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Row]:
        async def read() -> list[Row]:
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
            await consumer.start()
            rows: list[Row] = []
            try:
                assigned = [TopicPartition(topic, number) for number in range(partitions)]
                consumer.assign(assigned)
                await consumer.seek_to_beginning(*assigned)
                deadline = time.monotonic() + DEADLINE_S
                while len(rows) < count and time.monotonic() < deadline:
                    polled = await consumer.getmany(timeout_ms=200)
                    for records in polled.values():
                        rows.extend(to_row(record) for record in records)
            finally:
                await consumer.stop()
            return rows

        return asyncio.run(read())

    def join(
        self, bootstrap: str, group: str, topic: str, *, auto_commit: bool = False
    ) -> GroupMember:
        return Member(bootstrap, group, topic, auto_commit)

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
        async def create() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            try:
                new_topic = NewTopic(topic, num_partitions=partitions, replication_factor=1)
                response = await admin.create_topics([new_topic])
                assert all(error[1] == 0 for error in response.topic_errors), response
            finally:
                await admin.close()

        asyncio.run(create())
