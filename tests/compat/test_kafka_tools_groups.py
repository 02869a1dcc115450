"""Kafka's own command line tools for groups and transactions, on a broker of ours."""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.topics import TopicPartition as Partition
from tests.doubles.apache_kafka import java_command, run_tool
from tests.doubles.broker_process import start_broker
from tests.doubles.hanging_transaction import produce_late
from tests.doubles.producing import numbered, produce

pytestmark = pytest.mark.kafka

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTERS = "org.apache.kafka.tools.consumer"
DEADLINE_S = 60.0

Tool = Callable[..., str]
Record = dict[str, dict[str, dict[str, Any]]]  # key and value, each with its version and data


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("broker")
    with start_broker(
        directory,
        broker_id="0",
        offsets_topic_num_partitions="1",
        transaction_state_log_num_partitions="1",
        transaction_partition_verification_enable="false",  # so that a transaction can hang
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
    produce(broker, topic, numbered(0, 30, 3))
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


def test_a_hanging_transaction(broker: str, topic: str, tool: Tool) -> None:
    producer_id, error = produce_late(broker, Partition(topic, 2), b"late")
    assert error == 0
    found = rows(tool(TRANSACTIONS, "find-hanging", "--broker-id", "0", "--topic", topic))
    assert [row[:3] for row in found[1:]] == [[topic, "2", str(producer_id)]]
    partition = ("--topic", topic, "--partition", "2")
    tool(TRANSACTIONS, "abort", *partition, "--start-offset", found[1][5])
    found = rows(tool(TRANSACTIONS, "find-hanging", "--broker-id", "0", "--topic", topic))
    assert len(found) == 1  # the head


# The console consumer ends after a time without records; on a busy machine that can be before it
# has read anything, so it runs again with a longer time.
PATIENCE_MS = (4_000, 30_000, 90_000)


def read_internal(
    tool: Tool, topic: str, formatter: str, pick: Callable[[list[Record]], object], wanted: object
) -> None:
    """What `pick` makes of the records of an internal topic, as Kafka's formatter prints them, is
    what is wanted."""
    found = None
    for patience_ms in PATIENCE_MS:
        output = tool(
            CONSOLE, "--topic", topic, "--from-beginning", "--timeout-ms", str(patience_ms),
            "--formatter", f"{FORMATTERS}.{formatter}",
        )  # fmt: skip
        found = pick(parse(output))
        if found == wanted:
            return
    assert found == wanted


def parse(output: str) -> list[Record]:
    """One JSON object after another, and then the output of the tool."""
    end = re.search(r"\[\d{4}-|Processed a total", output)
    text = output[: end.start()] if end else output
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

    def pairs(records: list[Record], name: str, owner: str) -> list[tuple[Any, Any]]:
        """Key and value of the records that belong to the group or transactional id."""
        # Tombstones of other tests' groups have no value.
        whole = [record for record in records if record["key"] and record["value"]]
        found = [(record["key"]["data"], record["value"]["data"]) for record in whole]
        return [(key, value) for key, value in found if key[name] == owner]

    def offsets(records: list[Record]) -> object:
        return {key["partition"]: value["offset"] for key, value in pairs(records, "group", group)}

    def generations(records: list[Record]) -> object:
        return [value["generation"] for _, value in pairs(records, "group", group)]

    def states(records: list[Record]) -> object:
        found = pairs(records, "transactionalId", f"t-{topic}")
        return [value["transactionStatus"] for _, value in found]

    latest = dict.fromkeys(range(3), 10)
    read_internal(tool, "__consumer_offsets", "OffsetsMessageFormatter", offsets, latest)
    read_internal(tool, "__consumer_offsets", "GroupMetadataMessageFormatter", generations, [1, 2])
    story = [0, 1, 2, 4]  # Empty, Ongoing, PrepareCommit, CompleteCommit
    read_internal(tool, "__transaction_state", "TransactionLogMessageFormatter", states, story)
