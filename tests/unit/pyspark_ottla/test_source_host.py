"""The processes of streaming sources are forked from one that has the imports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
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
import os, time
while os.path.exists("busy"):
    time.sleep(0.01)
def local_connect_and_auth(*given):
    raise AssertionError("a second connection")
""",
    "sitecustomize.py": """
import os, threading, time
if os.environ.get("QUERY") == "threads":
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
""",
    "pyspark/sql/__init__.py": "",
    "pyspark/sql/streaming/__init__.py": "",
    f"{MODULE.replace('.', '/')}.py": """
import os
from pyspark.util import local_connect_and_auth
file, connection = local_connect_and_auth(1, "secret")
connection.settimeout(None)
file.write(f"{os.getpid()} {os.environ['QUERY']} {os.getcwd()}\\n".encode())
first = file.readline()
print("on the standard output", flush=True)  # before a test can end this process
file.write(first)
file.flush()
file.read()
""",
}
# Starts what its input names and ends with it, as the JVM does.
JVM = """
import os, signal, subprocess, sys
ENVIRONMENTS = {"tz": {"TZ": "Asia/Tokyo"}}
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as pyspark starts it in an interactive session
for line in sys.stdin:
    environment = {**os.environ, "QUERY": line.strip(), **ENVIRONMENTS.get(line.strip(), {})}
    command = [sys.executable, "-m", os.environ["MODULE"]]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    print(process.pid, flush=True)
    output, _ = process.communicate()
    print(output.decode().strip(), process.returncode, flush=True)
"""


class Jvm:
    """A process in the place of the JVM, and the connections of what it starts."""

    def __init__(self, work: Path, secret: str | None = None) -> None:
        for name, text in FILES.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.work = work
        self.directory = work / "h"
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(60)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{FOLDER}:{work}",
            HOST_VARIABLE: "h",
            "MODULE": MODULE,
            "PYTHON_WORKER_FACTORY_PORT": str(self._server.getsockname()[1]),
        }
        self._secret = secret
        environment.pop("PYTHON_WORKER_FACTORY_SECRET", None)
        if secret is not None:
            environment["PYTHON_WORKER_FACTORY_SECRET"] = secret
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
        self._query = query
        self.process.stdin.write(f"{query}\n")
        self.process.stdin.flush()
        started = int(self.process.stdout.readline())
        connection = self.accepted()
        with connection.makefile("r") as file:
            said = file.readline().split()
            assert file.readline() == f"{query} begins\n"
            return started, connection, said

    def accepted(self) -> socket.socket:
        """The next connection; what a query begins with is sent together with the `ok`."""
        connection, _ = self._server.accept()
        connection.settimeout(20)
        first = b""
        if self._secret is not None:
            content = self._secret.encode()
            expected = len(content).to_bytes(4, "big") + content
            while len(first) < len(expected):
                first += connection.recv(100)
            assert first == expected
            first = (2).to_bytes(4, "big") + b"ok"
        connection.sendall(first + f"{self._query} begins\n".encode())
        return connection

    def run(self, query: str) -> tuple[int, list[str]]:
        """The process that was started, and what the one that served it says."""
        started, connection, said = self.start(query)
        connection.close()
        assert self.ended() == "on the standard output 0"
        return started, said

    def ended(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def hosts(self) -> list[Path]:
        return list(self.directory.iterdir()) if self.directory.exists() else []

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
    assert len(jvm.hosts()) == 1
    assert jvm.directory.stat().st_mode & 0o777 == 0o700
    jvm.process.kill()
    eventually(lambda: not jvm.directory.exists(), "the host does not end with the JVM")


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
    [path] = jvm.hosts()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as killed:  # leaves its file behind
        killed.bind(str(path))
    started, said = jvm.run("b")
    assert (int(said[0]), jvm.imports()) == (started, 2)
    started, said = jvm.run("c")
    assert (int(said[0]) != started, jvm.imports()) == (True, 2), "another host"


def test_a_driver_has_one_directory_and_does_not_make_it() -> None:
    environment: dict[str, str] = {}
    connect_early(environment)
    assert not Path(environment[HOST_VARIABLE]).exists()
    again: dict[str, str] = {}
    connect_early(again)
    assert again == environment


def test_what_follows_the_authentication_reaches_the_forked_process(tmp_path: Path) -> None:
    jvm = Jvm(tmp_path, secret="s3cret")
    try:
        jvm.run("a")
        started, said = jvm.run("b")
        assert int(said[0]) != started
    finally:
        jvm.close()


def test_an_interrupt_that_the_jvm_ignores_does_not_end_a_query(jvm: Jvm) -> None:
    jvm.run("a")
    started, connection, _ = jvm.start("b")
    os.kill(started, signal.SIGINT)
    connection.close()
    assert jvm.ended() == "on the standard output 0"


def test_no_host_is_left_to_a_jvm_that_has_ended(jvm: Jvm) -> None:
    busy = jvm.work / "busy"
    busy.touch()
    assert jvm.process.stdin is not None
    assert jvm.process.stdout is not None
    jvm._query = "a"
    jvm.process.stdin.write("a\n")
    jvm.process.stdin.flush()
    started = int(jvm.process.stdout.readline())
    with jvm.accepted() as connection:
        jvm.process.kill()
        jvm.process.wait()
        busy.unlink()
        with connection.makefile("r") as file:
            assert file.readline().split()[0] == str(started)
        assert not jvm.hosts()


@pytest.mark.parametrize(("query", "hosts"), [("tz", 2), ("threads", 0)])
def test_a_process_that_starts_otherwise_is_not_forked_from_the_same(
    jvm: Jvm, query: str, hosts: int
) -> None:
    first = "threads" if query == "threads" else "a"
    jvm.run(first)
    started, said = jvm.run(query)
    assert int(said[0]) == started
    assert len(jvm.hosts()) == hosts


def test_a_host_of_another_user_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    host = import_module("ottla_source_host")
    path = host.address(str(tmp_path))
    here, there = socket.socketpair()
    with here, there, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        monkeypatch.setattr(host, "RESPONSE_SECONDS", 0.1)
        host.delegate(str(tmp_path), here)
        control, _ = listener.accept()
        with control:
            assert control.recv(1) == b""


def test_a_forked_child_of_the_driver_leaves_the_directory() -> None:
    program = """
import os, sys
from pyspark_ottla.early_connection import connect_early
environment = {}
connect_early(environment)
os.mkdir(environment["OTTLA_SOURCE_HOST"])
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
print(os.path.isdir(environment["OTTLA_SOURCE_HOST"]), environment["OTTLA_SOURCE_HOST"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    is_there, directory = done.stdout.split()
    assert is_there == "True"
    assert not Path(directory).exists()
