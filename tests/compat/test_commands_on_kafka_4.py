"""`ottla` commands on Apache Kafka 4.3.1 in KRaft mode give the answers of its own tools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.kraft_kafka import start_kraft

pytestmark = pytest.mark.kafka

TOPIC, PARTITIONS, RECORDS = "orders", 2, 10


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_kraft(tmp_path_factory.mktemp("kraft")) as address:
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
        producer = Producer({"bootstrap.servers": address})
        for number in range(RECORDS):
            producer.produce(TOPIC, str(number), partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        yield address


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_a_member_and_without(bootstrap: str, protocol: str) -> None:
    ottla = CommandLine(bootstrap)
    group = f"{protocol}-readers"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    read = 0
    while read < RECORDS:
        message = consumer.poll(60)
        assert message is not None, f"{read} of {RECORDS} records came"
        assert message.error() is None, message.error()
        read += 1
    consumer.commit(asynchronous=False)

    def described() -> tuple[str, int]:
        value = ottla.done("groups", "describe", group, "--members", "--json").value
        return value["state"], len(value["members"])

    eventually(lambda: described() == ("Stable", 1), described)
    (row,) = (row for row in ottla.done("groups", "list", "--json").value if row["group"] == group)
    assert (row["type"], row["state"]) == (protocol, "Stable")
    partitions = ottla.done("groups", "describe", group, "--json").value["partitions"]
    assert [(each["committed"], each["lag"]) for each in partitions] == [(5, 0)] * PARTITIONS
    consumer.close()
    eventually(lambda: described() == ("Empty", 0), described)
    reset = ("groups", "reset-offsets", group, TOPIC, "--to-earliest", "--execute")
    ottla.done(*reset)
    partitions = ottla.done("groups", "describe", group, "--json").value["partitions"]
    assert [(each["committed"], each["lag"]) for each in partitions] == [(0, 5)] * PARTITIONS
    ottla.done("groups", "delete", group, "--yes")
    assert ottla("groups", "describe", group).code == 1


def test_topics_offsets_and_features(bootstrap: str) -> None:
    ottla = CommandLine(bootstrap)
    rows = ottla.done("topics", "offsets", TOPIC, "--json").value
    assert [(row["first"], row["end"]) for row in rows] == [(0, 5)] * PARTITIONS
    (topic,) = ottla.done("topics", "describe", "--regex", "ord.*", "--json").value
    assert len(topic["partitions"]) == PARTITIONS
    assert len(ottla.done("consume", TOPIC).lines) == RECORDS
    assert "transaction.version" in ottla.done("features").output
