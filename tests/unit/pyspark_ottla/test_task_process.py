"""What the first task of a process of Spark does for the tasks that follow."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_ottla.task_process import AcknowledgedReads, acknowledge_at_once

PROGRAM = """
import gc, sys
from types import SimpleNamespace
from pyspark import TaskContext
from pyspark_ottla.task_process import prepare_process

def main(infile, outfile): pass
worker = sys.modules["pyspark.worker"] = SimpleNamespace(main=main)
prepare_process()
found = [gc.get_freeze_count() > 1_000, worker.main is main]
TaskContext._getOrCreate()
prepare_process()
replaced = worker.main
found += [gc.get_freeze_count() > 1_000, worker.main is main]
gc.unfreeze()
prepare_process()
print(*found, gc.get_freeze_count() > 1_000, worker.main is replaced)
"""


def test_only_the_first_task_of_a_process_prepares_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False True True False False True\n", "")


class RecordedConnection:
    """Notes the options that are set."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int, int]] = []

    def setsockopt(self, *option: int) -> None:
        self.options.append(option)  # type: ignore[arg-type]


ACKNOWLEDGE = (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def test_each_read_is_acknowledged_and_waits_for_no_more_than_there_is() -> None:
    here, there = socket.socketpair()
    connection: Any = RecordedConnection()
    with here, there, here.makefile("rb") as file:
        there.sendall(b"early")
        assert file.peek(1) == b"early"  # the daemon reads a secret from the same file
        reads = AcknowledgedReads(file, connection)
        assert reads.readable()
        assert reads.fileno() == here.fileno()
        assert reads.read(100) == b"early"
        there.sendall(b"late")
        assert reads.read(100) == b"late"
        assert connection.options == [ACKNOWLEDGE] * 2
        there.close()
        assert reads.read(100) == b""


def connected_pair(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "unix":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_task_gets_what_the_jvm_sends_and_its_answer_is_not_delayed(kind: str) -> None:
    def main(infile: Any, outfile: Any) -> int:
        outfile.write(infile.read(4)[::-1])
        outfile.flush()
        return 7

    worker: Any = SimpleNamespace(main=main)
    acknowledge_at_once(worker)
    here, there = connected_pair(kind)
    with here, there, here.makefile("rb") as infile, here.makefile("wb") as outfile:
        for number in range(2):  # a process has one connection for all of its tasks
            there.sendall(b"%04d" % number)
            assert worker.main(infile, outfile) == 7
            assert there.recv(4) == (b"%04d" % number)[::-1]
        if kind == "tcp":
            assert here.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_default_timeout_of_a_task_does_not_reach_the_connection() -> None:
    worker: Any = SimpleNamespace(main=lambda infile, outfile: infile.read(4))
    acknowledge_at_once(worker)
    here, there = connected_pair("tcp")
    with here, there, here.makefile("rb") as infile:
        socket.setdefaulttimeout(30)  # as a function of a user does
        try:
            there.sendall(b"task")
            assert worker.main(infile, None) == b"task"
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(here.fileno())
