"""`ottla consume --group G --follow` as members of a group, beside each other and a real client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.doubles.broker_process import ROOT, BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.producing import numbered, produce

DEADLINE_S = 60.0
PARTITIONS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("members")) as started:
        yield started


class Member:
    """The command in a process of its own."""

    def __init__(self, broker: BrokerProcess, output: Path, *arguments: str) -> None:
        self._output, self._errors = output, output.with_suffix(".errors")
        command = [sys.executable, "-m", "ottla.cli.main", "consume", *arguments, "--follow"]
        with output.open("wb") as sink, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdout=sink,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, "OTTLA_BOOTSTRAP": broker.bootstrap},
            )

    def read(self) -> list[int]:
        """The numbers of all lines that are whole."""
        lines = self._output.read_text().split("\n")[:-1]
        return [int(line) for line in lines]

    def errors(self) -> str:
        """What it has written to standard error."""
        return self._errors.read_text()

    def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(DEADLINE_S)

    def wait(self) -> int:
        return self._process.wait(DEADLINE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def shares(ottla: CommandLine, group: str) -> list[int]:
    """How many partitions each member of a stable group has."""
    described = ottla("groups", "describe", group, "--members", "--json")
    if described.code or described.value.get("state") != "Stable":
        return []
    return sorted(len(member["partitions"]) for member in described.value["members"])


def test_members_share_take_over_and_leave_a_commit(broker: BrokerProcess, tmp_path: Path) -> None:
    ottla = CommandLine(broker.bootstrap)
    ottla.done("topics", "create", "shared", "--partitions", str(PARTITIONS))
    produce(broker.bootstrap, "shared", numbered(0, 40, PARTITIONS))
    options = ("shared", "--group", "g", "--from-beginning")
    first = Member(broker, tmp_path / "first", *options)
    members = [first]
    try:
        eventually(lambda: sorted(first.read()) == list(range(40)))
        second = Member(broker, tmp_path / "second", *options)
        members.append(second)
        eventually(lambda: shares(ottla, "g") == [2, 2])
        produce(broker.bootstrap, "shared", numbered(40, 40, PARTITIONS))
        eventually(lambda: len(first.read()) + len(second.read()) >= 80)
        assert sorted(first.read() + second.read()) == list(range(80))
        assert first.interrupt() == 0
        eventually(lambda: shares(ottla, "g") == [4])
        produce(broker.bootstrap, "shared", numbered(80, 20, PARTITIONS))
        eventually(lambda: set(second.read()) >= set(range(80, 100)))
        assert second.interrupt() == 0
    finally:
        for member in members:
            member.kill()
    # What was read is committed: no member is there any more, and nothing is left to read.
    assert ottla.done("consume", "shared", "-g", "g").output == ""


def test_beside_a_real_consumer(broker: BrokerProcess, tmp_path: Path) -> None:
    ottla = CommandLine(broker.bootstrap)
    ottla.done("topics", "create", "mixed", "--partitions", str(PARTITIONS))
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "m",
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
        }
    )
    consumer.subscribe(["mixed"])
    member = Member(broker, tmp_path / "member", "mixed", "--group", "m", "--from-beginning")
    try:
        deadline = time.monotonic() + DEADLINE_S
        while len(consumer.assignment()) != 2 or shares(ottla, "m") != [2, 2]:
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        produce(broker.bootstrap, "mixed", numbered(0, 20, PARTITIONS))
        taken: set[int] = set()
        while len(taken) + len(member.read()) < 20:
            assert time.monotonic() < deadline
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                taken.add(int(message.value() or b""))
        assert sorted([*taken, *member.read()]) == list(range(20))
    finally:
        member.kill()
        consumer.close()


def test_followers_go_on_after_a_restart(tmp_path: Path) -> None:
    with start_broker(tmp_path / "broker", num_partitions=str(PARTITIONS)) as broker:
        CommandLine(broker.bootstrap).done("topics", "create", "lasting")
        produce(broker.bootstrap, "lasting", numbered(0, 20, PARTITIONS))
        options = ("lasting", "--from-beginning")
        followers = [
            Member(broker, tmp_path / "alone", *options),
            Member(broker, tmp_path / "member", *options, "--group", "r"),
        ]
        try:
            eventually(lambda: [len(each.read()) for each in followers] == [20, 20])
            broker.stop()
            # Both notice it, also the one whose fetch got a response when the broker stopped.
            eventually(lambda: all("waiting for it" in each.errors() for each in followers))
            broker.start()
            produce(broker.bootstrap, "lasting", numbered(20, 20, PARTITIONS))
            eventually(lambda: all(len(each.read()) >= 40 for each in followers))
            assert [sorted(each.read()) for each in followers] == [list(range(40))] * 2
            assert [each.interrupt() for each in followers] == [0, 0]
        finally:
            for each in followers:
                each.kill()


def test_it_ends_at_the_limit(broker: BrokerProcess, tmp_path: Path) -> None:
    ottla = CommandLine(broker.bootstrap)
    ottla.done("topics", "create", "few", "--partitions", str(PARTITIONS))
    produce(broker.bootstrap, "few", numbered(0, 8, PARTITIONS))
    options = ("few", "--group", "l", "--from-beginning", "--max", "3")
    member = Member(broker, tmp_path / "few", *options)
    try:
        assert member.wait() == 0
    finally:
        member.kill()
    assert len(member.read()) == 3
    rest = ottla.done("consume", "few", "-g", "l").output.split()
    assert sorted([*member.read(), *map(int, rest)]) == list(range(8))


def test_a_member_does_not_choose_its_partitions(broker: BrokerProcess) -> None:
    response = CommandLine(broker.bootstrap)("consume", "t", "-g", "g", "--follow", "-p", "0")
    assert response.code == 2
    assert "a group member reads its assigned partitions" in response.errors
