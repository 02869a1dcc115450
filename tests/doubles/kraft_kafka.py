"""Apache Kafka 4.3 in KRaft mode as an oracle: for share groups, which Kafka 3.9 does not have.

    with start_kraft(tmp_path) as bootstrap:
        ...

The jars live in `.cache/kafka-4.3.1/lib` of the repository; Maven fetches them once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.cli.zookeeper_server import free_port
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.doubles.apache_kafka import JVM_OPTIONS, REPOSITORY, START_DEADLINE_S, JavaProcess
from tests.doubles.eventually import eventually
from tests.doubles.maven import fetch_jars
from tests.doubles.wire import ConnectionClosed, Wire

VERSION = "4.3.1"
LIBRARY = REPOSITORY / ".cache" / f"kafka-{VERSION}" / "lib"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
_ARTIFACTS = ("kafka_2.13", "kafka-tools")
_SETTINGS: dict[str, object] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}


def kraft_library() -> Path:
    """The directory with the jars; skips the running test when they cannot be downloaded."""
    if not LIBRARY.exists():
        fetch_jars(LIBRARY, [("org.apache.kafka", name, VERSION, "") for name in _ARTIFACTS])
    return LIBRARY


@contextmanager
def start_kraft(
    directory: Path, *, jvm_options: tuple[str, ...] = JVM_OPTIONS, **settings: object
) -> Iterator[str]:
    """A broker that is its own controller, on free ports; gives the bootstrap address.

    A setting is Kafka's name with `_` for `.`. The process is always stopped.
    """
    port, controller = free_port(), free_port()
    values = {
        **_SETTINGS,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "log.dirs": str(directory / "kraft-data"),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    directory.mkdir(parents=True, exist_ok=True)
    properties = directory / "kraft.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    java = ["java", *jvm_options, "-cp", f"{kraft_library()}/*"]
    arguments = ["format", "-t", CLUSTER_ID, "-c", str(properties)]
    storage = [*java, "kafka.tools.StorageTool", *arguments]
    subprocess.run(storage, check=True, capture_output=True)
    kafka = JavaProcess([*java, "kafka.Kafka", str(properties)], directory / "kraft.log")
    try:
        bootstrap = f"127.0.0.1:{port}"
        eventually(
            lambda: _serves(bootstrap, kafka), "Kafka did not start", seconds=START_DEADLINE_S
        )
        yield bootstrap
    finally:
        kafka.stop()


def _serves(bootstrap: str, kafka: JavaProcess) -> bool:
    assert kafka.process.poll() is None, kafka.output()[-4000:]
    try:
        with Wire(bootstrap) as wire:
            response = wire.ask(MetadataRequest(topics=[]), 1)
    except (ConnectionClosed, OSError):
        return False
    assert isinstance(response, MetadataResponse)
    return bool(response.brokers)
