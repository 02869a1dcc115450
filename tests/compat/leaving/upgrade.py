"""The last step of both ways: from Kafka 3.9 with KRaft to Kafka 4.3."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from tests.compat.leaving.nodes import documented
from tests.doubles.apache_kafka import JVM_OPTIONS, JavaProcess
from tests.doubles.kraft_kafka import kraft_library

MIGRATED = "Completed migration of metadata from ZooKeeper to KRaft"
# What Kafka must not log about records that Ottla has written.
COMPLAINTS = ("Size of assignment epochs", "Unknown record type", "Failed to deserialize")


def finalize_features(bootstrap: str) -> None:
    """Finalize the features of Kafka 4.3, as the page says."""
    documented("kafka-features.sh --bootstrap-server ottla-1:9092 upgrade --release-version 4.3")
    command = ["java", *JVM_OPTIONS, "-cp", f"{kraft_library()}/*"]
    command += ["org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", bootstrap]
    done = subprocess.run(
        [*command, "upgrade", "--release-version", "4.3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def assert_no_complaints(brokers: Iterable[JavaProcess]) -> None:
    lines = [line for each in brokers for line in each.output().splitlines()]
    found = [line for line in lines if any(each in line for each in COMPLAINTS)]
    assert not found, found[:10]
