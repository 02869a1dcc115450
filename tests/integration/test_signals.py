"""What a broker does with signals, and while nothing reads its standard error."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.cli.zookeeper_server import free_port
from tests.doubles.broker_process import ROOT, start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually, is_listening

WAIT_SECONDS = 60.0
PIPE_BYTES = 1 << 16


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with start_broker(tmp_path) as broker:
        broker.send_signal(number)
        assert broker.wait_for_end() == 0
        assert f"stopping because of {number.name}" in broker.log()
        assert (broker.data_directory / ".kafka_cleanshutdown").exists()


def test_dumps_its_stacks_and_goes_on(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        broker.send_signal(signal.SIGQUIT)
        broker.wait_for_log("most recent call first")
        CommandLine(broker.bootstrap).done("topics", "create", "t")


def command(directory: Path, port: int) -> list[str]:
    """What starts a broker with a log of many lines."""
    settings = (
        f"log.dirs={directory / 'data'}",
        f"listeners=PLAINTEXT://127.0.0.1:{port}",
        "ottla.log.level=DEBUG",
    )
    overrides = (f"--override={each}" for each in settings)
    return [sys.executable, "-m", "ottla.broker", *overrides]


@contextmanager
def with_a_pipe(directory: Path, *prefix: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A broker whose output goes to a pipe that nothing reads, and its port."""
    port = free_port()
    process = subprocess.Popen(
        [*prefix, *command(directory, port)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        eventually(lambda: is_listening(port), seconds=WAIT_SECONDS)
        yield process, port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    with with_a_pipe(tmp_path) as (process, port):
        commands = CommandLine(f"127.0.0.1:{port}")
        for number in range(8):
            commands.done("topics", "create", f"t-{number}", "-p", "100")
        assert process.stdout is not None
        size = fcntl.ioctl(process.stdout.fileno(), termios.FIONREAD, bytes(4))
        assert int.from_bytes(size, sys.byteorder) > PIPE_BYTES - 4096, "the pipe is not full"
        process.send_signal(signal.SIGQUIT)
        commands.done("topics", "list")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_standard_output_that_was_closed_stops_nothing(tmp_path: Path) -> None:
    """As in `ottla start | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    port, errors = free_port(), tmp_path / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(command(tmp_path, port), cwd=ROOT, stdout=writer, stderr=file)
    os.close(writer)
    try:
        said = "is ready. Standard output cannot be written: Broken pipe"
        eventually(lambda: said in errors.read_text(), seconds=WAIT_SECONDS)
        CommandLine(f"127.0.0.1:{port}").done("topics", "create", "t")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
        assert "Traceback" not in errors.read_text()
    finally:
        process.kill()
        process.wait()


AFTER_THE_END = """
import asyncio, os, signal, sys
from ottla.broker.server.process import run_process

class Signal:
    def __del__(self, kill=os.kill, own=os.getpid(), number=signal.SIGTERM):
        kill(own, number)

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    return 0

last = Signal()  # lives until the interpreter has given signals their default again
sys.exit(run_process(main()))
"""


def test_a_signal_while_the_process_ends_changes_no_exit_code() -> None:
    """An impatient operator sends a second one after a clean stop."""
    ended = subprocess.run([sys.executable, "-c", AFTER_THE_END], cwd=ROOT, check=False)
    assert ended.returncode == 0


def test_nohup_keeps_it_running(tmp_path: Path) -> None:
    with with_a_pipe(tmp_path, "nohup") as (process, port):
        os.kill(process.pid, signal.SIGHUP)
        CommandLine(f"127.0.0.1:{port}").done("topics", "create", "t")
