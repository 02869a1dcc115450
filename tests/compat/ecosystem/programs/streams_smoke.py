"""Kafka Streams: the smoke test of Kafka's system tests, while brokers and clients are killed."""

from __future__ import annotations

from pathlib import Path

from tests.compat.ecosystem.clients import create_topics
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.jars import java, library
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.apache_kafka import JavaProcess, kafka_library
from tests.doubles.maven import ALONE

VERSION = "3.9.1"
BROKERS = 3
# The driver writes for half a minute and verifies until the output no longer changes.
DRIVER_SECONDS = 600.0
_TOPICS = (
    *("data", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum", "sws-raw"),
    *("sws-suppressed", "cnt", "avg", "tagg", "fk"),
)
_TESTS = f"<classifier>test</classifier>{ALONE}"
_JARS = (
    ("org.apache.kafka", "kafka-streams", VERSION, ALONE),
    ("org.apache.kafka", "kafka-streams", VERSION, _TESTS),
    ("org.apache.kafka", "kafka-clients", VERSION, _TESTS),
    ("org.rocksdb", "rocksdbjni", "7.9.2", ""),
    ("org.junit.jupiter", "junit-jupiter-api", "5.10.2", ""),
    ("org.hamcrest", "hamcrest", "2.2", ""),
)


def _run(script: Script) -> None:
    places = [kafka_library(VERSION), library(f"kafka-streams-tests-{VERSION}", _JARS)]
    for guarantee in ("at_least_once", "exactly_once_v2"):
        with (
            script.check(f"{guarantee}: all records processed while brokers and a client restart"),
            script.start_cluster(BROKERS) as cluster,
        ):
            output = _smoke(script, cluster, guarantee, places)
            assert "ALL-RECORDS-DELIVERED" in output, output[-3000:]
            assert "SUCCESS" in output, output[-3000:]
            if guarantee == "exactly_once_v2":
                assert "PROCESSED-MORE-THAN-GENERATED" not in output, output[-3000:]


def _smoke(script: Script, cluster: Cluster, guarantee: str, places: list[Path]) -> str:
    """What the driver printed."""
    create_topics(cluster.bootstrap, _TOPICS, partitions=5)
    directory = script.directory / guarantee
    directory.mkdir()

    def start(name: str, command: str) -> JavaProcess:
        properties = directory / f"{name}.properties"
        properties.write_text(
            f"bootstrap.servers={cluster.bootstrap}\nprocessing.guarantee={guarantee}\n"
            f"state.dir={directory / name}\nnum.stream.threads=1\nsession.timeout.ms=30000\n"
        )
        main_class = "org.apache.kafka.streams.tests.StreamsSmokeTest"
        line = java(places, directory, main_class, str(properties), command, log_level="WARN")
        return JavaProcess(line, directory / f"{name}.log")

    processes = [start("client-1", "process"), start("client-2", "process")]
    try:
        for each in processes:
            each.wait_for("SMOKE-TEST-CLIENT-STARTED", 180)
        driver = start("driver", "run")
        processes.append(driver)
        driver.wait_for("records produced", 180)
        cluster.nodes[0].stop()
        cluster.nodes[0].start()
        cluster.nodes[1].kill()
        cluster.nodes[1].start()
        processes[0].kill()
        processes.append(start("client-1-again", "process"))
        cluster.nodes[2].kill()
        cluster.nodes[2].start()
        driver.process.wait(DRIVER_SECONDS)
        return driver.output()
    finally:
        for each in processes:
            each.kill()


PROGRAM = Program(
    "streams_smoke",
    "Kafka Streams, smoke test of the system tests",
    VERSION,
    ("java", "mvn"),
    _run,
    (
        "Three brokers. While the driver writes, one broker restarts, two are killed, and one of"
        " two clients is killed. A broker of Ottla starts at once after a kill; one of Kafka has to"
        " wait until its last session has ended. Run it on a machine without other load.",
    ),
)
