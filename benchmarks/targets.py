"""The two brokers that every figure compares: Ottla and Apache Kafka 3.9.1, as separate processes.

Both keep their data in a folder of this run, listen on a free loopback port and get the same
settings. Kafka runs with the heap and collector of its own start script and its own ZooKeeper,
whose processor time and memory are not counted.
"""

import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from benchmarks import interpreter, machine, report, wire
from ottla.broker.config.workers import BOOTSTRAP_PORT_ABOVE
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.doubles import apache_kafka
from tests.doubles.certificates import Certificates

START_DEADLINE_S = 60.0
KAFKA_JVM_OPTIONS = ("-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


class Target(ABC):
    """One broker under measurement. `processor_seconds` is user and system time of its process."""

    name: str
    #: Of the programs; Kafka's are elsewhere.
    checkout = interpreter.ROOT

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self.directory = directory
        self.settings = settings
        self.port = apache_kafka.free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.tls_port = apache_kafka.free_port()
        self._certificates: Certificates | None = None
        self.started_at = 0.0
        #: Processor time of the processes of this broker that were stopped.
        self.ended_seconds = 0.0
        self.round = 0  # of the line that is being measured; for names that must be new
        self.process: psutil.Process | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def with_tls(self) -> None:
        """A second listener with TLS; call it before `launch`."""
        self._certificates = Certificates(self.directory)

    def tls_options(self) -> dict[str, str]:
        """What librdkafka needs to come in by TLS."""
        assert self._certificates is not None
        return {
            "bootstrap.servers": f"127.0.0.1:{self.tls_port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self._certificates.authority_path),
        }

    @abstractmethod
    def command(self) -> list[str]: ...

    def properties(self) -> dict[str, str]:
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # The files of a deleted topic leave the page cache before the next round.
            "log.segment.delete.delay.ms": "100",
            **self._tls_properties(),
            **self.settings,
        }

    def _tls_properties(self) -> dict[str, str]:
        if self._certificates is None:
            return {}
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},SSL://127.0.0.1:{self.tls_port}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._certificates.server_path),
        }

    def write_properties(self) -> Path:
        path = self.directory / "server.properties"
        lines = (f"{name}={value}\n" for name, value in self.properties().items())
        path.write_text("".join(lines))
        return path

    def launch(self) -> None:
        """Start the process and return at once; `started_at` is the moment of the command."""
        command = self.command()
        output = (self.directory / "output.log").open("ab")
        self.started_at = time.perf_counter()
        self._popen = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=interpreter.environment(self.checkout),
        )
        output.close()
        self.process = psutil.Process(self._popen.pid)

    def stop(self) -> None:
        if self._popen is None:
            return
        before = machine.children_seconds()
        self._popen.terminate()
        try:
            self._popen.wait(30)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._popen = None
        self.ended_seconds += machine.children_seconds() - before

    def processor_seconds(self) -> float:
        assert self.process is not None
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def leaders(self, topic: str, partitions: int) -> list[str]:
        """The address of the leader of each partition of a topic that exists."""
        del topic
        return [self.bootstrap] * partitions

    @property
    def least_partitions(self) -> int:
        """Of a topic that is to use all of this target."""
        return 1

    def data_bytes(self) -> int:
        """Of the files in the data directory, but for internal topics. Files may be deleted
        meanwhile."""
        total = 0
        for folder, _, files in os.walk(self.directory / "data"):
            for file in () if Path(folder).name.startswith("__") else files:
                with suppress(FileNotFoundError):
                    total += os.stat(f"{folder}/{file}").st_blocks * 512
        return total

    def resident_megabytes(self) -> float:
        assert self.process is not None
        return float(self.process.memory_info().rss) / 1e6


class Ottla(Target):
    name = "ottla"
    #: Of the broker's process.
    python = Path(sys.executable)

    def launch(self) -> None:
        """As `Target`; the bytecode is made before, as an installed package has it."""
        interpreter.compile_packages(self.python, self.checkout)
        super().launch()

    def command(self) -> list[str]:
        return [*interpreter.start_command(self.python), str(self.write_properties())]


class OttlaBeside(Ottla):
    """Another checkout, with the environment that `make` has installed in it."""

    name = report.BESIDE

    def __init__(self, directory: Path, settings: dict[str, str], checkout: Path) -> None:
        super().__init__(directory, settings)
        self.python = checkout / ".venv" / "bin" / "python"
        self.checkout = checkout


class OttlaWorkers(Ottla):
    """One command with several workers on consecutive ports; the figures are those of all its
    processes. `addresses` are by broker id, from 0 on."""

    name = report.WORKERS

    def __init__(self, directory: Path, settings: dict[str, str], workers: int) -> None:
        super().__init__(directory, settings)
        self.port = free_ports(workers)
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.tls_port = free_ports(workers)
        self.addresses = [f"127.0.0.1:{self.port + number}" for number in range(workers)]

    def properties(self) -> dict[str, str]:
        workers = str(len(self.addresses))
        given = {**super().properties(), "broker.id": "0", "ottla.workers": workers}
        # One coordinator for each worker, as a topic has a partition for each.
        return {**given, "offsets.topic.num.partitions": workers}

    def leaders(self, topic: str, partitions: int) -> list[str]:
        """As `Target`."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        deadline = time.perf_counter() + START_DEADLINE_S
        while time.perf_counter() < deadline:
            with wire.connect(self.bootstrap) as sock:
                found = wire.call(sock, request, 9)
            rows = found.topics[0].partitions
            leaders = {row.partition_index: row.leader_id for row in rows}
            if len(leaders) == partitions and min(leaders.values()) >= 0:
                return [self.addresses[leaders[number]] for number in range(partitions)]
            time.sleep(0.1)
        raise RuntimeError(f"{topic} has no leaders")

    @property
    def least_partitions(self) -> int:
        """As `Target`: a partition is on one worker."""
        return len(self.addresses)

    def _processes(self) -> list[psutil.Process]:
        assert self.process is not None
        return [self.process, *self.process.children(recursive=True)]

    def processor_seconds(self) -> float:
        """Of the supervisor, too."""
        times = [each.cpu_times() for each in self._processes()]
        return float(sum(each.user + each.system for each in times))

    def resident_megabytes(self) -> float:
        """Memory that processes share counts once."""
        return float(sum(each.memory_full_info().pss for each in self._processes())) / 1e6


def free_ports(count: int) -> int:
    """The first of so many ports in a row that were free a moment ago, as is that of bootstrap."""
    while True:
        first = apache_kafka.free_port()
        with ExitStack() as stack:
            try:
                for port in (*range(first, first + count), first + BOOTSTRAP_PORT_ABOVE):
                    sock = stack.enter_context(socket.socket())
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first


class Kafka(Target):
    name = "kafka"

    def __init__(self, directory: Path, settings: dict[str, str], zookeeper: str) -> None:
        super().__init__(directory, settings)
        self.zookeeper = zookeeper

    def properties(self) -> dict[str, str]:
        return {"broker.id": "0", "zookeeper.connect": self.zookeeper, **super().properties()}

    def command(self) -> list[str]:
        command = apache_kafka.java_command("kafka.Kafka", str(self.write_properties()))
        kept = [word for word in command if word not in apache_kafka.JVM_OPTIONS]
        return [kept[0], *KAFKA_JVM_OPTIONS, *kept[1:]]


def run_java_tool(main_class: str, *arguments: str) -> str:
    """One of Kafka's own performance tools; the same client for both brokers."""
    command = apache_kafka.java_command(main_class, *arguments, log_level="WARN")
    kept = [word for word in command if word not in apache_kafka.JVM_OPTIONS]
    done = subprocess.run(
        [kept[0], "-Xmx512m", *kept[1:]],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode:
        raise RuntimeError(f"{main_class} failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout
