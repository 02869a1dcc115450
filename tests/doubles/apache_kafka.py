"""Apache Kafka 3.9.1 as an oracle: its jars, a broker with its own ZooKeeper, its tools.

The jars live in `.cache/kafka-3.9.1/lib` of the repository. When they are not there, Maven fetches
them once; without Java or Maven the test that asked is skipped and says what is missing.

    def test_something(tmp_path: Path) -> None:
        with start_kafka(tmp_path, num_partitions=3) as kafka:
            ...  # kafka.bootstrap, kafka.zookeeper, kafka.log_directories, kafka.output()
        with start_kafka(tmp_path) as kafka:  # the same data and the same cluster again
            ...

A setting is Kafka's name with `_` for `.`: `log_segment_bytes=1048576`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.cli.zookeeper_server import free_port
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.doubles.eventually import eventually, is_listening
from tests.doubles.maven import fetch_jars
from tests.doubles.wire import Wire

KAFKA_VERSION = "3.9.1"
REPOSITORY = Path(__file__).resolve().parents[2]

# Small enough for a laptop that runs other tests too; Kafka with a few topics needs about 150 MB.
JVM_OPTIONS = ("-Xmx512m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
START_DEADLINE_S = 300.0  # a machine may have other things to do
# A broker that is killed because it was slow to stop leaves logs to recover: what tests look for.
STOP_DEADLINE_S = 90.0

_ARTIFACTS = ("kafka_2.13", "kafka-tools")

# A broker logs its work on INFO; a tool speaks only when something is wrong.
_LOG4J = """log4j.rootLogger={level}, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def is_available() -> bool:
    """Whether a broker can be started: Java is there, and the jars or Maven to download them."""
    has_jars = _server_jar(KAFKA_VERSION).exists() or shutil.which("mvn") is not None
    return has_jars and shutil.which("java") is not None


def _server_jar(version: str) -> Path:
    return REPOSITORY / ".cache" / f"kafka-{version}" / "lib" / f"kafka_2.13-{version}.jar"


def kafka_library(version: str = KAFKA_VERSION) -> Path:
    """The directory with the jars of a version; skips the running test when it cannot be
    downloaded."""
    if shutil.which("java") is None:
        pytest.skip("Apache Kafka as the oracle needs Java: there is no `java` on the PATH")
    library = _server_jar(version).parent
    if not _server_jar(version).exists():
        fetch_jars(library, [("org.apache.kafka", name, version, "") for name in _ARTIFACTS])
    return library


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """`kafka_library()` as a fixture, for tests that only need the tools."""
    return kafka_library()


def java_command(
    main_class: str,
    *arguments: str,
    log_level: str = "INFO",
    options: Sequence[str] = (),
    version: str = KAFKA_VERSION,
) -> list[str]:
    """The command line that runs a class of Kafka's jars."""
    library = kafka_library(version)
    configuration = library.parent / f"log4j-{log_level.lower()}.properties"
    if not configuration.exists():
        configuration.write_text(_LOG4J.format(level=log_level))
    jars = [str(jar) for jar in sorted(library.glob("*.jar")) if "slf4j-simple" not in jar.name]
    return [
        "java",
        *JVM_OPTIONS,
        f"-Dlog4j.configuration=file:{configuration}",
        *options,
        "-cp",
        os.pathsep.join(jars),
        main_class,
        *arguments,
    ]


def run_tool(main_class: str, *arguments: str, text_input: str | None = None) -> str:
    """Runs one of Kafka's command line classes to its end and returns what it printed.

    Raises AssertionError with the output when the exit code is not zero.
    """
    done = subprocess.run(
        java_command(main_class, *arguments, log_level="WARN"),
        input=text_input,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{main_class} {arguments} ended with {done.returncode}:\n{output}"
    return output


def dump_log_segments(*arguments: str) -> str:
    """`kafka-dump-log.sh ARGUMENTS`."""
    return run_tool("kafka.tools.DumpLogSegments", *arguments)


class JavaProcess:
    """One Java process whose output goes to a file, so that nothing blocks on a full pipe."""

    def __init__(self, command: list[str], output: Path) -> None:
        self.output_path = output
        with output.open("ab") as sink:
            self._offset = sink.tell()
            self.process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)

    def output(self) -> str:
        """What this process (not an earlier one on the same file) has printed so far."""
        with self.output_path.open("rb") as source:
            source.seek(self._offset)
            return source.read().decode("utf-8", "replace")

    def wait_for(self, pattern: str, deadline_s: float = START_DEADLINE_S) -> re.Match[str]:
        """Waits until the output matches; fails when the process ends or time is up."""
        until = time.monotonic() + deadline_s
        while True:
            found = re.search(pattern, self.output())
            if found is not None:
                return found
            if self.process.poll() is not None:
                raise AssertionError(f"the process ended early:\n{self.output()[-4000:]}")
            if time.monotonic() > until:
                raise AssertionError(f"no {pattern!r} in {deadline_s} s:\n{self.output()[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Asks politely (clean shutdown), then insists."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process.wait()

    def kill(self) -> None:
        """kill -9: no clean shutdown."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class ApacheKafka:
    """A running Kafka broker.

    `bootstrap` is its plaintext listener, `zookeeper` the connect string, `log_directories` the
    data directories.
    """

    def __init__(
        self, process: JavaProcess, bootstrap: str, zookeeper: str, directories: list[Path]
    ) -> None:
        self.process = process
        self.bootstrap = bootstrap
        self.zookeeper = zookeeper
        self.log_directories = directories

    def output(self) -> str:
        """The broker's own log lines since this start."""
        return self.process.output()

    def kill(self) -> None:
        """kill -9 the broker (ZooKeeper keeps running)."""
        self.process.kill()

    def stop(self) -> None:
        """Clean shutdown of the broker (ZooKeeper keeps running)."""
        self.process.stop()

    def run_tool(self, main_class: str, *arguments: str, text_input: str | None = None) -> str:
        """A command line class with `--bootstrap-server` of this broker added."""
        return run_tool(
            main_class, "--bootstrap-server", self.bootstrap, *arguments, text_input=text_input
        )

    def topics(self, *arguments: str) -> str:
        """`kafka-topics.sh ARGUMENTS` on this broker."""
        return self.run_tool("org.apache.kafka.tools.TopicCommand", *arguments)


@contextmanager
def start_zookeeper(directory: Path) -> Iterator[str]:
    """A ZooKeeper of Kafka's jars on a free port; gives the connect string; always stopped."""
    data = directory / "zookeeper"
    data.mkdir(parents=True, exist_ok=True)
    process, port = _launch_zookeeper(data, directory / "zookeeper.log")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.stop()


def _launch_zookeeper(data: Path, output: Path) -> tuple[JavaProcess, int]:
    for attempt in range(3):  # between choosing a port and binding it, another process may take it
        port = free_port()
        configuration = data.parent / "zookeeper.properties"
        configuration.write_text(
            f"dataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\ntickTime=500\n"
            # No test takes the power away: sessions need not wait for a busy disk.
            "4lw.commands.whitelist=ruok,srvr\nforceSync=no\n"
        )
        command = java_command(
            "org.apache.zookeeper.server.ZooKeeperServerMain", str(configuration)
        )
        process = JavaProcess(command, output)
        try:
            process.wait_for(r"binding to port|PrepRequestProcessor \(sid:0\) started")
            _wait_for_port(port)
        except AssertionError:
            process.kill()
            if attempt == 2:
                raise
            continue
        return process, port
    raise AssertionError("unreachable")


def _wait_for_port(port: int) -> None:
    eventually(
        lambda: is_listening(port), f"nothing listens on port {port}", seconds=START_DEADLINE_S
    )


def _broker_properties(directory: Path, zookeeper: str, settings: dict[str, object]) -> str:
    values: dict[str, object] = {
        "broker.id": 0,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": 10_000,
        "log.dirs": directory / "data",
        "num.network.threads": 1,
        "num.io.threads": 2,
        "num.partitions": 1,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
        "controlled.shutdown.enable": "false",
    }
    for name, value in settings.items():
        values[name.replace("_", ".")] = str(value).lower() if isinstance(value, bool) else value
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _wait_for_controller(bootstrap: str) -> None:
    """Until the broker knows a controller: it says "started" before, and then refuses to
    create topics."""

    def is_elected() -> bool:
        with Wire(bootstrap) as wire:
            response = wire.ask(MetadataRequest(topics=[]), 1)
        assert isinstance(response, MetadataResponse)
        return response.controller_id >= 0 and bool(response.brokers)

    eventually(is_elected, "no controller was elected", seconds=START_DEADLINE_S)


@contextmanager
def start_kafka(
    directory: Path,
    *,
    zookeeper: str | None = None,
    version: str = KAFKA_VERSION,
    jvm_options: Sequence[str] = (),
    **settings: object,
) -> Iterator[ApacheKafka]:
    """A broker of a Kafka version on a free port with its data under `directory`; always stopped.

    Without `zookeeper` it gets one of its own, whose data is under `directory` too, so that a
    second start with the same directory is the same cluster. `options` are for the JVM.
    """
    if zookeeper is None:
        with (
            start_zookeeper(directory) as own,
            start_kafka(
                directory, zookeeper=own, version=version, jvm_options=jvm_options, **settings
            ) as kafka,
        ):
            yield kafka
        return
    directory.mkdir(parents=True, exist_ok=True)
    text = _broker_properties(directory, zookeeper, settings)
    properties = directory / "server.properties"
    properties.write_text(text)
    found = re.search(r"^log\.dirs=(.*)$", text, re.MULTILINE)
    assert found is not None
    directories = [Path(name) for name in found.group(1).split(",")]
    command = java_command("kafka.Kafka", str(properties), options=jvm_options, version=version)
    process = JavaProcess(command, directory / "kafka.log")
    try:
        process.wait_for(r"\[KafkaServer id=\d+\] started")
        port = process.wait_for(r"Awaiting socket connections on 127\.0\.0\.1:(\d+)").group(1)
        if "listeners" not in settings:
            _wait_for_controller(f"127.0.0.1:{port}")
        yield ApacheKafka(process, f"127.0.0.1:{port}", zookeeper, directories)
    finally:
        process.stop()
