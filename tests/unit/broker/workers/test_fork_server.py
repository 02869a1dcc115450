"""Ends of workers that the supervisor must survive."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from ottla.broker.workers.fork_server import _ForkServer
from ottla.broker.workers.supervisor import is_alive, signal_name


def test_a_fork_that_fails_is_reported_and_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end would be that of all workers."""

    def fork() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = _ForkServer(theirs, lambda *_: 0)
        server._received = json.dumps({"fork": 3, "ports": {}}).encode() + b"\n"
        server._obey()
        assert json.loads(ours.recv(1000)) == {"not_forked": 3, "errno": errno.EAGAIN}
        for descriptor in (server._wakeup, server._wakeup_writer):
            os.close(descriptor)


def test_signals_without_a_name() -> None:
    assert signal_name(signal.SIGKILL) == "SIGKILL"
    if hasattr(signal, "SIGRTMIN"):
        assert signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"


def test_a_worker_that_never_had_a_process_is_not_alive() -> None:
    """The process that forks has ended before it responded."""
    assert is_alive(os.getpid())
    assert not is_alive(0)


_SUPERVISOR = """
import signal, time
from ottla.broker.workers import fork_server

def run(number, ports):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("runs", flush=True)
    time.sleep(60)
    return 0

fork_server.ORPHANS_SECONDS = 0.2
_, control = fork_server.start_fork_server(run)
control.sendall(b'{"fork": 0, "ports": {}}\\n')
time.sleep(60)
"""


def test_a_worker_that_hangs_does_not_outlive_a_supervisor_that_was_killed() -> None:
    """It would keep its directories from the next supervisor."""
    with subprocess.Popen([sys.executable, "-c", _SUPERVISOR], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        process.kill()
        process.communicate(timeout=20)  # all processes that have the pipe have ended
