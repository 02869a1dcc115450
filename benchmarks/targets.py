"""The two brokers that every figure compares: Ottla and Apache Kafka 3.9.1, as separate processes.

Both keep their data in a folder of this run, listen on a free loopback port and get the same
settings. Kafka runs with the heap and collector of its own start script and its own ZooKeeper,
whose processor time and memory are not counted.
"""

import compileall
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks import machine
from tests.doubles import apache_kafka
from tests.doubles.certificates import Certificates

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("protocol", "storage", "controller", "broker", "cli")
START_DEADLINE_S = 60.0
KAFKA_JVM_OPTIONS = ("-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


class Target(ABC):
    """One broker under measurement. `processor_seconds` is user and system time of its process."""

    name: str

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
        # An installed package has its bytecode; a shell that forbids writing it must not count.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self._popen = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
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

    def launch(self) -> None:
        """As `Target`; the bytecode is made before, as an installed package has it."""
        for package in PACKAGES:
            compileall.compile_dir(ROOT / package, quiet=1)
        super().launch()

    def command(self) -> list[str]:
        executable = str(Path(sys.executable).with_name("ottla"))
        return [executable, "start", str(self.write_properties())]


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
