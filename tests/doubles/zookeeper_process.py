"""A real ZooKeeper for tests, run as `ottla cluster start` runs one.

    with start_zookeeper(tmp_path) as zookeeper:
        ...  # zookeeper.connect is "127.0.0.1:port"
        zookeeper.restart()

The process is always stopped. A test that requests it is skipped, with the reason, when there is
no `java` or no jar. Sessions may be as short as 300 ms, so that expiry can be tested.
"""

from __future__ import annotations

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

    def start(self) -> None:
        with (self.directory / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                self._command_line(),
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
