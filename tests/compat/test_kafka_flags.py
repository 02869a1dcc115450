"""Kafka's tools and `ottla` with the same command lines on one broker.

The flags of this version's tools are those of `tests/unit/cli/kafka_flags.txt`, by which a unit
test checks that Ottla knows each. Here the tool and Ottla do the same, and leave the same.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.testing.embedded import Broker
from tests.compat.kafka_flags import CLASSES, LIST, flags_of, listing
from tests.doubles.apache_kafka import java_command

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        super_users="User:ANONYMOUS",
    ) as started:
        yield started


def kafka(line: str, broker: Broker, text: str = "") -> str:
    """Runs Kafka's own tool; returns what it printed."""
    tool, *words = shlex.split(line)
    server = ["--bootstrap-server", broker.bootstrap]
    command = java_command(CLASSES[tool], *server, *words, log_level="WARN")
    return _output(command, text, {})


def ours(line: str, broker: Broker, text: str = "") -> str:
    """Runs `ottla` with the same line; returns what it printed."""
    command = [sys.executable, "-m", "ottla.cli.main", *shlex.split(line)]
    return _output(command, text, {"OTTLA_BOOTSTRAP": broker.bootstrap})


def _output(command: list[str], text: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=text,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_flags_of_the_tools_are_listed() -> None:
    assert LIST.read_text("utf-8") == listing({tool: flags_of(tool) for tool in CLASSES})


def _topic(broker: Broker, name: str) -> dict[str, object]:
    [found] = json.loads(ours(f"topics describe {name} --json", broker))
    return {
        "settings": found["settings"],
        "partitions": [(row["partition"], row["replicas"]) for row in found["partitions"]],
    }


def test_topics_and_their_settings(broker: Broker) -> None:
    lines = [
        "kafka-topics --create --topic {0} --partitions 2 --config retention.ms=5000",
        "kafka-topics --create --topic {0} --if-not-exists",
        "kafka-topics --alter --topic {0} --partitions 3",
        "kafka-configs --alter --topic {0} --add-config cleanup.policy=[compact,delete]",
        "kafka-configs --alter --entity-type topics --entity-name {0} "
        "--add-config segment.ms=60000 --delete-config retention.ms",
    ]
    for line in lines:
        kafka(line.format("theirs"), broker)
        ours(line.format("ours"), broker)
    assert _topic(broker, "theirs") == _topic(broker, "ours")
    assert "segment.ms" in str(_topic(broker, "ours"))
    for name, run in (("ours", kafka), ("theirs", ours)):  # each deletes what the other made
        run(f"kafka-topics --delete --topic {name}", broker)
    assert ours("topics list --json", broker).strip() == "[]"


def test_records_groups_and_offsets(broker: Broker) -> None:
    ours("kafka-topics --create --topic records --partitions 1", broker)
    produce = "kafka-console-producer --topic records --property parse.key=true "
    produce += "--property key.separator=: --compression-codec zstd"
    kafka(produce, broker, "a:1\n")
    ours(produce, broker, "b:2\n")
    read = "kafka-console-consumer --topic records --from-beginning --max-messages 2 --group {0} "
    read += "--property print.key=true --property key.separator=-"
    assert kafka(read.format("theirs"), broker) == ours(read.format("ours"), broker) == "a-1\nb-2\n"
    reset = "kafka-consumer-groups --reset-offsets --group {0} --topic records --shift-by -1 "
    reset += "--execute"
    kafka(reset.format("theirs"), broker)
    ours(reset.format("ours"), broker)
    for group in ("theirs", "ours"):
        line = f"kafka-consumer-groups --describe --group {group}"
        [row] = json.loads(ours(f"{line} --json", broker))["partitions"]
        assert (row["committed"], row["end"], row["lag"]) == (1, 2, 1)
        assert re.search(r"records\s+0\s+1\s+2\s+1\b", kafka(line, broker))
    ours("kafka-get-offsets --topic records --time latest", broker)
    line = "kafka-consumer-groups --delete --group {0}"
    kafka(line.format("ours"), broker)
    ours(line.format("theirs"), broker)
    assert "ours" not in ours("groups list", broker)


def test_acls(broker: Broker) -> None:
    lines = [
        "kafka-acls --add --allow-principal User:{0} --producer --topic t --idempotent",
        "kafka-acls --add --allow-principal User:{0} --consumer --topic t --group g",
        "kafka-acls --add --deny-principal User:{0} --operation DescribeConfigs --topic p "
        "--resource-pattern-type prefixed",
        "kafka-acls --remove --allow-principal User:{0} --operation Create --topic t --force",
    ]
    for line in lines:
        kafka(line.format("x"), broker)
        ours(line.format("y"), broker)
    found = [
        sorted(map(str, json.loads(ours(f"acls --list --principal User:{name} --json", broker))))
        for name in "xy"
    ]
    assert len(found[0]) == 6
    assert found[0] == [each.replace("User:y", "User:x") for each in found[1]]


def test_quotas(broker: Broker) -> None:
    line = "kafka-configs --alter --user {0} --client c --add-config producer_byte_rate=1024"
    kafka(line.format("x"), broker)
    ours(line.format("y"), broker)
    rows = json.loads(ours("quotas describe --json", broker))
    assert {row.pop("user") for row in rows} == {"x", "y"}
    assert rows[0] == rows[1]
