"""What the Spark tests share: writing records with a standard client, reading them with Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, Row, SparkSession

from tests.doubles.eventually import eventually

Headers = list[tuple[str, bytes | None]]


class Sent(NamedTuple):
    """A record to write; as written, and as Spark must show it."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp: int = 1_700_000_000_000
    headers: Headers | None = None


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    """Records are kept however old their timestamps are: tests choose them at will."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {"retention.ms": "-1"} | (config or {})
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
    for future in admin.create_topics([wanted], request_timeout=30).values():
        future.result()


def delete_topic(bootstrap: str, topic: str) -> None:
    """Returns when the brokers say that it is not there any more."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([topic]).values():
        future.result()
    eventually(lambda: topic not in admin.list_topics(timeout=30).topics, "no deletion")


def recreate(bootstrap: str, topic: str) -> None:
    def created() -> bool:
        try:
            create_topic(bootstrap, topic)
        except KafkaException:  # still being deleted
            return False
        return True

    eventually(created, "no new topic")


def producer(bootstrap: str, **settings: object) -> Producer:
    """A librdkafka producer; `_` in a name stands for `.`."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 3} | given)


def send(client: Producer, topic: str, records: Iterable[Sent]) -> dict[tuple[int, int], Sent]:
    """Writes and waits; every record by its partition and offset."""
    written: dict[tuple[int, int], Sent] = {}
    failures: list[KafkaError] = []

    for record in records:

        def on_delivery(error: KafkaError | None, message: Message, record: Sent = record) -> None:
            if error is not None:
                failures.append(error)
                return
            written[message.partition(), message.offset()] = record

        client.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.timestamp,
            headers=record.headers,
            on_delivery=on_delivery,
        )
        client.poll(0)
    assert client.flush(60) == 0, "records were not acknowledged in time"
    assert not failures, failures[0]
    return written


def write(
    bootstrap: str, topic: str, records: Iterable[Sent], **settings: object
) -> dict[tuple[int, int], Sent]:
    return send(producer(bootstrap, **settings), topic, records)


def load(
    spark: SparkSession, bootstrap: str, schema: str | None = None, **options: object
) -> DataFrame:
    """A batch read; `_` in an option's name stands for `.`."""
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    if schema is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), str(value))
    return reader.load()


def as_sent(row: Row) -> Sent:
    """A row as the record that was written, for comparison."""
    timestamp = row["timestamp"]
    headers = row["headers"] if "headers" in row.__fields__ else None
    return Sent(
        None if row["value"] is None else bytes(row["value"]),
        None if row["key"] is None else bytes(row["key"]),
        row["partition"],
        round(timestamp.timestamp() * 1000),
        None
        if headers is None
        else [(h["key"], None if h["value"] is None else bytes(h["value"])) for h in headers],
    )


def rows_by_place(frame: DataFrame) -> dict[tuple[int, int], Sent]:
    """Every row by partition and offset; fails if one came twice."""
    rows = frame.collect()
    found = {(row["partition"], row["offset"]): as_sent(row) for row in rows}
    assert len(found) == len(rows), "a record came twice"
    return found
