"""Writes tools/kafka_jmx_names.txt, the JMX names of a Kafka broker: `python -m
tools.kafka_jmx_names`.

It starts Apache Kafka 3.9.1 with ZooKeeper, lets clients produce, consume and commit a transaction,
and reads the names with Kafka's JmxTool. A test checks that docs/metrics.md has each of them.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.doubles import apache_kafka

NAMES = Path(__file__).resolve().with_name("kafka_jmx_names.txt")

# Of these types each attribute is a metric of its own; the other types have a `name`, or are the
# same attributes for each of the broker's own clients.
_BY_ATTRIBUTE = (
    *("group-coordinator-metrics", "transaction-coordinator-metrics", "socket-server-metrics"),
    *("Produce", "Fetch", "Request", "ControllerMutation", "app-info", "kafka-metrics-count"),
)
_LINE = re.compile(r"(?P<domain>kafka\.\w+(?:\.\w+)*):type=(?P<keys>[^:]+):(?P<attribute>[^=:]+)=")
_DEADLINE_S = 120.0


def names_in(report: str) -> list[str]:
    """The names in a report of JmxTool, with `*` for topics, partitions, clients and the like."""
    found = set()
    for line in report.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        kind, _, keys = match["keys"].partition(",")
        keys = re.sub(r"(?<=,)(?!name=)([\w-]+)=[^,]*", r"\1=*", f",{keys}" if keys else "")
        name = f"{match['domain']}:type={kind}{keys}"
        if ",name=" not in name and kind in _BY_ATTRIBUTE:
            name = f"{name} {match['attribute']}"
        found.add(name)
    return sorted(found)


def _use(bootstrap: str) -> None:
    """Requests of each usual kind, so that their metrics exist."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("orders", b"v")
    producer.flush(_DEADLINE_S)
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    consumer.consume(1, _DEADLINE_S)
    consumer.commit(asynchronous=False)
    consumer.close()
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    transactional.init_transactions(_DEADLINE_S)
    transactional.begin_transaction()
    transactional.produce("orders", b"v")
    transactional.commit_transaction(_DEADLINE_S)


def read_names() -> list[str]:
    """The names of a broker that was just started."""
    port = apache_kafka.free_port()
    options = [
        f"-Dcom.sun.management.jmxremote.{name}"
        for name in (f"port={port}", f"rmi.port={port}", "host=127.0.0.1", "authenticate=false")
    ]
    options += ["-Dcom.sun.management.jmxremote.ssl=false", "-Djava.rmi.server.hostname=127.0.0.1"]
    with (
        tempfile.TemporaryDirectory() as directory,
        apache_kafka.start_kafka(Path(directory), jvm_options=options) as kafka,
    ):
        _use(kafka.bootstrap)
        command = apache_kafka.java_command(
            "org.apache.kafka.tools.JmxTool",
            *("--jmx-url", f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"),
            *("--object-name", "kafka.*:*", "--one-time", "--report-format", "properties"),
            log_level="WARN",
        )
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DEADLINE_S, check=True
        )
    return names_in(done.stdout)


def main() -> None:
    """Writes the file."""
    NAMES.write_text("".join(f"{name}\n" for name in read_names()), encoding="ascii")


if __name__ == "__main__":
    main()
