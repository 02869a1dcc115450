"""Apache Kafka 3.9.1 in KRaft mode: the only mode in which it serves groups of the new protocol.

    with start_kraft_kafka(tmp_path, num_partitions=3) as kafka:
        ...  # kafka.bootstrap

A setting is Kafka's name with `_` for `.`, as in `tests.doubles.apache_kafka`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.cli.zookeeper_server import free_port
from tests.doubles.apache_kafka import ApacheKafka, JavaProcess, java_command, run_tool

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
_ATTEMPTS = 3  # between choosing the controller's port and binding it, another process may take it


def _properties(directory: Path, controller_port: int, settings: dict[str, object]) -> str:
    values: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 0,
        "controller.quorum.voters": f"0@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": directory / "data",
        "num.network.threads": 1,
        "num.io.threads": 2,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
    }
    for name, value in settings.items():
        values[name.replace("_", ".")] = str(value).lower() if isinstance(value, bool) else value
    return "".join(f"{name}={value}\n" for name, value in values.items())


@contextmanager
def start_kraft_kafka(directory: Path, **settings: object) -> Iterator[ApacheKafka]:
    """A broker that is its own controller, on a free port; always stopped."""
    directory.mkdir(parents=True, exist_ok=True)
    process, port = _launch(directory, settings)
    try:
        yield ApacheKafka(process, f"127.0.0.1:{port}", "", [directory / "data"])
    finally:
        process.stop()


def _launch(directory: Path, settings: dict[str, object]) -> tuple[JavaProcess, str]:
    properties = directory / "kraft.properties"
    for attempt in range(_ATTEMPTS):
        controller_port = free_port()
        properties.write_text(_properties(directory, controller_port, settings))
        run_tool(
            "kafka.tools.StorageTool",
            *("format", "--ignore-formatted", "-t", CLUSTER_ID, "-c", str(properties)),
        )
        process = JavaProcess(java_command("kafka.Kafka", str(properties)), directory / "kafka.log")
        try:
            process.wait_for(r"\[KafkaRaftServer nodeId=0\] Kafka Server started")
        except AssertionError:
            process.kill()
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        ports = re.findall(r"Awaiting socket connections on 127\.0\.0\.1:(\d+)", process.output())
        return process, next(port for port in ports if int(port) != controller_port)
    raise AssertionError("unreachable")
