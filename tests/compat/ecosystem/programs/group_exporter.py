"""prometheus-kafka-consumer-group-exporter: the lag of groups as metrics for Prometheus."""

from __future__ import annotations

import subprocess
import urllib.request

from ottla.cli.zookeeper_server import free_port
from tests.compat.ecosystem.clients import create_topics, produce
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.environments import environment
from tests.compat.ecosystem.model import Program, Script
from tests.compat.ecosystem.programs.burrow import commit_offset
from tests.doubles.eventually import eventually

NAME, VERSION, CLIENT = "prometheus-kafka-consumer-group-exporter", "0.5.5", "2.0.2"
STEP_SECONDS = 180.0


def _run(script: Script) -> None:
    python = environment(
        "ecosystem-group-exporter", f"{NAME}=={VERSION}", f"kafka-python=={CLIENT}"
    )
    with script.start_cluster() as cluster:
        create_topics(cluster.bootstrap, ["orders"])
        produce(cluster.bootstrap, "orders", [str(number) for number in range(100)])
        commit_offset(cluster, 60)
        port = free_port()
        command = [
            *(str(python.with_name(NAME)), "-b", cluster.bootstrap, "-p", str(port), "-s"),
            *("--topic-interval", "1", "--high-water-interval", "1", "--low-water-interval", "1"),
        ]
        with (script.directory / "exporter.log").open("wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=sink)
        try:
            _steps(script, cluster, f"http://127.0.0.1:{port}/metrics")
        finally:
            process.kill()
            process.wait()


def _steps(script: Script, cluster: Cluster, url: str) -> None:
    with script.check("the end offset of each partition"):
        _wait(url, "kafka_topic_highwater", 100)
    with script.check("the offset and the lag of a group, from the records of __consumer_offsets"):
        _wait(url, "kafka_consumer_group_offset", 60)
        _wait(url, "kafka_consumer_group_lag", 40)
    with script.check("the lag after a further commit"):
        commit_offset(cluster, 100)
        _wait(url, "kafka_consumer_group_lag", 0)


def _wait(url: str, metric: str, value: int) -> None:
    """Until the metric of the topic has the value."""
    last: list[list[str]] = [[]]

    def has_it() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                lines = response.read().decode().splitlines()
        except OSError as error:
            last[0] = [str(error)]
            return False
        last[0] = [line for line in lines if line.startswith(f"{metric}{{") and "orders" in line]
        return any(float(line.rsplit(" ", 1)[1]) == value for line in last[0])

    eventually(has_it, lambda: f"{metric}: {last[0]}", seconds=STEP_SECONDS, pause_seconds=0.5)


PROGRAM = Program(
    "group_exporter",
    NAME,
    VERSION,
    (),
    _run,
    (f"On kafka-python {CLIENT}. An exporter in the manner of kafka_exporter and kminion.",),
)
