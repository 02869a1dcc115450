"""The share consumer program on Apache Kafka 4.3 in KRaft mode: the same deliveries as on Ottla.

    python -m tests.compat.share.run [--library DIRECTORY]

The jars are in `.cache/kafka-4.3.1/lib`, where Maven puts them the first time.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.zookeeper_server import free_port
from tests.compat.share.work import compile_work, consume, expected, values
from tests.doubles.apache_kafka import REPOSITORY, JavaProcess
from tests.doubles.maven import fetch_jars

VERSION = "4.3.1"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = REPOSITORY / ".cache" / f"kafka-{VERSION}" / "lib"
    parser.add_argument("--library", type=Path, default=default, help="the jars of Kafka")
    library = parser.parse_args().library
    if not library.exists():
        fetch_jars(library, [("org.apache.kafka", "kafka_2.13", VERSION, "")])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        port, controller = free_port(), free_port()
        settings = SETTINGS | {
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "log.dirs": str(directory / "data"),
        }
        properties = directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = ["java", "-Xmx512m", "-cp", f"{library}/*"]
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run([*java, "kafka.tools.StorageTool", *arguments], check=True)
        kafka = JavaProcess([*java, "kafka.Kafka", str(properties)], directory / "kafka.log")
        try:
            bootstrap = f"127.0.0.1:{port}"
            admin = AdminClient({"bootstrap.servers": bootstrap})
            admin.create_topics([NewTopic("work", 1, 1)])["work"].result(60)
            found = consume(
                *(bootstrap, "work", "workers", compile_work(directory)),
                *(directory / "consumer.log", values()),
            )
        finally:
            kafka.stop()
    print(f"Apache Kafka {VERSION}: {len(found)} records")
    for value, deliveries in sorted(found.items()):
        print(f"  {value}: {deliveries}")
    assert found == expected(), "not what Ottla does"
    print("the same deliveries as on Ottla")


if __name__ == "__main__":
    main()
