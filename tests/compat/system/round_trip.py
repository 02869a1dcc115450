"""Trogdor's round-trip workload: writes records, waits until each came back, and again."""

from __future__ import annotations

import json
from pathlib import Path

from tests.compat.system.cluster import CLIENTS, Cluster
from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY, kafka_library
from tests.doubles.kafka_clients import JsonLines, java_command
from tests.doubles.maven import ALONE, fetch_jars

RECORDS, RECORDS_PER_S = 1_500, 50
PARTITIONS = 3
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
        self._process = self._start()

    def _start(self) -> JsonLines:
        self._number += 1
        topic = f"round-trip-{self._number}"
        patience = {"request.timeout.ms": "5000", "metadata.max.age.ms": "5000"}
        spec = {
            "class": "org.apache.kafka.trogdor.workload.RoundTripWorkloadSpec",
            "startMs": 0,
            "durationMs": 3_600_000,
            "clientNode": "node0",
            "bootstrapServers": self._cluster.bootstrap,
            "producerConf": {"delivery.timeout.ms": "600000", **patience},
            "consumerConf": patience,
            "targetMessagesPerSec": RECORDS_PER_S,
            "maxMessages": RECORDS,
            "activeTopics": {topic: {"numPartitions": PARTITIONS, "replicationFactor": 3}},
        }
        nodes = {"node0": {"hostname": "127.0.0.1", "trogdor.agent.port": 8888}}
        platform = {"platform": "org.apache.kafka.trogdor.basic.BasicPlatform", "nodes": nodes}
        configuration = self._directory / "trogdor.json"
        configuration.write_text(json.dumps(platform))
        task = self._directory / f"round-trip-{self._number}.json"
        task.write_text(json.dumps(spec))
        command = java_command(
            kafka_library(),
            "org.apache.kafka.trogdor.agent.Agent",
            *("-n", "node0", "-c", str(configuration), "--exec", str(task)),
        )
        place = command.index("-cp") + 1
        command[place] = f"{self._library}/*:{command[place]}"
        on_host = [*self._cluster.hosts.on(CLIENTS), *command]
        return JsonLines(on_host, self._directory / f"{topic}.log")

    def is_working(self) -> bool:
        return True

    def look(self) -> None:
        """Begins the next workload when one has ended."""
        if self._process.process.poll() is not None:
            self._count()
            self._process = self._start()

    def _count(self) -> None:
        if self._process.process.returncode == 0:
            self.done += RECORDS
        else:
            self.failures.append(self._process.output()[-600:])

    def stop(self) -> None:
        """Waits for the end of the last one."""
        self._process.process.wait(END_S)
        self._count()

    def check(self) -> dict[str, int]:
        return {"round trips": self.done, "failed workloads": len(self.failures)}

    def kill(self) -> None:
        self._process.kill()
