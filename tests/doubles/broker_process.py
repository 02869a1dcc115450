"""A real broker in a process of its own, on a free port, for tests.

    with start_broker(tmp_path, num_partitions="3") as broker:
        Producer({"bootstrap.servers": broker.bootstrap})

Settings are Kafka's names with `_` for `.`. The process is always ended, whatever the test does.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.doubles.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]

START_SECONDS = 90.0  # a machine may have other things to do
STOP_SECONDS = 30.0


class BrokerProcess:
    """One broker process that can be stopped, killed and started again on the same data."""

    module = "ottla.broker"

    def __init__(
        self, directory: Path, settings: dict[str, str], arguments: Sequence[str] = ()
    ) -> None:
        self._extra_arguments = arguments
        self.data_directory = directory / "data"
        self.log_file = directory / "broker.log"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        #: The limit of open files (`ulimit -n`) of the next start; None: that of the tests.
        self.max_descriptors: int | None = None
        #: The port, chosen at the first start and kept after that.
        self.port = 0
        #: The variable KAFKA_OPTS, which may name a JAAS file.
        self.kafka_opts = ""
        #: What stands before the command, such as one that changes the network namespace.
        self.prefix: Sequence[str] = ()

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended since by this object."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self) -> None:
        """Starts the process; returns when it serves clients."""
        assert self._process is None, "the broker is running"
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        offset = self.log_file.stat().st_size if self.log_file.exists() else 0
        limit = []
        if self.max_descriptors is not None:
            limit = ["sh", "-c", f'ulimit -n {self.max_descriptors}; exec "$@"', "sh"]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, *limit, sys.executable, "-m", self.module, *self._arguments()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
            )
        self._wait_until_ready(offset)

    def stop(self) -> int:
        """Stops it as an operator does (SIGTERM); returns the exit code."""
        self.ask_to_stop()
        return self.wait_for_end()

    def ask_to_stop(self) -> None:
        """SIGTERM; returns at once."""
        assert self._process is not None, "the broker is not running"
        self._process.send_signal(signal.SIGTERM)

    def send_signal(self, number: signal.Signals) -> None:
        """Any signal; returns at once."""
        assert self._process is not None, "the broker is not running"
        self._process.send_signal(number)

    def wait_for_end(self) -> int:
        """The exit code of one that was asked to stop; it has half a minute for it."""
        process, self._process = self._process, None
        assert process is not None, "the broker is not running"
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker did not stop:\n{self.log()}") from None

    def kill(self) -> None:
        """Kills it (SIGKILL): nothing in it gets to do anything any more."""
        assert self._process is not None, "the broker is not running"
        self._process.kill()
        self.wait_for_end()

    def restart(self) -> None:
        """Stops it, if it runs, and starts it again on the same port and data."""
        if self._process is not None:
            self.stop()
        self.start()

    def restart_after_kill(self) -> None:
        """Kills it and starts it again at once, long before its session has ended."""
        self.kill()
        self.start()

    def log(self) -> str:
        """All it has written to its standard output and error so far."""
        return self.log_file.read_text(errors="replace")

    def wait_for_log(self, text: str, seconds: float = 60.0) -> None:
        """Waits until the broker has written `text`."""
        eventually(
            lambda: text in self.log(),
            lambda: f"{text!r} is not in its log:\n{self.log()}",
            seconds=seconds,
            pause_seconds=0.02,
        )

    def talk_http(self) -> None:
        """Asks the port of the Kafka protocol for a web page; returns when the log speaks of it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60.0) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while sock.recv(4096):
                pass
        self.wait_for_log("not HTTP")

    def has_ended(self) -> bool:
        """Whether the process ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def _environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if _is_harmless(name)}
        return kept | ({"KAFKA_OPTS": self.kafka_opts} if self.kafka_opts else {})

    def _arguments(self) -> list[str]:
        settings = {
            "log.dirs": str(self.data_directory),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            **self._settings,
        }
        overrides = [f"--override={name}={text}" for name, text in settings.items()]
        return [*self._extra_arguments, *overrides]

    def _wait_until_ready(self, offset: int) -> None:
        """Reads the banner, which comes when clients are served and names the ports."""
        process = self._process
        assert process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            text = self.log_file.read_bytes()[offset:].decode(errors="replace")
            head, found, banner = text.replace(" is not ready", " is ready").partition(" is ready")
            # The banner is written at once, its last line names the znode tree.
            if found and "znode tree" in banner:
                if self.port == 0:
                    self.port = _port_of(banner)
                return
            if process.poll() is not None:
                self._process = None
                raise AssertionError(f"the broker ended with {process.returncode}:\n{head}")
            time.sleep(0.01)
        self.kill()
        raise AssertionError(f"the broker was not ready in {START_SECONDS} s:\n{self.log()}")


def _is_harmless(name: str) -> bool:
    """The settings of the test are all there are: none leak in from the environment."""
    return not name.startswith(("KAFKA_", "OTTLA_"))


def _port_of(banner: str) -> int:
    found = re.search(r"://\S*:(\d+)", banner)
    assert found is not None, banner
    return int(found[1])


@contextmanager
def start_broker(
    directory: Path, arguments: Sequence[str] = (), /, *, kafka_opts: str = "", **settings: object
) -> Iterator[BrokerProcess]:
    """A started broker with its data under `directory`; ended when the block ends.

    `arguments` are of the command line, beside the settings. `kafka_opts` is the variable
    KAFKA_OPTS.
    """
    texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
    broker = BrokerProcess(directory / "broker", texts, arguments)
    broker.kafka_opts = kafka_opts
    try:
        broker.start()
        yield broker
    finally:
        if broker.is_running:
            broker.kill()
