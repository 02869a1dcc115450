"""The brokers and the controller of a way from Ottla to Kafka 4: their files and processes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ottla.cli.zookeeper_server import free_port
from tests.doubles.apache_kafka import (
    JVM_OPTIONS,
    REPOSITORY,
    JavaProcess,
    java_command,
    kafka_library,
)
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.kraft_kafka import kraft_library

# A broker with a few topics needs about 150 MB; there are up to five processes.
HEAP = "-Xmx256m"
_PAGE = REPOSITORY / "docs" / "leaving.md"
# Not in the blocks of the page: rights for the clients of the test.
_ACLS = """\
allow.everyone.if.no.acl.found=true
super.users=User:ANONYMOUS
"""
# A busy machine: no broker is taken for dead between two of its heartbeats.
_PATIENCE = "broker.session.timeout.ms=60000\n"
_ZOOKEEPER_ACLS = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer\n" + _ACLS


def block_of(name: str) -> str:
    """The settings of a block of the page, which has its name in a comment before it."""
    text = _PAGE.read_text()
    found = re.search(
        rf"<!-- {re.escape(name)} -->\n *```properties\n(.*?)\n *```", text, re.DOTALL
    )
    assert found is not None, f"{_PAGE} has no block {name}"
    return "".join(f"{line.strip()}\n" for line in found[1].splitlines())


def documented(command: str) -> None:
    """Fail unless the page has the command that the test is about to run."""
    text = " ".join(_PAGE.read_text().split())
    assert f"`{command}`" in text, f"{_PAGE} has no `{command}`"


class Nodes:
    """Brokers that keep their ids, ports and directories from step to step, and a controller."""

    def __init__(self, folder: Path, broker_ids: Sequence[int]) -> None:
        self.folder = folder
        self.broker_ids = tuple(broker_ids)
        self.ports = {each: free_port() for each in broker_ids}
        self.controller_port = free_port()
        #: The connect string, known before the first step that uses it.
        self.zookeeper = ""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def replicas(self) -> int:
        """The replication factor of all topics."""
        return len(self.broker_ids)

    def data(self, broker_id: int) -> Path:
        return self.folder / f"broker-{broker_id}" / "data"

    def ottla(self, broker_id: int) -> BrokerProcess:
        """A broker of Ottla, which is not started yet."""
        settings = {"broker.id": str(broker_id)}
        if self.zookeeper:
            settings["zookeeper.connect"] = self.zookeeper
        text = self._common(broker_id) + _ZOOKEEPER_ACLS
        settings |= dict(line.split("=", 1) for line in text.splitlines())
        return BrokerProcess(self.folder / f"broker-{broker_id}", settings)

    def kafka_on_zookeeper(self, broker_id: int) -> Path:
        """The file of a broker of Kafka 3.9 that takes part in the migration."""
        return self._write(
            f"kafka-{broker_id}",
            f"broker.id={broker_id}\n{self._common(broker_id)}"
            f"zookeeper.connect={self.zookeeper}\n{self._block('kafka-3.9')}{_ZOOKEEPER_ACLS}",
        )

    def kafka_on_kraft(self, broker_id: int) -> Path:
        text = self._block("kraft").replace("node.id=1\n", f"node.id={broker_id}\n")
        return self._write(f"kraft-{broker_id}", f"{self._common(broker_id)}{text}{_ACLS}")

    def controller(self, *, migrates: bool) -> Path:
        lines = self._block("controller").splitlines()
        kept = [line for line in lines if migrates or not line.startswith("zookeeper.")]
        name = "controller-migrating" if migrates else "controller"
        return self._write(name, "\n".join(kept) + f"\n{_ACLS}{_PATIENCE}")

    def format_controller(self, cluster_id: str) -> Path:
        """The file of a controller that migrates, with a formatted directory."""
        documented("kafka-storage.sh format -t CLUSTER_ID -c controller.properties")
        file = self.controller(migrates=True)
        command = java_command(
            "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(file)
        )
        subprocess.run(command, check=True, capture_output=True)
        return file

    def kafka(self, file: Path, *, is_4: bool = False) -> JavaProcess:
        """Start a broker or a controller of Kafka 3.9.1, or of 4.3.1."""
        command = java_command("kafka.Kafka", str(file), options=(HEAP,))
        if is_4:
            logging = [*kafka_library().glob("*reload4j*.jar")]  # Kafka 4.3's jars have none
            path = ":".join(map(str, (f"{kraft_library()}/*", *logging)))
            levels = kafka_library().parent / "log4j-info.properties"
            command = ["java", *JVM_OPTIONS, HEAP, f"-Dlog4j.configuration=file:{levels}"]
            command += ["-cp", path, "kafka.Kafka", str(file)]
        return JavaProcess(command, self.folder / f"{file.stem}{'-4.3' if is_4 else ''}.log")

    @contextmanager
    def running(self, file: Path, *, is_4: bool = False) -> Iterator[JavaProcess]:
        """`kafka`, stopped when the block ends."""
        process = self.kafka(file, is_4=is_4)
        try:
            yield process
        finally:
            process.stop()

    def _block(self, name: str) -> str:
        """A block of the page with the addresses and directories of this test."""
        text = block_of(name).replace("controller-1:9093", f"127.0.0.1:{self.controller_port}")
        text = text.replace("zookeeper-1:2181", self.zookeeper)
        return text.replace("/var/lib/controller", str(self.folder / "ctl"))

    def _common(self, broker_id: int) -> str:
        """The settings that a broker has in all steps."""
        in_sync = min(2, self.replicas)
        return (
            f"listeners=PLAINTEXT://127.0.0.1:{self.ports[broker_id]}\n"
            f"log.dirs={self.data(broker_id)}\n"
            f"offsets.topic.replication.factor={self.replicas}\n"
            "offsets.topic.num.partitions=5\n"
            f"transaction.state.log.replication.factor={self.replicas}\n"
            f"transaction.state.log.min.isr={in_sync}\n"
            "transaction.state.log.num.partitions=5\n"
            f"share.coordinator.state.topic.replication.factor={self.replicas}\n"
            f"share.coordinator.state.topic.min.isr={in_sync}\n"
            "share.coordinator.state.topic.num.partitions=5\n"
            "group.initial.rebalance.delay.ms=0\n"
            "log.cleaner.dedupe.buffer.size=8388608\n"
        )

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / f"{name}.properties"
        path.write_text(text)
        return path
