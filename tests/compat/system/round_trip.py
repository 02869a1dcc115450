"""Trogdor's round-trip workload: writes records, waits until each came back, and again."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from pathlib import Path

from tests.compat.system.cluster import CLIENTS, Cluster
from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY, java_command
from tests.doubles.kafka_clients import JsonLines
from tests.doubles.maven import ALONE, fetch_jars

RECORDS, RECORDS_PER_S = 1_500, 50
# With two brokers up no topic of three replicas can be created, so the topics are there before.
TOPICS = 8
END_S = 240.0


def trogdor_library() -> Path:
    """The directory of the one jar; what it needs is with Kafka's."""
    library = REPOSITORY / ".cache" / f"trogdor-{KAFKA_VERSION}" / "lib"
    if not library.exists():
        fetch_jars(library, [("org.apache.kafka", "trogdor", KAFKA_VERSION, ALONE)])
    return library


class RoundTrips:
    """One workload after the other, each on a topic of its own."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster, self._directory = cluster, directory
        self._library = trogdor_library()
        self.done = 0
        self.failures: list[str] = []
        self._number = 0
        for number in range(1, TOPICS + 1):
            cluster.create_topic(f"round-trip-{number}", 1)
        self._process = self._start()

    def _start(self) -> JsonLines:
        self._number += 1
        topic = f"round-trip-{self._number}"
        patience = {"request.timeout.ms": "5000", "metadata.max.age.ms": "5000"}
        # The defaults of the workload (64 KiB, 1 s) give up before a new leader is elected.
        producer = {"buffer.memory": "33554432", "max.block.ms": "600000", **patience}
        spec = {
            "class": "org.apache.kafka.trogdor.workload.RoundTripWorkloadSpec",
            "startMs": 0,
            "durationMs": 3_600_000,
            "clientNode": "node0",
            "bootstrapServers": self._cluster.bootstrap,
            "producerConf": {"delivery.timeout.ms": "600000", **producer},
            "consumerConf": patience,
            "targetMessagesPerSec": RECORDS_PER_S,
            "maxMessages": RECORDS,
            "activeTopics": {topic: {"numPartitions": 1, "replicationFactor": 3}},
        }
        nodes = {"node0": {"hostname": "127.0.0.1", "trogdor.agent.port": 8888}}
        platform = {"platform": "org.apache.kafka.trogdor.basic.BasicPlatform", "nodes": nodes}
        configuration = self._directory / "trogdor.json"
        configuration.write_text(json.dumps(platform))
        task = self._directory / f"round-trip-{self._number}.json"
        task.write_text(json.dumps(spec))
        agent = ("-n", "node0", "-c", str(configuration), "--exec", str(task))
        command = java_command("org.apache.kafka.trogdor.agent.Agent", *agent)
        place = command.index("-cp") + 1
        command[place] = f"{self._library}/*:{command[place]}"
        on_host = [*self._cluster.hosts.on(CLIENTS), *command]
        return JsonLines(on_host, self._directory / f"{topic}.log")

    def is_working(self) -> bool:
        return True

    def look(self) -> None:
        """Begins the next workload when one has ended."""
        if self._process.process.poll() is not None and self._number < TOPICS:
            self._count()
            self._process = self._start()

    def _count(self) -> None:
        if self._process.process.returncode == 0:
            self.done += RECORDS
        else:
            waiting = re.findall(r"consumer waiting .*", self._process.output())
            self.failures.append((waiting or [self._process.output()])[-1][-600:])

    def stop(self) -> None:
        """Waits for the end of the last one; one that does not end has failed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.process.wait(END_S)
        self._count()
        self._process.kill()

    def check(self) -> dict[str, int]:
        return {"round trips": self.done, "failed workloads": len(self.failures)}

    def kill(self) -> None:
        self._process.kill()
