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
# What Kafka's tools log on standard output, and the exception behind it.
_LOG_LINES = re.compile(r"^(?:\[\d{4}-.*|org\.apache\.kafka\..*Exception.*)\n", re.MULTILINE)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        super_users="User:ANONYMOUS",
    ) as started:
        yield started


def kafka(line: str, broker: Broker, text: str = "") -> str:
    """Runs Kafka's own tool; returns what it printed, without its log lines."""
    tool, *words = shlex.split(line)
    server = ["--bootstrap-server", broker.bootstrap]
    if tool == "kafka-consumer-groups":  # its own 5 s are short for a JVM on a busy machine
        words += ["--timeout", "60000"]
    command = java_command(CLASSES[tool], *server, *words, log_level="WARN")
    return re.sub(
        r"^(?:\[\d{4}-.*|.*TimeoutException)\n", "", _output(command, text, {}), flags=re.M
    )


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


_REGEXES = ("rx.one", "rx[.]one", "rx.*two|rx-three", "rx.one, rx-three", "'rx.*'")


def test_topics_by_regular_expression(broker: Broker) -> None:
    names = ("rx.one", "rx-one", "rx.two", "rx-three")
    for name in names:
        ours(f"topics create {name} --partitions 3", broker)
    for regex in _REGEXES:
        line = f"kafka-topics --list --topic {shlex.quote(regex)}"
        found = kafka(line, broker).split()
        assert found == [row["name"] for row in json.loads(ours(f"{line} --json", broker))]
        line = f"kafka-topics --describe --topic {shlex.quote(regex)}"
        described = set(re.findall(r"^Topic: (\S+)", kafka(line, broker), re.MULTILINE))
        assert described == set(found) == _names(ours(f"{line} --json", broker))
    for filters in ("--topic 'rx.one|rx.two' --partitions 0,2", "--topic-partitions 'rx.*:1-2,:0'"):
        line = f"kafka-get-offsets {filters}"
        theirs = {tuple(row.split(":")[:2]) for row in kafka(line, broker).split()}
        rows = json.loads(ours(f"{line} --json", broker))
        assert theirs == {(row["topic"], str(row["partition"])) for row in rows}
    kafka("kafka-topics --alter --topic 'rx.t.*' --partitions 4", broker)
    ours("kafka-topics --alter --topic 'rx.one' --partitions 4", broker)
    assert {_partitions(broker, name) for name in names} == {4}
    missing = "kafka-topics --{0} --topic 'no.*'"
    for action in ("describe", "delete"):
        for run in (kafka, ours):
            with pytest.raises(AssertionError):
                run(missing.format(action), broker)
            run(f"{missing.format(action)} --if-exists", broker)
    kafka("kafka-topics --delete --topic 'rx.t.*'", broker)
    ours("kafka-topics --delete --topic rx.one", broker)
    assert ours("topics list --regex 'rx.*' --json", broker).strip() == "[]"


def _names(output: str) -> set[str]:
    return {row["name"] for row in json.loads(output)}


def _partitions(broker: Broker, name: str) -> int:
    [row] = json.loads(ours(f"topics describe {name} --json", broker))
    return len(row["partitions"])


def test_a_new_group_with_a_timeout_begins_at_the_end(broker: Broker) -> None:
    """And the next time with the records since then: its position was committed."""
    ours("topics create timed --partitions 1", broker)
    ours("produce timed", broker, "old\n")
    read = "kafka-console-consumer --topic timed --group {0} --timeout-ms {1}"
    for run, group in ((kafka, "timed-by-kafka"), (ours, "timed-by-ottla")):
        # In Kafka the time until the member has joined counts.
        idle, busy = read.format(group, 15_000), f"{read.format(group, 60_000)} --max-messages 1"
        assert run(idle, broker) == ""
        ours("produce timed", broker, f"{group}\n")
        assert run(busy, broker) == f"{group}\n"
        # Only partitions without a committed offset begin elsewhere.
        assert run(f"{idle} --from-beginning", broker) == ""
        assert run(f"{idle} --consumer-property auto.offset.reset=earliest", broker) == ""
        new = busy.replace(group, f"{group}-new")
        assert run(f"{new} --from-beginning", broker) == "old\n"
        # A partition that is named is read without the group.
        line = "kafka-console-consumer --topic timed --partition 0"
        with pytest.raises(AssertionError, match=r"--?partition|group and partition"):
            run(f"{line} --group {group}", broker)
        assert run(f"{line} --timeout-ms 5000", broker) == ""
        assert run(f"{line} --timeout-ms 60000 --offset 0 --max-messages 1", broker) == "old\n"


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
    assert not {"ours", "theirs"} & {
        row["group"] for row in json.loads(ours("groups list --json", broker))
    }


_ACLS = [
    "--add --allow-principal User:{0} --producer --topic t --idempotent",
    "--add --allow-principal User:{0} --consumer --topic t --group g",
    "--add --deny-principal User:{0} --operation DescribeConfigs --topic p "
    "--resource-pattern-type prefixed",
    "--remove --allow-principal User:{0} --operation Create --topic t --force",
]
# Hosts belong to the principals of their permission, each to each of them.
_MIXED = "--topic mixed --allow-principal User:{0} --deny-principal User:{0}"
_ACLS_WITH_HOSTS = [
    f"--add {_MIXED} --allow-host 10.0.0.1 --allow-host 10.0.0.2 --deny-host 10.0.0.3",
    f"--add {_MIXED} --operation Read --operation Alter --deny-host 10.0.0.4",
    f"--add {_MIXED} --operation Write --allow-host 10.0.0.5",
    f"--add {_MIXED} --operation Delete",
    f"--remove {_MIXED} --allow-host 10.0.0.2 --deny-host 10.0.0.1 --force",
    f"--remove {_MIXED} --operation Alter --deny-host 10.0.0.4 --force",
    f"--remove {_MIXED} --operation Write --force",
    # Hosts of a permission without principals are ignored.
    "--add --allow-principal User:{0} --topic one --deny-host 10.0.0.6",
    "--add --deny-principal User:{0} --topic one --operation Read --allow-host 10.0.0.6",
    "--remove --deny-principal User:{0} --topic one --operation Read --allow-host 10.0.0.7 --force",
    "--add --deny-principal User:{0} --topic of-{0} --deny-host 10.0.0.8",
    "--remove --topic of-{0} --deny-host 10.0.0.9 --force",
]


@pytest.mark.parametrize(
    ("lines", "count"), [(_ACLS, 6), (_ACLS_WITH_HOSTS, 8)], ids=["roles", "hosts"]
)
def test_acls(broker: Broker, lines: list[str], count: int) -> None:
    for line in lines:
        kafka(f"kafka-acls {line.format('x')}", broker)
        ours(f"kafka-acls {line.format('y')}", broker)
        found = _acls(broker)
        assert found["x"] == found["y"], line
    assert len(found["x"]) == count
    for name in "xy":
        ours(f"acls remove --principal User:{name} --yes", broker)


def _acls(broker: Broker) -> dict[str, list[str]]:
    """What is kept for both principals, with one name."""
    return {
        name: sorted(
            str(row).replace(f"User:{name}", "User:x").replace(f"of-{name}", "of-x")
            for row in json.loads(ours(f"acls list --principal User:{name} --json", broker))
        )
        for name in "xy"
    }


def test_quotas(broker: Broker) -> None:
    line = "kafka-configs --alter --user {0} --client c --add-config producer_byte_rate=1024"
    kafka(line.format("x"), broker)
    ours(line.format("y"), broker)
    rows = json.loads(ours("quotas describe --json", broker))
    assert {row.pop("user") for row in rows} == {"x", "y"}
    assert rows[0] == rows[1]
