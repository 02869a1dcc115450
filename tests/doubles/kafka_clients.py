"""The Java clients of Kafka as processes: verifiable consumer and producer, 3.9 and the newest 4.x.

The jars of 3.9.1 are those of the oracle (`tests.doubles.apache_kafka`). Those of 4.x live in
`.cache/kafka-clients-VERSION/lib`; Maven fetches them when they are not there: the clients, the two
tools and what these need, and nothing of a broker. Without Java or Maven the test that asked is
skipped and says what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import apache_kafka
from tests.doubles.maven import ALONE, fetch_jars

OLD = apache_kafka.KAFKA_VERSION
NEW = "4.3.1"  # the newest with tools when this was written
DEADLINE_S = 120.0

_JVM_OPTIONS = (
    *("-Xmx96m", "-Xms16m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
# With the newest versions that these tools take.
_DEPENDENCIES = (
    ("org.apache.kafka", "kafka-clients", NEW, ""),
    ("org.apache.kafka", "kafka-tools", NEW, ALONE),
    ("org.apache.kafka", "kafka-server-common", NEW, ALONE),
    ("net.sourceforge.argparse4j", "argparse4j", "0.7.0", ""),
    ("com.fasterxml.jackson.core", "jackson-databind", "2.16.2", ""),
    ("org.slf4j", "slf4j-simple", "1.7.36", ""),
)


def client_library(version: str) -> Path:
    """The directory of the jars of this version's clients and tools."""
    if version == OLD:
        return apache_kafka.kafka_library()
    if shutil.which("java") is None:
        pytest.skip("the Java clients need Java: there is no `java` on the PATH")
    library = apache_kafka.REPOSITORY / ".cache" / f"kafka-clients-{version}" / "lib"
    if not library.exists():
        fetch_jars(library, _DEPENDENCIES)
    return library


def java_command(library: Path, main_class: str, *arguments: str) -> list[str]:
    """The command line that runs a class of the jars; warnings go to standard error."""
    return ["java", *_JVM_OPTIONS, "-cp", f"{library}{os.sep}*", main_class, *arguments]


class JsonLines:
    """A process that prints one JSON object a line, to a file; other lines are a log."""

    def __init__(self, command: list[str], output: Path) -> None:
        self._output = output
        self._position = 0
        with output.open("wb") as sink:
            self.process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)

    def new_objects(self) -> Iterator[dict[str, Any]]:
        """What was printed since the last call."""
        with self._output.open("rb") as source:
            source.seek(self._position)
            whole, newline, _ = source.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                yield json.loads(line)

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def leave(self) -> None:
        """SIGTERM: a member says good-bye."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """kill -9: a member says nothing."""
        self.process.kill()
        self.process.wait()


class VerifiableConsumer(JsonLines):
    """A member of a group that commits what it has read, batch by batch.

    `strategy` is the name of a client's assignor (`Range`), or of one of the broker's (`range`):
    then the member speaks the newer group protocol, and the broker has the session timeout.
    """

    def __init__(
        self,
        library: Path,
        bootstrap: str,
        group: str,
        topic: str,
        output: Path,
        *,
        strategy: str,
        session_timeout_ms: int,
        instance_id: str | None = None,
    ) -> None:
        protocol: tuple[str, ...] = (
            *("--session-timeout", str(session_timeout_ms), "--assignment-strategy"),
            f"org.apache.kafka.clients.consumer.{strategy}Assignor",
        )
        if strategy.islower():
            protocol = ("--group-protocol", "consumer", "--group-remote-assignor", strategy)
        instance = ("--group-instance-id", instance_id) if instance_id is not None else ()
        super().__init__(
            java_command(
                library,
                "org.apache.kafka.tools.VerifiableConsumer",
                *("--bootstrap-server", bootstrap, "--group-id", group, "--topic", topic),
                *("--verbose", *protocol, *instance),
            ),
            output,
        )
        self.instance_id = instance_id
        self.partitions: set[int] = set()
        self.values: list[str] = []
        self.assignments = 0

    def look(self) -> None:
        """Take in what it has printed."""
        for event in self.new_objects():
            if event["name"] == "partitions_assigned":
                self.partitions |= {row["partition"] for row in event["partitions"]}
                # A cooperative member also gets an event without partitions, after the others.
                self.assignments += bool(event["partitions"])
            elif event["name"] == "partitions_revoked":
                self.partitions -= {row["partition"] for row in event["partitions"]}
            elif event["name"] == "record_data":
                self.values.append(event["value"])


def verifiable_produce(
    library: Path, bootstrap: str, topic: str, output: Path, *, prefix: int, count: int
) -> set[str]:
    """Writes numbered values, all in-sync replicas asked; the values, all of them acknowledged."""
    producer = JsonLines(
        java_command(
            library,
            "org.apache.kafka.tools.VerifiableProducer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--acks", "-1"),
            *("--max-messages", str(count), "--value-prefix", str(prefix)),
        ),
        output,
    )
    try:
        producer.process.wait(DEADLINE_S)
    finally:
        producer.kill()
    events = list(producer.new_objects())
    sent = {event["value"] for event in events if event["name"] == "producer_send_success"}
    assert len(sent) == count, producer.output()[-4000:]
    return sent
