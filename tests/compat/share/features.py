"""The rows of docs/compatibility.md on share groups: clients on Ottla and on Apache Kafka 4.3.1.

    python -m tests.compat.share.features

runs each on both and writes `kept.json`, from which `make compat` makes the rows. Exit code 1 if a
feature fails on Ottla.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.share import librdkafka, work
from tests.doubles.broker_process import start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.kafka_clients import NEW
from tests.doubles.kraft_kafka import VERSION, kraft_library, start_kraft
from tests.doubles.share_commands import play

KEPT = Path(__file__).with_name("kept.json")
COMMAND_SECONDS = 120

JAVA = f"Java client {NEW}, `KafkaShareConsumer`"
LIBRDKAFKA = f"confluent-kafka {confluent_kafka.__version__}, `ShareConsumer`"
TOOL = f"Kafka's tools {VERSION}, `kafka-share-groups`"
OTTLA = "`ottla share-groups`, `ottla consume --share-group`"

DELIVERIES = "accept, release and reject; delivery counts; the limit of deliveries"


class Feature(NamedTuple):
    """One row. `run` gets the address of a new broker and an empty directory."""

    text: str
    client: str
    run: Callable[[str, Path], None]


def java_deliveries(bootstrap: str, directory: Path) -> None:
    create(bootstrap, "java")
    classes = work.compile_work(directory)
    arguments = (bootstrap, "java", "java-workers", classes)
    found = work.consume(*arguments, directory / "java.log", work.values())
    assert found == work.expected(), found


def librdkafka_deliveries(bootstrap: str, directory: Path) -> None:
    found = librdkafka.consume(bootstrap, "librdkafka", "librdkafka-workers", work.values())
    assert found == work.expected(), found


def librdkafka_implicit(bootstrap: str, directory: Path) -> None:
    """What a poll returned is accepted by the next one, or when the consumer is closed."""
    create(bootstrap, "implicit")
    librdkafka.begin_with_first_record(bootstrap, "implicit", "implicit-workers")
    values = [f"value-{number}" for number in range(20)]
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce("implicit", value)
    assert producer.flush(60) == 0
    settings = {"bootstrap.servers": bootstrap, "group.id": "implicit-workers"}
    found: list[str] = []
    consumer = confluent_kafka.ShareConsumer(settings)
    consumer.subscribe(["implicit"])

    def poll() -> bool:
        for message in consumer.poll(timeout=1.0):
            assert message.error() is None, message.error()
            assert message.delivery_count() == 1, message.delivery_count()
            found.append(message.value().decode())
        return len(found) >= len(values)

    try:
        eventually(poll, lambda: found, seconds=work.DEADLINE_S)
    finally:
        consumer.close()
    assert sorted(found) == sorted(values)


def tool(bootstrap: str, directory: Path) -> None:
    """The group of `librdkafka_implicit`, which is empty now."""
    group = "implicit-workers"
    assert group in share_groups(bootstrap, "--list")
    described = share_groups(bootstrap, "--describe", "--group", group)
    assert "implicit" in described, described
    assert "START-OFFSET" in described, described
    reset = ("--reset-offsets", "--group", group, "--topic", "implicit", "--to-earliest")
    share_groups(bootstrap, *reset, "--execute")
    row = share_groups(bootstrap, "--describe", "--group", group).split(group)[1].split()
    assert row[:3] == ["implicit", "0", "0"], row
    share_groups(bootstrap, "--delete-offsets", "--group", group, "--topic", "implicit")
    share_groups(bootstrap, "--delete", "--group", group)
    assert group not in share_groups(bootstrap, "--list")


def share_groups(bootstrap: str, *arguments: str) -> str:
    """What `kafka-share-groups` prints; fails where it does."""
    java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]
    name = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
    command = [*java, f"{kraft_library()}/*", name, "--bootstrap-server", bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    assert done.returncode == 0, done
    assert "Error" not in done.stdout, done.stdout
    return done.stdout


def ottla(bootstrap: str, directory: Path) -> None:
    play(CommandLine(bootstrap))


# The first one lists all groups, so it wants to be alone.
FEATURES = (
    Feature("read by command; offsets shown and reset; groups deleted", OTTLA, ottla),
    Feature(DELIVERIES, JAVA, java_deliveries),
    Feature(DELIVERIES, LIBRDKAFKA, librdkafka_deliveries),
    Feature("implicit acknowledgement", LIBRDKAFKA, librdkafka_implicit),
    Feature("groups listed, described, reset to the beginning, deleted", TOOL, tool),
)


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)


def run_all(name: str, bootstrap: str, directory: Path) -> list[bool]:
    """Whether each feature works."""
    found = []
    for number, feature in enumerate(FEATURES):
        place = directory / f"{name}-{number}"
        place.mkdir()
        try:
            feature.run(bootstrap, place)
        except Exception:
            traceback.print_exc()
            found.append(False)
        else:
            found.append(True)
        state = "works" if found[-1] else "fails"
        print(f"{name}: {feature.client}: {feature.text}: {state}", flush=True)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        with start_broker(directory / "ottla", broker_id=0) as broker:
            ours = run_all("Ottla", broker.bootstrap, directory)
        with start_kraft(directory / "kafka") as bootstrap:
            theirs = run_all(f"Apache Kafka {VERSION}", bootstrap, directory)
    rows = [
        {"text": feature.text, "client": feature.client, "ottla": mine, "kafka": other}
        for feature, mine, other in zip(FEATURES, ours, theirs, strict=True)
    ]
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    kept = {"day": day, "kafka": VERSION, "rows": rows}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(ours) else 1)


if __name__ == "__main__":
    main()
