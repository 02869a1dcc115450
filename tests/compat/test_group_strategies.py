"""Assignment strategies and static members with librdkafka: members come, crash and come back."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.eventually import eventually
from tests.doubles.producing import numbered, produce

PARTITIONS = 6
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        done.result(DEADLINE_S)
    return name


class Members:
    """Consumers of one group in one thread; all are polled in turn."""

    def __init__(self, bootstrap: str, topic: str, strategy: str) -> None:
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": self.group,
            "partition.assignment.strategy": strategy,
            # No member crashes, and none is to time out: a removed member reads again.
            "session.timeout.ms": 60_000,
            "heartbeat.interval.ms": 500,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        self._topic = topic
        self.consumers: list[Consumer] = []
        self.read: list[int] = []

    def start(self, instance_id: str | None = None) -> Consumer:
        settings = dict(self._settings)
        if instance_id is not None:
            settings["group.instance.id"] = instance_id
        consumer = Consumer(settings)
        consumer.subscribe([self._topic])
        self.consumers.append(consumer)
        return consumer

    def stop(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.close()

    def poll(self) -> None:
        for consumer in self.consumers:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.read.append(int(message.value()))

    def poll_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < deadline, self.shares()
            self.poll()

    def shares(self) -> list[set[int]]:
        return [{tp.partition for tp in c.assignment()} for c in self.consumers]

    def is_shared(self) -> bool:
        """Every partition has exactly one owner, and every member has one."""
        shares = self.shares()
        return (
            all(shares)
            and sum(map(len, shares)) == PARTITIONS
            and set.union(*shares) == set(range(PARTITIONS))
        )

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_and_take_over(bootstrap: str, topic: str, strategy: str) -> None:
    produce(bootstrap, topic, numbered(0, 60, PARTITIONS))
    members = Members(bootstrap, topic, strategy)
    try:
        first = members.start()
        members.poll_until(members.is_shared)
        members.poll_until(lambda: len(members.read) == 60)
        first.commit(asynchronous=False)
        members.start()
        members.start()
        members.poll_until(lambda: len(members.consumers) == 3 and members.is_shared())
        members.stop(first)
        members.poll_until(members.is_shared)
        produce(bootstrap, topic, numbered(60, 60, PARTITIONS))
        members.poll_until(lambda: set(members.read) >= set(range(120)))
        assert sorted(members.read) == list(range(120))
    finally:
        members.close()


def test_a_static_member_keeps_its_place_over_a_restart(bootstrap: str, topic: str) -> None:
    members = Members(bootstrap, topic, "range")
    try:
        members.start("one")
        second = members.start("two")
        members.poll_until(members.is_shared)
        admin = AdminClient({"bootstrap.servers": bootstrap})

        def generation() -> object:
            described = admin.describe_consumer_groups([members.group])[members.group]
            found = described.result(DEADLINE_S)
            assert found.state == ConsumerGroupState.STABLE
            return {member.group_instance_id: member.assignment for member in found.members}.keys()

        assert generation() == {"one", "two"}
        before = members.shares()
        members.stop(second)  # a static member does not leave when it closes
        members.start("two")
        members.poll_until(members.is_shared)
        assert members.shares() == before
        assert generation() == {"one", "two"}
    finally:
        members.close()


class MemberProcess:
    """A member in a process of its own; `partitions` is what it has printed last."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        command = [sys.executable, "-m", "tests.compat.clients.member_process"]
        self._process = subprocess.Popen(
            [*command, bootstrap, group, topic], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._printed = b""

    @property
    def partitions(self) -> set[int]:
        assert self._process.stdout is not None
        self._printed += self._process.stdout.read() or b""
        lines = self._printed.split(b"\n")
        return {int(word) for word in lines[-2].split()} if len(lines) > 1 else set()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_the_others_take_over_when_members_are_killed(bootstrap: str, topic: str) -> None:
    group = f"group-{uuid.uuid4().hex[:12]}"
    alive = [MemberProcess(bootstrap, group, topic) for _ in range(10)]

    def is_shared() -> bool:
        """By as many members as can own something: the first of them owned all for a moment, while
        the processes of the others were starting."""
        owned = [member.partitions for member in alive]
        return sorted(n for each in owned for n in each) == list(range(PARTITIONS)) and (
            sum(map(bool, owned)) == min(len(alive), PARTITIONS)
        )

    def wait_until_shared() -> None:
        eventually(is_shared, lambda: [member.partitions for member in alive], seconds=180)

    try:
        wait_until_shared()
        for _ in range(6):  # two at least of them own something
            alive.pop(0).kill()
        wait_until_shared()
    finally:
        for member in alive:
            member.kill()


def test_committed_metadata_and_lag(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, numbered(0, 12, PARTITIONS))
    members = Members(bootstrap, topic, "range")
    try:
        consumer = members.start()
        members.poll_until(members.is_shared)
        members.poll_until(lambda: len(members.read) == 12)
        commits = [TopicPartition(topic, n, 1, metadata=f"note {n}") for n in range(PARTITIONS)]
        consumer.commit(offsets=commits, asynchronous=False)
        wanted = [TopicPartition(topic, n) for n in range(PARTITIONS)]
        committed = consumer.committed(wanted, DEADLINE_S)
        assert [(tp.offset, tp.metadata) for tp in committed] == [
            (1, f"note {n}") for n in range(PARTITIONS)
        ]
    finally:
        members.close()
