"""`ottla start` without a setting serves all that the newest clients use by themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.transactions.records import read_value
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC
from tests.compat.share.librdkafka import consume as consume_with_librdkafka
from tests.compat.share.work import compile_work, consume, expected, values
from tests.compat.test_transaction_version import java, read
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.producing import numbered, produce

pytestmark = pytest.mark.kafka

RECORDS = 30
PARTITIONS = 3
TRANSACTION_RECORDS, PER_S = 1000, 200
TRANSACTION_PARTITIONS = 50  # the default of transaction.state.log.num.partitions
DEADLINE_S = 180.0


class _Start(BrokerProcess):
    """`ottla start`, with nothing but a directory and a free port of its own."""

    module = "ottla.cli.main"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, {}, ["start"])


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = _Start(tmp_path_factory.mktemp("fresh"))
    broker.start()
    try:
        yield broker.bootstrap
    finally:
        broker.kill()


def _topic(bootstrap: str, name: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)


def _types(bootstrap: str) -> dict[str, ConsumerGroupType]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_groups().result(60)
    return {row.group_id: row.type for row in listed.valid}


def _consume_with_librdkafka(bootstrap: str, topic: str, group: str) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found = []
    while len(found) < RECORDS:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"{len(found)} of {RECORDS} records came"
        assert message.error() is None, message.error()
        found.append(int(message.value() or b"-1"))
    consumer.close()
    return found


def _consume_with_java(bootstrap: str, topic: str, group: str) -> list[int]:
    command = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--command-property", "group.protocol=consumer", "--from-beginning"),
        *("--max-messages", str(RECORDS)),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [int(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("consume_all", [_consume_with_java, _consume_with_librdkafka])
def test_the_consumer_protocol(bootstrap: str, consume_all: object) -> None:
    assert callable(consume_all)
    name = consume_all.__name__
    _topic(bootstrap, name)
    produce(bootstrap, name, numbered(0, RECORDS, PARTITIONS))
    assert sorted(consume_all(bootstrap, name, f"{name}-group")) == list(range(RECORDS))
    assert _types(bootstrap)[f"{name}-group"] == ConsumerGroupType.CONSUMER


def test_share_consumers_of_java(bootstrap: str, tmp_path: Path) -> None:
    _topic(bootstrap, "shared", 1)
    found = consume(
        bootstrap, "shared", "sharers", compile_work(tmp_path), tmp_path / "log", values()
    )
    assert found == expected()


def test_share_consumers_of_librdkafka(bootstrap: str) -> None:
    found = consume_with_librdkafka(bootstrap, "shared-too", "other-sharers", values())
    assert found == expected()


def test_each_transaction_of_a_java_producer_raises_its_epoch(bootstrap: str) -> None:
    """That is transaction version 2 (KIP-890, second part)."""
    _topic(bootstrap, "transactions")
    command = java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "transactions", "--num-records", str(TRANSACTION_RECORDS)),
        *("--record-size", "100", "--throughput", str(PER_S), "--transactional-id", "x"),
        *("--transaction-duration-ms", "100", "--producer-props", f"bootstrap.servers={bootstrap}"),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records = read(bootstrap, "transactions", PARTITIONS, "read_committed")
    assert len(records) == TRANSACTION_RECORDS
    states = [
        read_value("x", each.value())
        for each in read(
            bootstrap, TRANSACTION_STATE_TOPIC, TRANSACTION_PARTITIONS, "read_uncommitted"
        )
    ]
    assert {state.client_version for state in states[1:]} == {2}
    epochs = [state.epoch for state in states]
    assert max(epochs) >= TRANSACTION_RECORDS / PER_S
    assert all(later >= earlier for earlier, later in pairwise(epochs))
