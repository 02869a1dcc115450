"""`ottla cluster start`: ZooKeeper and brokers on this machine, and nothing left of them."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from ottla.cli.cluster_start import run_cluster
from ottla.cli.output import Failure
from ottla.cli.zookeeper_server import find_java, zookeeper_jars
from tests.doubles.command_line import CommandLine
from tests.doubles.console_client import ConsoleClient
from tests.doubles.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]

# As a script starts a command with &: with SIGINT ignored. It stops the cluster all the same.
IN_THE_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")


def two_free_ports() -> int:
    """The lower of two neighbours that are free, below the range that outgoing connections use."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as lower, socket.socket() as upper:
            try:
                lower.bind(("127.0.0.1", port))
                upper.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@pytest.mark.parametrize(
    "zookeeper", [[], pytest.param(["--java-zookeeper"], marks=pytest.mark.zookeeper)]
)
def test_a_cluster_of_two_from_start_to_interrupt(tmp_path: Path, zookeeper: list[str]) -> None:
    if zookeeper:
        try:
            find_java(), zookeeper_jars()
        except Failure as failure:
            pytest.skip(str(failure))
    port = two_free_ports()
    options = ["--brokers", "2", "--directory", str(tmp_path / "cluster"), "--port", str(port)]
    options += zookeeper
    process = subprocess.Popen(
        [*IN_THE_BACKGROUND, sys.executable, "-m", "ottla.cli.main", "cluster", "start", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        banner = process.stdout.readline()
        assert banner == f"2 broker(s) started: 127.0.0.1:{port},127.0.0.1:{port + 1}\n", (
            process.communicate(timeout=60)
        )
        ottla = CommandLine(f"127.0.0.1:{port}")
        info = ottla.done("cluster", "info", "--json").value
        assert [row["broker"] for row in info["brokers"]] == [0, 1]
        created = ottla.done("topics", "create", "spread")
        assert created.output == "Topic spread created: 1 partition, 2 replicas each.\n"
        ottla.done("produce", "spread", "-q", text="to both\n")
        assert ottla.done("consume", "spread").output == "to both\n"
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "The cluster is stopped.\n")
    for number in (port, port + 1):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", number)) != 0
    assert "stopped cleanly" in (tmp_path / "cluster" / "broker-0.log").read_text()


def _banner(output: IO[str]) -> list[str]:
    """The lines until all brokers serve."""
    lines = [output.readline()]
    while "Ctrl-C stops all." not in lines[-1]:
        lines.append(output.readline())
        assert lines[-1], lines
    return lines


def test_the_consoles_are_opened_to_a_phone(tmp_path: Path) -> None:
    """With a token that is in the address of the page, and in no list of processes."""
    port = two_free_ports()
    options = ["--brokers", "1", "--directory", str(tmp_path), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.main", "cluster", "start", "--remote-console", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        banner = "".join(_banner(process.stdout))
        found = re.search(
            rf"phone .*: http://(\S+):{port + 1000}/console#token=(\S{{16,}})", banner
        )
        assert found is not None, banner
        assert not found[1].startswith("127.")
        assert ConsoleClient(port + 1000, found[2]).get("overview")["broker_id"] == 0
        assert ConsoleClient(port + 1000).send("GET", "overview")[0] == 401
        children = psutil.Process(process.pid).children()
        assert all(found[2] not in " ".join(each.cmdline()) for each in children)
        (address, *_), = [
            each.laddr
            for child in children
            for each in child.net_connections()
            if each.status == "LISTEN" and each.laddr.port == port + 1000
        ][:1]  # fmt: skip
        assert address in ("0.0.0.0", "::")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_a_broker_that_ends_is_named_and_restarted(tmp_path: Path) -> None:
    port = two_free_ports()
    options = ["--brokers", "2", "--directory", str(tmp_path), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.main", "cluster", "start", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ottla = CommandLine(f"127.0.0.1:{port},127.0.0.1:{port + 1}")
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        banner = _banner(process.stdout)
        assert f"    console and health checks: http://127.0.0.1:{port + 1001}/\n" in banner
        ottla.done("topics", "create", "spread", "--partitions", "4")
        healthy = ottla.done("status", "--json").value
        assert healthy["ok"]
        assert [row["state"] for row in healthy["brokers"]] == ["ready", "ready"]
        children = psutil.Process(process.pid).children()
        [broker] = [each for each in children if "--override=broker.id=1" in each.cmdline()]
        broker.kill()
        assert process.stderr.readline().startswith("broker 1 has ended by SIGKILL (log: ")
        # At once, and not only when the session of the broker has ended.
        missed = ottla("status", "--json").value["problems"]
        assert any("broker 1 does not respond: " in each or "not in" in each for each in missed)
        missing = "brokers with replicas are not in the cluster: 1 (4)"
        eventually(lambda: missing in ottla("doctor").output, "broker 1 is missed")
        doctor = ottla("doctor")
        assert doctor.code == 1
        assert "under-replicated partitions: 4 (spread-0" in doctor.output
        again = ottla.done("cluster", "restart", "1", "--directory", str(tmp_path))
        assert again.output == "Broker 1 is restarted.\n"
        assert process.stdout.readline() == "broker 1 is restarted.\n"
        eventually(lambda: ottla("doctor").code == 0, "the cluster is well again")
        assert "has no broker 7" in ottla("cluster", "restart", "7", "-d", str(tmp_path)).errors
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    left = ottla("cluster", "restart", "1", "--directory", str(tmp_path))
    assert left.code == 1
    assert "no `ottla cluster start` runs in" in left.errors


@pytest.fixture
def hang_up_is_not_ignored() -> Iterator[None]:
    """Tests that nohup started have it ignored, and what they start as well."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "signals", [(signal.SIGINT, signal.SIGINT), (signal.SIGHUP,)], ids=["twice", "terminal closed"]
)
@pytest.mark.usefixtures("hang_up_is_not_ignored")
def test_no_process_is_left(tmp_path: Path, signals: tuple[signal.Signals, ...]) -> None:
    options = ["--brokers", "2", "--directory", str(tmp_path), "--port", str(two_free_ports())]
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.main", "cluster", "start", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    banner = _banner(process.stdout)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)  # the first one has begun to stop the broker
    process.communicate(timeout=60)
    assert process.returncode == 0
    [zookeeper] = [int(line.rpartition(":")[2]) for line in banner if "ZooKeeper" in line]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", zookeeper)) != 0
    assert "stopped cleanly" in (tmp_path / "broker-0.log").read_text()


def test_ctrl_c_while_the_command_exits_changes_nothing(tmp_path: Path) -> None:
    options = ["--brokers", "1", "--directory", str(tmp_path), "--port", str(two_free_ports())]
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.main", "cluster", "start", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    _banner(process.stdout)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "The cluster is stopped.\n"
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_without_java_the_error_has_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(Failure, match=r"ZooKeeper needs Java, which was not found.*ottla start\."):
        find_java()


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.getsignal(number) for number in numbers]
        try:
            with pytest.raises(Failure, match=f"port {port} cannot be used"):
                run_cluster(1, str(tmp_path), port, [])
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("port", ["0", "-5", "65534", "99999"])
def test_ports_that_cannot_be_are_wrong_usage(tmp_path: Path, port: str) -> None:
    options = ["--port", port, "--brokers", "3", "--directory", str(tmp_path)]
    done = CommandLine("127.0.0.1:1")("cluster", "start", *options)
    assert (done.code, "Traceback" in done.errors) == (2, False)
    assert not list(tmp_path.iterdir())
