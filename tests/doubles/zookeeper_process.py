"""A real ZooKeeper for tests, from the jars that come with pyspark (or with Apache Kafka).

    with start_zookeeper(tmp_path) as zookeeper:
        ...  # zookeeper.connect is "127.0.0.1:port"
        zookeeper.restart()

The process is always stopped. A test that asks for it is skipped, with the reason, when there is
no `java` or no jar. Sessions may be as short as 300 ms, so that expiry can be tested.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
KAFKA_LIBRARY = REPOSITORY / ".cache" / "kafka-3.9.1" / "lib"
JVM_OPTIONS = ("-Xmx256m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
TICK_TIME_MS = 100
"""Sessions end on a tick; with the usual 2000 every test of expiry would take seconds."""

_LOG = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="WARN"><Appenders><Console name="out"><PatternLayout pattern="%p %m (%c)%n"/>
</Console></Appenders><Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


def zookeeper_jars() -> list[Path]:
    """Directories whose jars make a server; skips the running test when there are none."""
    if find_java() is None:
        pytest.skip("a real ZooKeeper needs Java: no JAVA_HOME and no `java` on the PATH")
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        jars = Path(spec.origin).parent / "jars"
        if any(jars.glob("zookeeper-3*.jar")):
            return [jars]
    if any(KAFKA_LIBRARY.glob("zookeeper-3*.jar")):
        return [KAFKA_LIBRARY]
    pytest.skip("a real ZooKeeper needs its jar: neither pyspark nor Kafka's jars are installed")


def find_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ZooKeeperProcess:
    """One server with its data under ``directory``; the port stays the same over restarts."""

    def __init__(self, directory: Path, settings: Mapping[str, str], java: tuple[str, ...]) -> None:
        self.directory = directory
        self.port = free_port()
        self.connect = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._java_options = java
        self._jars = zookeeper_jars()
        directory.mkdir(parents=True, exist_ok=True)
        lines = {
            "dataDir": str(directory / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "tickTime": str(TICK_TIME_MS),
            "minSessionTimeout": "300",
            "maxSessionTimeout": "60000",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **settings,
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (directory / "zoo.cfg").write_text(text)
        (directory / "log4j2.xml").write_text(_LOG)

    def start(self) -> None:
        classpath = ":".join(f"{jars}/*" for jars in self._jars)
        java = find_java()
        assert java is not None
        with (self.directory / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                [
                    java,
                    *JVM_OPTIONS,
                    f"-Dlog4j2.configurationFile={self.directory / 'log4j2.xml'}",
                    *self._java_options,
                    "-cp",
                    classpath,
                    "org.apache.zookeeper.server.ZooKeeperServerMain",
                    str(self.directory / "zoo.cfg"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt of the tests must not reach it first
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while self._command(b"srvr").find(b"Mode: ") < 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"ZooKeeper did not start:\n{self.output()}")
            time.sleep(0.05)

    def _command(self, word: bytes) -> bytes:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(word)
                answer = b""
                while chunk := connection.recv(65536):
                    answer += chunk
                return answer
        except OSError:
            return b""

    def output(self) -> str:
        return (self.directory / "output.txt").read_text(errors="replace")[-5000:]

    def stop(self) -> None:
        """At once: ZooKeeper keeps nothing in memory that it has promised to keep."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait(STOP_DEADLINE_S)
        self.process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """The server hangs: connections stay open, nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        while threads.exists() and not all(_state(thread) == "T" for thread in threads.iterdir()):
            time.sleep(0.001)  # a thread on another processor may still be at work

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def _state(thread: Path) -> str:
    """The letter of its state in Linux's words: T is stopped."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def start_zookeeper(
    directory: Path, *, settings: Mapping[str, str] | None = None, java: tuple[str, ...] = ()
) -> Iterator[ZooKeeperProcess]:
    """``settings`` go to zoo.cfg, ``java`` are more options of the virtual machine."""
    zookeeper = ZooKeeperProcess(directory / "zookeeper", settings or {}, java)
    try:
        zookeeper.start()
        yield zookeeper
    finally:
        zookeeper.stop()
