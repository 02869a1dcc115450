"""`ottla cluster start`: a ZooKeeper and several brokers as processes of this machine.

For trials without Docker. The brokers are started as by `ottla start`; at the end, or at Ctrl-C,
the brokers are stopped, then ZooKeeper.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ottla.cli.health import Unhealthy
from ottla.cli.healthcheck import request_metadata
from ottla.cli.output import Failure, note, usage
from ottla.cli.zookeeper_server import free_port, server_command

START_SECONDS = 60.0
STOP_SECONDS = 30.0
_PROBE_SECONDS = 0.05
_REQUEST_SECONDS = 5.0
# Shorter than Kafka's 18 s: on one machine the failure of a broker is detected soon.
SESSION_TIMEOUT_MS = 6000
TICK_TIME_MS = 500
MAX_PORT = 65_535
# The ports of the brokers' HTTP servers begin so far above their own.
HTTP_PORT_ABOVE = 1000
# Between two looks at the processes and at what `ottla cluster restart` asks for.
_LOOK_SECONDS = 0.5
# In the directory of the cluster: the pid of `ottla cluster start`, and a request for a restart.
PID_FILE, RESTART_PREFIX = "cluster.pid", "restart-"


def run_cluster(
    brokers: int,
    directory: str,
    port: int,
    overrides: Sequence[str],
    *,
    http_port: int = 0,
    remote_console: bool = False,
    java: bool = False,
) -> None:
    """Start the cluster, print its addresses, and wait for Ctrl-C or SIGTERM.

    `http_port` is that of the first broker; 0: 1,000 above `port`. With `remote_console` the
    consoles serve other machines, too, with a new token, which is in the address that is printed.
    """
    console_token = secrets.token_urlsafe(16) if remote_console else ""
    http_port = http_port or port + HTTP_PORT_ABOVE
    for option, first in (("--port", port), ("--http-port", http_port)):
        if first + brokers - 1 > MAX_PORT:
            raise usage(f"{option} {first}: the ports of {brokers} brokers end above {MAX_PORT}.")
    # Also SIGINT: a script that starts a command in the background has it ignored. With SIGHUP a
    # terminal is closed; nohup has that one ignored.
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, lambda received, _: _received.append(received))
    _received.clear()
    try:
        with started_cluster(
            brokers,
            Path(directory),
            port,
            overrides,
            http_port=http_port,
            console_token=console_token,
            java=java,
        ) as cluster:
            print(f"{brokers} broker(s) started: {cluster.bootstrap}")
            for broker_id, process in enumerate(cluster.brokers):
                print(f"  {process.name}: 127.0.0.1:{port + broker_id}")
                print(f"    console and health checks: http://127.0.0.1:{http_port + broker_id}/")
                if console_token:
                    place = f"{own_address()}:{http_port + broker_id}"
                    address = f"http://{place}/console#token={console_token}"
                    print(f"    from a phone or another machine: {address}")
            print(f"  ZooKeeper {cluster.zookeeper}")
            print(f"  data and logs in {cluster.directory}")
            print(f"  export OTTLA_BOOTSTRAP={cluster.bootstrap}")
            print("`ottla cluster restart ID` restarts a broker. Ctrl-C stops all.", flush=True)
            cluster.wait()
    except KeyboardInterrupt:
        # The interpreter takes handlers away when it exits, but leaves what is ignored: one more
        # Ctrl-C of an impatient operator would make this end look like a failure.
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        note("The cluster is stopped.")


def own_address() -> str:
    """The address of this machine in its network; its name if it is in none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the system chooses the address that would be used. RFC 5737.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


# Signals to stop. They raise nothing where they come: a process would be started without being
# known, and a second Ctrl-C would leave those that are not stopped yet.
_received: list[int] = []


def _pause(seconds: float) -> None:
    """Raises KeyboardInterrupt if a signal came."""
    if _received:
        raise KeyboardInterrupt
    time.sleep(seconds)


class Process:
    """One child process with its output in a file."""

    def __init__(
        self, name: str, command: list[str], output: Path, more: Mapping[str, str] | None = None
    ) -> None:
        """`more` are variables beside those of this process."""
        self._environment = {**os.environ, **(more or {})}
        self.name = name
        self.output = output
        self._command = command
        self.start()

    def start(self) -> None:
        """Start the process, at first or again."""
        self.has_reported_end = False
        with self.output.open("ab") as sink:
            self._begin = sink.tell()
            # A new session: Ctrl-C reaches this process only, which stops the others in order.
            self.popen = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def last_line(self) -> str:
        """The last line of its output since this start."""
        lines = [line for line in self.text().splitlines() if line.strip()]
        return lines[-1] if lines else "without output"

    def text(self) -> str:
        """Its output since this start."""
        with self.output.open("rb") as source:
            source.seek(self._begin)
            return source.read().decode(errors="replace")

    def wait_for_port(self, port: int) -> None:
        """Returns when the port is open; raises Failure with the last line if the process ends."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self.popen.poll() is not None:
                raise Failure(f"{self.name} did not start: {self.last_line} (log: {self.output})")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise Failure(
                        f"{self.name} did not open port {port} in {START_SECONDS:g} s; "
                        f"see {self.output}"
                    ) from None
            _pause(_PROBE_SECONDS)

    def stop(self, number: signal.Signals) -> None:
        """Sends a signal and waits; kills the process after STOP_SECONDS."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        try:
            self.popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class LocalCluster:
    """The running processes."""

    def __init__(
        self, directory: Path, zookeeper: str, first_port: int, console_token: str = ""
    ) -> None:
        self.console_token = console_token
        self.directory = directory
        self.zookeeper = zookeeper
        self.brokers: list[Process] = []
        self._first_port = first_port

    @property
    def bootstrap(self) -> str:
        """All brokers as host:port with commas."""
        ports = range(self._first_port, self._first_port + len(self.brokers))
        return ",".join(f"127.0.0.1:{port}" for port in ports)

    def wait(self) -> None:
        """Raises Failure when all brokers have ended; a cluster that lost one broker continues.

        Meanwhile it says which broker has ended, and restarts those that a file asks for.
        """
        while any(broker.popen.poll() is None for broker in self.brokers):
            for number, broker in enumerate(self.brokers):
                self._report_end(number, broker)
                request = self.directory / f"{RESTART_PREFIX}{number}"
                if request.exists():
                    self._restart(number, broker)
                    request.unlink(missing_ok=True)
            _pause(_LOOK_SECONDS)
        raise Failure(f"all brokers have ended; their logs are in {self.directory}.")

    def _report_end(self, number: int, broker: Process) -> None:
        code = broker.popen.poll()
        if code is None or broker.has_reported_end:
            return
        broker.has_reported_end = True
        if code < 0:
            how = f"by {signal.Signals(-code).name}"
        else:
            how = f"with code {code}: {broker.last_line}"
        note(
            f"{broker.name} has ended {how} (log: {broker.output}); "
            f"`ottla cluster restart {number} --directory {self.directory}` starts it again"
        )

    def _restart(self, number: int, broker: Process) -> None:
        broker.stop(signal.SIGTERM)
        broker.start()
        try:
            broker.wait_for_port(self._first_port + number)
        except Failure as error:
            note(str(error))
            broker.has_reported_end = True
        else:
            print(f"{broker.name} is restarted.", flush=True)


def request_restart(directory: str, number: int) -> None:
    """Have the `ottla cluster start` of a directory restart a broker, and wait until it has.

    Raises Failure if none runs, or there is no such broker.
    """
    folder = Path(directory).resolve()
    try:
        pid = int((folder / PID_FILE).read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        raise Failure(
            f"no `ottla cluster start` runs in {folder}; name its directory with --directory."
        ) from None
    if not (folder / f"broker-{number}.log").exists():
        raise Failure(f"the cluster in {folder} has no broker {number}.")
    request = folder / f"{RESTART_PREFIX}{number}"
    request.touch()
    deadline = time.monotonic() + START_SECONDS + STOP_SECONDS
    while request.exists():
        if time.monotonic() > deadline:
            request.unlink(missing_ok=True)
            raise Failure(f"broker {number} was not restarted; see {folder}/broker-{number}.log")
        time.sleep(_PROBE_SECONDS)


@contextmanager
def started_cluster(
    brokers: int,
    directory: Path,
    port: int,
    overrides: Sequence[str] = (),
    *,
    http_port: int = 0,
    console_token: str = "",
    java: bool = False,
) -> Iterator[LocalCluster]:
    """A cluster that serves clients; stopped when the block ends. Data stays in `directory`.

    `http_port` is the HTTP port of the first broker; 0 for none. With `console_token` it is open to
    other machines.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(brokers):
        _check_free(port + number, "--port")
        if http_port:
            _check_free(http_port + number, "--http-port")
    zookeeper_port = free_port()
    zookeeper = start_zookeeper(directory, zookeeper_port, java=java)
    cluster = LocalCluster(directory, f"127.0.0.1:{zookeeper_port}", port, console_token)
    try:
        zookeeper.wait_for_port(zookeeper_port)
        for number in range(brokers):
            host = "" if console_token else "127.0.0.1"
            http = f"{host}:{http_port + number}" if http_port else ""
            process = _start_broker(cluster, number, port + number, brokers, http, overrides)
            cluster.brokers.append(process)
        for number, process in enumerate(cluster.brokers):
            process.wait_for_port(port + number)
            _wait_until_known(process, port + number, brokers)
        for left in directory.glob(f"{RESTART_PREFIX}*"):
            left.unlink()
        (directory / PID_FILE).write_text(f"{os.getpid()}\n")
        yield cluster
    finally:
        (directory / PID_FILE).unlink(missing_ok=True)
        # All brokers get the signal before the first is waited for: when all brokers stop, none can
        # take over leaderships, so no broker should wait for another.
        for process in cluster.brokers:
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGTERM)
        for process in cluster.brokers:
            process.stop(signal.SIGTERM)
        zookeeper.stop(signal.SIGKILL)  # it has written all that it has acknowledged


def _wait_until_known(process: Process, port: int, brokers: int) -> None:
    """Returns when the metadata of this broker has all brokers and the controller: the port is open
    before the first UpdateMetadata of the controller."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            response = request_metadata(f"127.0.0.1:{port}", _REQUEST_SECONDS)
            if len(response.brokers) == brokers and response.controller_id >= 0:
                return
        except Unhealthy:
            if process.popen.poll() is not None:
                break
        _pause(_PROBE_SECONDS)
    raise Failure(f"{process.name} has no metadata of the other brokers; see {process.output}")


def start_zookeeper(directory: Path, port: int, *, java: bool) -> Process:
    """A ZooKeeper server on 127.0.0.1 with its data under `directory`.

    It is `ottla zookeeper` if `java` is false and the directory has no data of Apache ZooKeeper.
    """
    home = directory / "zookeeper"
    if java or (home / "zoo.cfg").exists():
        command = server_command(home, port)
    else:
        command = [sys.executable, "-m", "ottla.cli.main", "zookeeper", f"--port={port}"]
        command += [f"--data-dir={home}", f"--tick-time-ms={TICK_TIME_MS}"]
    return Process("ZooKeeper", command, directory / "zookeeper.log")


def _start_broker(
    cluster: LocalCluster,
    number: int,
    port: int,
    brokers: int,
    http: str,
    overrides: Sequence[str],
) -> Process:
    from ottla.broker.config.resource_rules import replica_settings  # not for --help

    settings: dict[str, object] = {
        "broker.id": number,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": cluster.directory / f"broker-{number}",
        "zookeeper.connect": cluster.zookeeper,
        "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
        **replica_settings(brokers),
        "group.initial.rebalance.delay.ms": 0,
        "controlled.shutdown.max.retries": 1,
        "controlled.shutdown.retry.backoff.ms": 100,
    }
    if http:
        settings |= {"ottla.metrics.address": http, "ottla.console.enable": "true"}
    # The list of processes has their arguments; it has no variables of other users.
    more = {}
    if cluster.console_token:
        settings["ottla.console.allow.remote"] = "true"
        more["OTTLA_CONSOLE_TOKEN"] = cluster.console_token
    command = [sys.executable, "-m", "ottla.cli.main", "start"]
    command += [f"--override={name}={value}" for name, value in settings.items()]
    command += [f"--override={text}" for text in overrides]
    return Process(f"broker {number}", command, cluster.directory / f"broker-{number}.log", more)


def _check_free(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise Failure(
                f"port {port} cannot be used ({error.strerror}); choose another with {option}."
            ) from None
