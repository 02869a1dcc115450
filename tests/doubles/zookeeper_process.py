"""A real ZooKeeper for tests, run as `ottla cluster start` runs one.

    with start_zookeeper(tmp_path) as zookeeper:
        ...  # zookeeper.connect is "127.0.0.1:port"
        zookeeper.restart()

The process is always stopped. A test that requests it is skipped, with the reason, when there is
no `java` or no jar. Sessions may be as short as 300 ms, so that expiry can be tested.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.cli.output import Failure
from ottla.cli.zookeeper_server import free_port, server_command
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
TICK_TIME_MS = 100
"""Sessions end on a tick; with the usual 2000 every test of expiry would take seconds."""


class ZooKeeperProcess:
    """One server with its data under ``directory``; the port stays the same over restarts."""

    def __init__(self, directory: Path, settings: Mapping[str, str], java: tuple[str, ...]) -> None:
        self.directory = directory
        self.port = free_port()
        self.connect = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._java_options = java
        self._settings = {
            "tickTime": str(TICK_TIME_MS),
            "minSessionTimeout": "300",
            "maxSessionTimeout": "60000",
            "4lw.commands.whitelist": "*",
            # No test takes the power away: sessions of seconds need not wait for a busy disk.
            "forceSync": "no",
            **settings,
        }
        directory.mkdir(parents=True, exist_ok=True)
        self._command_line()  # whether there is one is said at once

    def _command_line(self) -> list[str]:
        try:
            return server_command(
                self.directory,
                self.port,
                settings=self._settings,
                java_options=self._java_options,
            )
        except Failure as failure:
            pytest.skip(str(failure))

    def _launch(self) -> None:
        with (self.directory / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                self._command_line(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt of the tests must not reach it first
            )

    def start(self) -> None:
        self._launch()
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
                response = b""
                while chunk := connection.recv(65536):
                    response += chunk
                return response
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
        """The server hangs: connections stay open, no response comes."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        while threads.exists() and not all(_state(thread) == "T" for thread in threads.iterdir()):
            time.sleep(0.001)  # a thread on another processor may still be at work

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class EnsembleMember(ZooKeeperProcess):
    """One of several servers; it starts without waiting, as it needs the others."""

    #: The port of clients with TLS, if there is one.
    secure_port = 0

    def _command_line(self) -> list[str]:
        alone = "org.apache.zookeeper.server.ZooKeeperServerMain"
        of_several = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [of_several if each == alone else each for each in super()._command_line()]

    def start(self) -> None:
        self._launch()

    @property
    def mode(self) -> str:
        """leader, follower or read-only; empty while it serves nobody."""
        found = re.search(rb"Mode: (\S+)", self._command(b"srvr"))
        return "" if found is None else found[1].decode()

    def wait_for_mode(self, *modes: str) -> None:
        eventually(
            lambda: self.mode in modes,
            lambda: f"it is {self.mode!r}:\n{self.output()}",
            seconds=START_DEADLINE_S,
            pause_seconds=0.1,
        )


class OttlaZooKeeperProcess(ZooKeeperProcess):
    """`ottla zookeeper`; a session has at most 20 ticks."""

    tick_time_ms = 1_000
    more_options: tuple[str, ...] = ()

    def _command_line(self) -> list[str]:
        return [
            *(sys.executable, "-m", "ottla.cli.main", "zookeeper", "--port", str(self.port)),
            *("--data-dir", str(self.directory), "--tick-time-ms", str(self.tick_time_ms)),
            *self.more_options,
        ]


def _state(thread: Path) -> str:
    """The letter of its state in Linux's words: T is stopped."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def start_zookeeper(
    directory: Path, *, settings: Mapping[str, str] | None = None, java: tuple[str, ...] = ()
) -> Iterator[ZooKeeperProcess]:
    """``settings`` go to zoo.cfg, ``java`` are more options of the virtual machine."""
    with _started(ZooKeeperProcess(directory / "zookeeper", settings or {}, java)) as zookeeper:
        yield zookeeper


@contextmanager
def start_ensemble(
    directory: Path, certificates: Certificates | None = None, count: int = 3
) -> Iterator[list[EnsembleMember]]:
    """Servers that are an ensemble, and serve readers without a quorum (readonlymode.enabled).
    With `certificates` each has a `secure_port`, too."""
    ports = [(free_port(), free_port()) for _ in range(count)]
    common = {"initLimit": "50", "syncLimit": "50"}
    for number, (quorum, election) in enumerate(ports, 1):
        common[f"server.{number}"] = f"127.0.0.1:{quorum}:{election}"
    members = []
    for number in range(1, count + 1):
        secure_port, settings = 0, dict(common)
        if certificates is not None:
            secure_port = free_port()
            settings |= tls_settings(certificates, secure_port)
        java = ("-Dreadonlymode.enabled=true",)
        member = EnsembleMember(directory / f"zookeeper-{number}", settings, java)
        member.secure_port = secure_port
        (member.directory / "data").mkdir(exist_ok=True)
        (member.directory / "data" / "myid").write_text(str(number))
        members.append(member)
    try:
        for member in members:
            member.start()
        for member in members:
            member.wait_for_mode("leader", "follower")
        yield members
    finally:
        for member in members:
            member.stop()


def tls_settings(certificates: Certificates, port: int) -> dict[str, str]:
    """Those of a server with TLS on one more port, which wants a certificate of its clients."""
    return {
        "secureClientPort": str(port),
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(certificates.server_path),
        "ssl.trustStore.location": str(certificates.authority_path),
        "ssl.clientAuth": "need",
    }


@contextmanager
def start_ottla_zookeeper(
    directory: Path, tick_time_ms: int = OttlaZooKeeperProcess.tick_time_ms
) -> Iterator[ZooKeeperProcess]:
    """The same interface, without Java."""
    process = OttlaZooKeeperProcess(directory / "ottla-zookeeper", {}, ())
    process.tick_time_ms = tick_time_ms
    process.more_options = ("--no-fsync",)  # as above
    with _started(process) as zookeeper:
        yield zookeeper


@contextmanager
def _started(zookeeper: ZooKeeperProcess) -> Iterator[ZooKeeperProcess]:
    try:
        zookeeper.start()
        yield zookeeper
    finally:
        zookeeper.stop()
