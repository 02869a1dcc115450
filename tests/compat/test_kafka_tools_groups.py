"""Kafka's own command line tools for groups and transactions, on a broker of ours."""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.apache_kafka import java_command, run_tool
from tests.doubles.broker_process import start_broker

pytestmark = pytest.mark.kafka

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTERS = "org.apache.kafka.tools.consumer"
DEADLINE_S = 60.0

Tool = Callable[..., str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("broker")
    with start_broker(
        directory,
        broker_id="0",
        offsets_topic_num_partitions="1",
        transaction_state_log_num_partitions="1",
    ) as process:
        yield process.bootstrap


@pytest.fixture
def tool(broker: str) -> Tool:
    java_command("none")  # skips without Java

    def run(main_class: str, *arguments: str) -> str:
        return run_tool(main_class, "--bootstrap-server", broker, *arguments)

    return run


@pytest.fixture
def topic(broker: str) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker})
    for done in admin.create_topics([NewTopic(name, 3, 1)]).values():
        done.result(DEADLINE_S)
    return name


def read_group(broker: str, group: str, topic: str) -> Consumer:
    """A member that has read and committed 30 records of three partitions."""
    feed = Producer({"bootstrap.servers": broker})
    for number in range(30):
        feed.produce(topic, b"x", partition=number % 3)
    feed.flush(DEADLINE_S)
    consumer = Consumer(
        {"bootstrap.servers": broker, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    assert len(consumer.consume(30, DEADLINE_S)) == 30
    consumer.commit(asynchronous=False)
    return consumer


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line.strip()]


def test_consumer_groups(broker: str, topic: str, tool: Tool) -> None:
    group = f"g-{topic}"
    consumer = read_group(broker, group, topic)
    assert [group, "Stable"] in rows(tool(GROUPS, "--list", "--state"))
    assert [group, "Classic"] in rows(tool(GROUPS, "--list", "--type"))
    described = rows(tool(GROUPS, "--describe", "--group", group))
    assert sorted(row[2:6] for row in described[1:]) == [
        [str(index), "10", "10", "0"] for index in range(3)
    ]
    members = tool(GROUPS, "--describe", "--group", group, "--members", "--verbose")
    assert "(0,1,2)" in members
    assert "range" in tool(GROUPS, "--describe", "--group", group, "--state")
    refused = run_to_failure(broker, "--delete", "--group", group)
    assert "is not empty" in refused or "GroupNotEmpty" in refused
    consumer.close()
    tool(GROUPS, "--reset-offsets", "--group", group, "--topic", topic, "--to-offset", "4",
         "--execute")  # fmt: skip
    tool(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    described = rows(tool(GROUPS, "--describe", "--group", group))
    assert sorted(row[2:6] for row in described if row[0] == group) == [
        ["0", "4", "10", "6"],
        ["2", "4", "10", "6"],
    ]
    tool(GROUPS, "--delete", "--group", group)
    assert [group] not in rows(tool(GROUPS, "--list"))


def run_to_failure(broker: str, *arguments: str) -> str:
    """The output of the group command, whether it fails or not."""
    try:
        return run_tool(GROUPS, "--bootstrap-server", broker, *arguments)
    except AssertionError as failure:
        return str(failure)


def test_transactions(broker: str, topic: str, tool: Tool) -> None:
    name = f"t-{topic}"
    producer = Producer({"bootstrap.servers": broker, "transactional.id": name})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(DEADLINE_S)
    listed = {row[0]: row[1:] for row in rows(tool(TRANSACTIONS, "list"))}
    assert listed[name][0] == "0"
    assert listed[name][2] == "Ongoing"
    assert f"{topic}-0" in tool(TRANSACTIONS, "describe", "--transactional-id", name)
    partition = ("--topic", topic, "--partition", "0")
    found = rows(tool(TRANSACTIONS, "describe-producers", *partition))
    assert found[1][1] == "0"  # epoch
    assert found[1][5] == "0"  # where the open transaction begins
    assert len(rows(tool(TRANSACTIONS, "find-hanging", "--broker-id", "0"))) == 1  # the head
    tool(TRANSACTIONS, "abort", *partition, "--start-offset", "0")
    found = rows(tool(TRANSACTIONS, "describe-producers", *partition))
    assert found[1][5] == "None"


def read_internal(tool: Tool, topic: str, formatter: str) -> list[dict[str, object]]:
    """The records of an internal topic as Kafka's formatter prints them, one JSON after another."""
    output = tool(
        CONSOLE, "--topic", topic, "--from-beginning", "--timeout-ms", "4000",
        "--formatter", f"{FORMATTERS}.{formatter}",
    )  # fmt: skip
    text = output[: re.search(r"\[\d{4}-|Processed a total", output).start()]  # type: ignore[union-attr]
    decoder, position, found = json.JSONDecoder(), 0, []
    while position < len(text.rstrip()):
        value, position = decoder.raw_decode(text, position)
        found.append(value)
    return found


def test_our_internal_topics_are_read_by_kafkas_formatters(
    broker: str, topic: str, tool: Tool
) -> None:
    group = f"g-{topic}"
    read_group(broker, group, topic).close()
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"t-{topic}"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.commit_transaction(DEADLINE_S)
    offsets = read_internal(tool, "__consumer_offsets", "OffsetsMessageFormatter")
    latest = {
        json.dumps(record["key"]["data"]): record["value"]["data"]["offset"]  # type: ignore[index]
        for record in offsets
        if record["key"]["data"]["group"] == group  # type: ignore[index]
    }
    assert sorted(latest.values()) == [10, 10, 10]
    groups = read_internal(tool, "__consumer_offsets", "GroupMetadataMessageFormatter")
    generations = [
        record["value"]["data"]["generation"]  # type: ignore[index]
        for record in groups
        if record["key"]["data"]["group"] == group  # type: ignore[index]
    ]
    assert generations == [1, 2]
    states = read_internal(tool, "__transaction_state", "TransactionLogMessageFormatter")
    assert [
        record["value"]["data"]["transactionStatus"]  # type: ignore[index]
        for record in states
        if record["key"]["data"]["transactionalId"] == f"t-{topic}"  # type: ignore[index]
    ] == [0, 1, 2, 4]
