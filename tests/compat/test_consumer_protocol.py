"""Groups of the new protocol (KIP-848) with librdkafka: the broker assigns, members follow."""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients.java_group import java_group_of, join_leave_and_crash
from tests.doubles.apache_kafka import run_tool
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.kafka_clients import NEW
from tests.doubles.producing import numbered, produce

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PARTITIONS = 12
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 90.0
SETTINGS = {
    "group_consumer_migration_policy": "bidirectional",
    # Quick, so that the tests are; a real broker has 5 s and 45 s.
    "group_consumer_min_heartbeat_interval_ms": 100,
    "group_consumer_heartbeat_interval_ms": 200,
    "group_consumer_min_session_timeout_ms": 1_000,
    "group_consumer_session_timeout_ms": 6_000,
    "offsets_topic_num_partitions": 1,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("broker"), **SETTINGS) as process:
        yield process


def make_topic(bootstrap: str, prefix: str = "topic") -> str:
    name = f"{prefix}-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        done.result(DEADLINE_S)
    return name


class Members:
    """Consumers of one group in one thread; all are polled in turn."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self.topic = topic
        self.consumers: list[Consumer] = []
        self.read: set[int] = set()
        self.produced = 0

    def start(self, protocol: str = "consumer", instance_id: str | None = None) -> Consumer:
        settings: dict[str, object] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
        if instance_id is not None:
            settings["group.instance.id"] = instance_id
        consumer = Consumer(settings)
        consumer.subscribe([self.topic])
        self.consumers.append(consumer)
        return consumer

    def stop(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.close()

    def stop_all(self) -> None:
        while self.consumers:
            self.stop(self.consumers[-1])

    def produce(self, count: int) -> None:
        records = numbered(self.produced, count, PARTITIONS)
        produce(self.bootstrap, self.topic, records, seconds=DEADLINE_S)
        self.produced += count

    def poll_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < deadline, (self.shares(), self.produced - len(self.read))
            for consumer in self.consumers:
                message = consumer.poll(0.02)
                if message is not None and message.error() is None:
                    self.read.add(int(message.value()))

    def commit(self) -> None:
        for consumer in self.consumers:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as problem:
                if problem.args[0].code() != KafkaError._NO_OFFSET:
                    raise

    def shares(self) -> list[set[int]]:
        return [{tp.partition for tp in consumer.assignment()} for consumer in self.consumers]

    def is_shared(self) -> bool:
        """Every partition has exactly one owner, and all have equally many but for one."""
        sizes = [len(share) for share in self.shares()]
        return (
            set.union(*self.shares()) == set(range(PARTITIONS))
            and sum(sizes) == PARTITIONS
            and max(sizes) - min(sizes) <= 1
        )

    def has_all(self) -> bool:
        return len(self.read) == self.produced


def test_ten_members_join_and_leave(broker: BrokerProcess) -> None:
    members = Members(broker.bootstrap, make_topic(broker.bootstrap))
    members.produce(120)
    members.start()
    members.start()
    members.poll_until(members.is_shared)
    for _ in range(8):
        members.start()
    members.poll_until(members.is_shared)
    members.produce(120)
    members.poll_until(members.has_all)
    for consumer in members.consumers[:8]:
        members.stop(consumer)
    members.poll_until(members.is_shared)
    members.produce(120)
    members.poll_until(members.has_all)
    members.stop_all()


def test_a_member_that_crashes_is_replaced(broker: BrokerProcess) -> None:
    members = Members(broker.bootstrap, make_topic(broker.bootstrap))
    module = "tests.compat.clients.member_process"
    doomed = subprocess.Popen(
        [sys.executable, "-m", module, broker.bootstrap, members.group, members.topic, "consumer"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert doomed.stdout is not None
        while len(doomed.stdout.readline().split()) != PARTITIONS:
            assert doomed.poll() is None
        survivor = members.start()
        members.poll_until(lambda: len(survivor.assignment()) == PARTITIONS // 2)
    finally:
        doomed.kill()
        doomed.wait()
        if doomed.stdout is not None:
            doomed.stdout.close()
    members.poll_until(members.is_shared)
    members.stop_all()


def test_committed_offsets_outlive_a_killed_coordinator(tmp_path: Path) -> None:
    """Killed while the group is stable, and while partitions move."""
    with start_broker(tmp_path, **SETTINGS) as broker:
        members = Members(broker.bootstrap, make_topic(broker.bootstrap))
        members.produce(60)
        members.start()
        members.poll_until(members.has_all)
        members.commit()
        broker.kill()
        broker.start()
        members.start()
        members.start()
        broker.kill()
        broker.start()
        members.poll_until(members.is_shared)
        members.produce(60)
        members.poll_until(members.has_all)
        members.commit()
        members.stop_all()
        broker.restart()
        members.read.clear()
        members.produced = 0
        members.start()
        members.poll_until(members.is_shared)
        late = Members(broker.bootstrap, members.topic)
        late.produce(PARTITIONS)
        members.poll_until(lambda: len(members.read) == PARTITIONS)
        members.stop_all()
        assert members.read == set(range(PARTITIONS)), "what was committed is read again"


def test_static_members_keep_their_partitions(broker: BrokerProcess) -> None:
    members = Members(broker.bootstrap, make_topic(broker.bootstrap))
    members.start(instance_id="one")
    members.start(instance_id="two")
    members.poll_until(members.is_shared)
    before = members.shares()
    members.stop(members.consumers[1])
    members.start(instance_id="two")
    members.poll_until(members.is_shared)
    assert members.shares() == before
    members.stop_all()


def test_a_pattern_finds_topics_that_come_later(broker: BrokerProcess) -> None:
    prefix = f"pattern-{uuid.uuid4().hex[:8]}"
    make_topic(broker.bootstrap, prefix)
    members = Members(broker.bootstrap, f"^{prefix}.*")
    consumer = members.start()
    members.poll_until(lambda: len(consumer.assignment()) == PARTITIONS)
    make_topic(broker.bootstrap, prefix)
    members.poll_until(lambda: len(consumer.assignment()) == 2 * PARTITIONS)
    members.stop_all()


def test_a_group_moves_from_the_one_protocol_to_the_other_and_back(broker: BrokerProcess) -> None:
    members = Members(broker.bootstrap, make_topic(broker.bootstrap))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def kind() -> ConsumerGroupType:
        listed = admin.list_consumer_groups().result(DEADLINE_S)
        found: ConsumerGroupType = next(
            group.type for group in listed.valid if group.group_id == members.group
        )
        return found

    members.produce(60)
    old = [members.start("classic"), members.start("classic")]
    members.poll_until(members.is_shared)
    assert kind() == ConsumerGroupType.CLASSIC
    new = [members.start(), members.start()]
    members.poll_until(members.is_shared)
    assert kind() == ConsumerGroupType.CONSUMER
    members.produce(60)
    members.poll_until(members.has_all)
    members.stop(old[0])
    members.poll_until(members.is_shared)
    members.stop(new[0])
    members.stop(new[1])
    members.poll_until(members.is_shared)
    assert kind() == ConsumerGroupType.CLASSIC
    members.produce(60)
    members.poll_until(members.has_all)
    members.stop_all()


def test_an_administrator_sees_the_group(broker: BrokerProcess) -> None:
    members = Members(broker.bootstrap, make_topic(broker.bootstrap))
    members.start()
    members.poll_until(members.is_shared)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = admin.describe_consumer_groups([members.group])[members.group].result(DEADLINE_S)
    assert (found.state, found.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    assert found.partition_assignor == "uniform"
    (member,) = found.members
    assert len(member.assignment.topic_partitions) == PARTITIONS
    command = CommandLine(broker.bootstrap)
    ours = command.done("groups", "describe", members.group, "--json").value
    assert (ours["state"], ours["protocol"]) == ("Stable", "uniform")
    (shown,) = ours["members"]
    assert len(shown["partitions"]) == PARTITIONS
    members.stop_all()
    admin.delete_consumer_groups([members.group])[members.group].result(DEADLINE_S)


@pytest.mark.kafka
def test_the_newest_java_consumer(broker: BrokerProcess, tmp_path: Path) -> None:
    with java_group_of(NEW, "uniform", broker.bootstrap, tmp_path) as group:
        join_leave_and_crash(group)


@pytest.mark.kafka
def test_the_groups_tool_of_kafka(broker: BrokerProcess) -> None:
    members = Members(broker.bootstrap, make_topic(broker.bootstrap))
    members.produce(PARTITIONS)
    members.start()
    members.poll_until(lambda: members.has_all() and members.is_shared())
    members.commit()

    def tool(*arguments: str) -> list[list[str]]:
        output = run_tool(GROUPS_TOOL, "--bootstrap-server", broker.bootstrap, *arguments)
        return [line.split() for line in output.splitlines() if line.strip()]

    of_group = ("--describe", "--group", members.group)
    offsets = tool(*of_group)
    assert sorted(int(row[2]) for row in offsets[1:]) == list(range(PARTITIONS))
    assert {tuple(row[3:6]) for row in offsets[1:]} == {("1", "1", "0")}
    (state,) = (row for row in tool(*of_group, "--state") if row[0] == members.group)
    assert state[-3:] == ["uniform", "Stable", "1"]
    (member,) = (row for row in tool(*of_group, "--members") if row[0] == members.group)
    assert member[-1] == str(PARTITIONS)
    members.stop_all()
