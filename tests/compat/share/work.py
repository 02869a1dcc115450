"""Kafka's own share consumer on a broker: what it does with each record, and what it is given.

`ShareWork.java` is compiled with the newest clients of `tests.doubles.kafka_clients`.
"""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Producer

from tests.doubles.kafka_clients import NEW, JsonLines, client_library, java_command

SOURCE = Path(__file__).with_name("ShareWork.java")
DEADLINE_S = 90.0
KINDS = ("accept", "release", "reject", "exhaust", "accept")
COUNT = 20  # records, KINDS again and again

# What a record of each kind goes through: (delivery count, acknowledgement).
EXPECTED = {
    "accept": [(1, "accept")],
    "release": [(1, "release"), (2, "accept")],
    "reject": [(1, "reject")],
    "exhaust": [(count, "release") for count in range(1, 6)],
}

Deliveries = dict[str, list[tuple[int, str]]]


def compile_work(directory: Path) -> Path:
    """Compiles the program; returns the directory of its class."""
    library = client_library(NEW)
    classes = directory / "classes"
    command = ["javac", "-cp", f"{library}/*", "-d", str(classes), str(SOURCE)]
    subprocess.run(command, check=True)
    return classes


def consume(
    bootstrap: str, topic: str, group: str, classes: Path, output: Path, values: list[str]
) -> Deliveries:
    """Writes `values` while a share consumer runs, until it is done with all of them.

    A group begins at the end of the log, so records come first that are not part of the result.
    """
    library = client_library(NEW)
    command = java_command(
        library, "ShareWork", *(bootstrap, topic, group, str(len(values)), str(int(DEADLINE_S)))
    )
    command[command.index("-cp") + 1] = f"{classes}:{library}/*"
    process = JsonLines(command, output)
    producer = Producer({"bootstrap.servers": bootstrap})
    events = []
    deadline = time.monotonic() + DEADLINE_S
    has_begun = False
    try:
        while process.process.poll() is None and time.monotonic() < deadline:
            events += process.new_objects()
            if not has_begun:
                has_begun = any(event["name"] == "record" for event in events)
                for value in values if has_begun else ["warm"]:
                    producer.produce(topic, value)
                producer.flush()
            time.sleep(0.2)
    finally:
        process.kill()
    events += process.new_objects()
    assert events, process.output()
    assert events[-1] == {"name": "done", "finished": len(values)}, process.output()[-4000:]
    assert all(event["error"] == "" for event in events if event["name"] == "commit")
    found: Deliveries = defaultdict(list)
    for event in events:
        if event["name"] == "record" and event["value"] != "warm":
            found[event["value"]].append((event["count"], event["type"]))
    return dict(found)


def values() -> list[str]:
    return [f"{KINDS[number % len(KINDS)]}-{number}" for number in range(COUNT)]


def expected() -> Deliveries:
    return {value: EXPECTED[value.partition("-")[0]] for value in values()}
