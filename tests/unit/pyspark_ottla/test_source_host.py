"""The processes of streaming sources are forked from one that has the imports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ottla.early_connection import FOLDER, HOST_VARIABLE, connect_early
from tests.doubles.eventually import eventually

MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
# As much of pyspark as the process needs; it notes each import.
FILES = {
    "pyspark/__init__.py": """
with open("imports", "a") as file:
    file.write("x")
""",
    "pyspark/util.py": """
def local_connect_and_auth(*given):
    raise AssertionError("a second connection")
""",
    "pyspark/sql/__init__.py": "",
    "pyspark/sql/streaming/__init__.py": "",
    f"{MODULE.replace('.', '/')}.py": """
import os
from pyspark.util import local_connect_and_auth
file, connection = local_connect_and_auth(1, "secret")
connection.settimeout(None)
print("on the standard output", flush=True)
file.write(f"{os.getpid()} {os.environ['QUERY']} {os.getcwd()}\\n".encode())
file.flush()
file.read()
""",
}
# Starts what its input names and ends with it, as the JVM does.
JVM = """
import os, subprocess, sys
for line in sys.stdin:
    environment = {**os.environ, "QUERY": line.strip()}
    command = [sys.executable, "-m", os.environ["MODULE"]]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    print(process.pid, flush=True)
    output, _ = process.communicate()
    print(output.decode().strip(), process.returncode, flush=True)
"""


class Jvm:
    """A process in the place of the JVM, and the connections of what it starts."""

    def __init__(self, work: Path) -> None:
        for name, text in FILES.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.work = work
        self.hosts = work / "h"
        self.hosts.mkdir()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(60)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{FOLDER}:{work}",
            HOST_VARIABLE: "h",
            "MODULE": MODULE,
            "PYTHON_WORKER_FACTORY_PORT": str(self._server.getsockname()[1]),
        }
        environment.pop("PYTHON_WORKER_FACTORY_SECRET", None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", JVM],
            cwd=work,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, query: str) -> tuple[int, socket.socket, list[str]]:
        """The process that was started, its connection, and what it says there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{query}\n")
        self.process.stdin.flush()
        started = int(self.process.stdout.readline())
        connection, _ = self._server.accept()
        with connection.makefile("r") as file:
            return started, connection, file.readline().split()

    def run(self, query: str) -> tuple[int, list[str]]:
        """The process that was started, and what the one that served it says."""
        started, connection, said = self.start(query)
        connection.close()
        assert self.ended() == "on the standard output 0"
        return started, said

    def ended(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def imports(self) -> int:
        return (self.work / "imports").stat().st_size

    def close(self) -> None:
        with self.process, self._server:
            self.process.kill()


@pytest.fixture
def jvm(tmp_path: Path) -> Iterator[Jvm]:
    jvm = Jvm(tmp_path)
    try:
        yield jvm
    finally:
        jvm.close()


def test_only_the_first_query_imports(jvm: Jvm) -> None:
    for number, query in enumerate("abc"):
        started, said = jvm.run(query)
        assert said[1:] == [query, str(jvm.work)], "environment and directory of its own"
        assert (int(said[0]) == started) == (number == 0)
    assert jvm.imports() == 1
    assert len(list(jvm.hosts.iterdir())) == 1
    jvm.process.kill()
    eventually(lambda: not list(jvm.hosts.iterdir()), "the host does not end with the JVM")


def test_a_process_ends_with_the_one_that_spark_ends(jvm: Jvm) -> None:
    jvm.run("a")
    started, connection, said = jvm.start("b")
    with connection:
        assert int(said[0]) != started
        os.kill(started, signal.SIGTERM)
        assert connection.recv(1) == b""
    assert jvm.ended() == f"on the standard output {-signal.SIGTERM}"


def test_without_its_host_a_process_does_everything_itself(jvm: Jvm) -> None:
    jvm.run("a")
    [path] = jvm.hosts.iterdir()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as killed:  # leaves its file behind
        killed.bind(str(path))
    started, said = jvm.run("b")
    assert (int(said[0]), jvm.imports()) == (started, 2)
    started, said = jvm.run("c")
    assert (int(said[0]) != started, jvm.imports()) == (True, 2), "another host"


def test_the_directory_of_hosts_is_of_this_user_only() -> None:
    environment: dict[str, str] = {}
    connect_early(environment)
    assert Path(environment[HOST_VARIABLE]).stat().st_mode & 0o777 == 0o700
    again: dict[str, str] = {}
    connect_early(again)
    assert again == environment
