"""One Apache Kafka 3.9.1 broker and two of ours on one ZooKeeper, either side as controller."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import PartitionMetadata

from ottla.cli.zookeeper_server import free_port
from tests.doubles.acknowledged_records import AcknowledgedRecords, identical_logs
from tests.doubles.apache_kafka import ApacheKafka, run_tool, start_kafka, start_zookeeper
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.console_client import ConsoleClient
from tests.doubles.eventually import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

KAFKA_ID = 1
OUR_IDS = (2, 3)
CONSOLE_PORTS = (free_port(), free_port())
# A new controller takes dead brokers out of the in-sync replicas before it elects leaders; Kafka's
# own does the same, and its brokers write this line about it.
AMONG_ITS_OWN_KIND = "cannot become follower since the new leader -1 is unavailable"
COMMON = {
    "zookeeper_session_timeout_ms": 6000,
    "inter_broker_protocol_version": "3.9",
    "offsets_topic_num_partitions": 5,
    "offsets_topic_replication_factor": 3,
}


@contextmanager
def ours(directory: Path, zookeeper: str) -> Iterator[list[BrokerProcess]]:
    common = {name.replace("_", "."): str(value) for name, value in COMMON.items()}
    brokers = [
        BrokerProcess(
            directory / f"broker-{broker_id}",
            {
                "broker.id": str(broker_id),
                "zookeeper.connect": zookeeper,
                "ottla.console.enable": "true",
                "ottla.metrics.address": f"127.0.0.1:{port}",
                **common,
            },
        )
        for broker_id, port in zip(OUR_IDS, CONSOLE_PORTS, strict=True)
    ]
    try:
        for broker in brokers:
            broker.start()
        yield brokers
    finally:
        for broker in brokers:
            if broker.is_running:
                broker.kill()


@contextmanager
def mixed(directory: Path, kafka_first: bool) -> Iterator[tuple[ApacheKafka, list[BrokerProcess]]]:
    """Who starts first becomes the controller."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(start_zookeeper(directory / "zookeeper"))
        brokers: list[BrokerProcess] = []
        if not kafka_first:
            brokers = stack.enter_context(ours(directory, zookeeper))
        kafka = stack.enter_context(
            start_kafka(directory / "kafka", zookeeper=zookeeper, broker_id=KAFKA_ID, **COMMON)
        )
        if kafka_first:
            brokers = stack.enter_context(ours(directory, zookeeper))
        yield kafka, brokers


@pytest.mark.parametrize("kafka_first", [True, False], ids=["kafka leads", "ottla leads"])
def test_replicas_on_both_sides_hold_the_same(tmp_path: Path, kafka_first: bool) -> None:
    with mixed(tmp_path, kafka_first) as (kafka, brokers):
        records = AcknowledgedRecords(
            ",".join([kafka.bootstrap, *(broker.bootstrap for broker in brokers)])
        )
        controller = records.admin.list_topics(timeout=30).controller_id
        assert (controller == KAFKA_ID) == kafka_first
        records.create_topic()
        records.produce(1000)

        for broker in brokers:
            broker.kill()
            records.produce(500)
            broker.start()
            eventually(records.all_in_sync, "the killed broker is not back in sync")

        records.assert_nothing_lost_or_doubled()
        metrics_know_the_controller(brokers)
        kafkas_tools_work(brokers[0].bootstrap, tmp_path, records)
        assert f"console http://127.0.0.1:{CONSOLE_PORTS[0]}/console" in (
            brokers[0].log_file.read_text()
        )
        the_console_shows_kafka(ConsoleClient(CONSOLE_PORTS[0]), kafka.bootstrap)
        directories = [
            *kafka.log_directories,
            *(broker.data_directory for broker in brokers),
        ]
        eventually(lambda: identical_logs(directories), "the replicas differ")
        errors = [line for line in kafka.output().splitlines() if " ERROR " in line]
        assert [line for line in errors if AMONG_ITS_OWN_KIND not in line] == []

        kafka.kill()
        eventually(lambda: KAFKA_ID not in records.leaders(), "the killed broker still leads")
        records.produce(500)


def the_console_shows_kafka(page: ConsoleClient, kafka: str) -> None:
    """What Kafka leads and coordinates is shown by the console of one of our brokers, and changed,
    whichever side is the controller."""
    topic = {"name": "console", "partitions": 3, "replication_factor": 1}
    page.act("topic/create", **topic, configs={"retention.ms": "7200000"})
    eventually(lambda: page.get("topics?search=console")["total"])
    leaders = {row["partition"]: row["leader"] for row in page.get("topic?name=console")["rows"]}
    assert sorted(leaders.values()) == [1, 2, 3]
    for partition in leaders:
        page.act("record/produce", topic="console", partition=partition, value=f"on {partition}")
    groups = [f"group-{number}" for number in range(10)]
    for group in groups:
        consumer = Consumer({"bootstrap.servers": kafka, "group.id": group})
        offsets = [TopicPartition("console", partition, 1) for partition in leaders]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()
    found = page.get("messages?topic=console&offset=0&value=on")["records"]
    assert {row["value"]["text"] for row in found} == {"on 0", "on 1", "on 2"}

    def rows() -> dict[str, dict[str, int]]:
        return {row["group"]: row for row in page.get("groups?search=group-")["groups"]}

    eventually(lambda: sorted(rows()) == groups)
    listed = rows()
    of_kafka = next(name for name in groups if listed[name]["coordinator"] == KAFKA_ID)
    shown = eventually(lambda: (found := page.get(f"group?name={of_kafka}"))["offsets"] and found)
    assert [row["offset"] for row in shown["offsets"]] == [1, 1, 1]
    assert "is Kafka and keeps no events" in shown["no_events"]
    plan = page.act("group/plan", group=of_kafka, to="earliest")
    page.act("group/reset", group=of_kafka, rows=plan["rows"])
    page.act("group/delete", group=of_kafka, confirm=of_kafka)
    setting = {"broker_id": KAFKA_ID, "setting": "log.cleaner.threads"}
    page.act("broker/setting", **setting, value="2")
    page.act("broker/setting", **setting, value=None)
    overview = page.get("overview")
    assert [row["responds"] for row in overview["brokers"]] == [True, True, True]
    assert overview["problems"] == []
    page.get("events")
    page.get("security")
    page.act("topic/delete", name="console", confirm="console")


def metrics_of(broker: BrokerProcess) -> dict[str, float]:
    url = f"http://{broker._settings['ottla.metrics.address']}/metrics"
    with urllib.request.urlopen(url, timeout=30) as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def metrics_know_the_controller(brokers: list[BrokerProcess]) -> None:
    """The alerts rely on it: a controller of Kafka is one, and serves no metrics of Ottla."""

    def agree() -> bool:
        found = [metrics_of(broker) for broker in brokers]
        known = {each["ottla_controller_id"] for each in found}
        active = sum(each["ottla_active_controller"] for each in found)
        knowing = sum("ottla_controller_topics" in each for each in found)
        return len(known) == 1 and active == knowing == (0 if known == {KAFKA_ID} else 1)

    eventually(agree, "the brokers do not agree who is the controller")
    assert sum(metrics_of(each)["ottla_replication_received_bytes_total"] for each in brokers) > 0


def kafkas_tools_work(bootstrap: str, directory: Path, records: AcknowledgedRecords) -> None:
    """A partition goes from Kafka to us and back, gets its preferred leader, and is deleted."""

    def tool(main_class: str, *arguments: str) -> str:
        return run_tool(
            f"org.apache.kafka.tools.{main_class}", "--bootstrap-server", bootstrap, *arguments
        )

    def partition() -> PartitionMetadata:
        return records.admin.list_topics("moved", timeout=60).topics["moved"].partitions[0]

    kafka_first, ours_only = [KAFKA_ID, OUR_IDS[0]], list(reversed(OUR_IDS))
    assignment = ":".join(map(str, kafka_first))
    tool("TopicCommand", "--create", "--topic", "moved", "--replica-assignment", assignment)
    eventually(lambda: partition().leader == KAFKA_ID, "the new topic has no leader")
    plan = directory / "plan.json"
    for target in (ours_only, kafka_first):
        row = {"topic": "moved", "partition": 0, "replicas": target}
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
        words = ("reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan))
        tool(*words, "--execute")
        eventually(
            lambda wanted=target: (
                sorted(partition().isrs) == sorted(wanted)  # type: ignore[misc]
                and sorted(partition().replicas) == sorted(wanted)
            ),
            "the reassignment does not end",
        )
        assert "is complete" in tool(*words, "--verify")
    election = ("--election-type", "PREFERRED", "--topic", "moved", "--partition", "0")
    tool("LeaderElectionCommand", *election)
    eventually(lambda: partition().leader == KAFKA_ID, "the preferred leader does not lead")
    assert "Leader: 1" in tool("TopicCommand", "--describe", "--topic", "moved")
    tool("TopicCommand", "--delete", "--topic", "moved")
    eventually(
        lambda: "moved" not in records.admin.list_topics(timeout=60).topics, "the topic stays"
    )
