"""A znode of a topic that lost its topic id, as a tool from before Kafka 2.8 writes it.

Kafka's controller makes up another id, which the broker refuses: the records stay on the disk, and
out of service. Ottla writes the id of the log back, and serves the records.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from tests.doubles.apache_kafka import start_kafka, start_zookeeper
from tests.doubles.broker_process import start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually

pytestmark = pytest.mark.kafka

TOPIC = "orders"
LINES = "one\ntwo\nthree\n"


class Seen(NamedTuple):
    """After the second start."""

    #: Whether the znode has the topic id that it had.
    has_its_id: bool
    #: Whether the log directory has the bytes that it had, under the name that it had.
    has_its_bytes: bool
    #: The log line of a broker that refuses the id of the controller.
    refuses: bool


def story(
    zookeeper: str,
    data: Path,
    start: Callable[[], AbstractContextManager[Any]],
    check: Callable[[CommandLine], None] = lambda _: None,
) -> Seen:
    """Create a topic, write to it, stop, drop the id from its znode, start again."""
    with start() as broker:
        command = CommandLine(broker.bootstrap)
        command.done("topics", "create", TOPIC)
        command.done("produce", TOPIC, "-q", text=LINES)
        assert command.done("consume", TOPIC).output == LINES
        broker.stop()
    tree = KazooClient(zookeeper)
    tree.start()
    try:
        path = f"/brokers/topics/{TOPIC}"
        node = json.loads(tree.get(path)[0])
        tree.set(path, json.dumps({"version": 1, "partitions": node["partitions"]}).encode())
        segment = data / f"{TOPIC}-0" / f"{0:020d}.log"
        before = segment.read_bytes()
        with start() as broker:
            eventually(lambda: "topic_id" in json.loads(tree.get(path)[0]), "no topic id")
            found = json.loads(tree.get(path)[0])["topic_id"]
            if found == node["topic_id"]:
                check(CommandLine(broker.bootstrap))
                refuses = False
            else:
                eventually(lambda: "does not match the topic ID" in broker.output(), "no refusal")
                refuses = True
            return Seen(found == node["topic_id"], segment.read_bytes().startswith(before), refuses)
    finally:
        tree.stop()
        tree.close()


def test_the_records_stay_and_here_they_are_served(tmp_path: Path) -> None:
    def served(command: CommandLine) -> None:
        eventually(lambda: command("consume", TOPIC).output == LINES, "the records are not served")

    with start_zookeeper(tmp_path) as zookeeper:
        kafka = story(
            f"{zookeeper}/kafka",
            tmp_path / "kafka" / "data",
            lambda: start_kafka(tmp_path / "kafka", zookeeper=f"{zookeeper}/kafka"),
        )
        ottla = story(
            f"{zookeeper}/ottla",
            tmp_path / "ottla",
            lambda: start_broker(
                tmp_path, zookeeper_connect=f"{zookeeper}/ottla", log_dirs=tmp_path / "ottla"
            ),
            served,
        )
    assert kafka == Seen(has_its_id=False, has_its_bytes=True, refuses=True)
    assert ottla == Seen(has_its_id=True, has_its_bytes=True, refuses=False)
