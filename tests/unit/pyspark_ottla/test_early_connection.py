"""A Python process of a streaming source connects before pyspark is imported."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from zipfile import ZipFile

import pytest

from pyspark_ottla.early_connection import FOLDER, connect_early

RUNNER = "pyspark/sql/streaming/python_streaming_source_runner.py"
# As much of pyspark as the process needs; it waits for the file that the test writes.
FILES = {
    "pyspark/__init__.py": """
import os, time
while not os.path.exists("go on"):
    time.sleep(0.01)
""",
    "pyspark/errors.py": "",
    "pyspark/util.py": """
import pyspark.errors
def local_connect_and_auth(*given):
    raise AssertionError("a second connection")
""",
    "pyspark/sql/__init__.py": "",
    "pyspark/sql/streaming/__init__.py": "",
    RUNNER: """
from pyspark.util import local_connect_and_auth
file, connection = local_connect_and_auth(1, "secret")
connection.settimeout(None)
file.write(b"hello")
file.flush()
""",
    "other/sitecustomize.py": "open('ran', 'w').close()",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_the_connection_is_there_before_pyspark(tmp_path: Path, kind: str, packed: bool) -> None:
    """Spark has its Python in a zip, whose loader is the same for all modules."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    source = tmp_path
    if packed:
        source = tmp_path / "pyspark.zip"
        with ZipFile(source, "w") as archive:
            for name, text in FILES.items():
                if name.startswith("pyspark/"):
                    archive.writestr(name, text)
        rmtree(tmp_path / "pyspark")
    environment = {**os.environ, "PYTHONPATH": f"{FOLDER}:{source}:{tmp_path / 'other'}"}
    if kind == "unix":
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / "socket"))
        environment["PYTHON_WORKER_FACTORY_SOCK_PATH"] = str(tmp_path / "socket")
    else:
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        environment["PYTHON_WORKER_FACTORY_PORT"] = str(server.getsockname()[1])
        environment["PYTHON_WORKER_FACTORY_SECRET"] = "secret"
    server.listen()
    server.settimeout(60)
    module = RUNNER.removesuffix(".py").replace("/", ".")
    with (
        server,
        subprocess.Popen(
            [sys.executable, "-m", module], cwd=tmp_path, env=environment, stderr=subprocess.PIPE
        ) as process,
    ):
        connection, _ = server.accept()  # pyspark still waits
        with connection, connection.makefile("rwb") as file:
            if kind == "tcp":
                assert file.read(4 + 6) == b"\0\0\0\x06secret"
                file.write(b"\0\0\0\x02ok")
                file.flush()
            (tmp_path / "go on").touch()
            assert file.read(5) == b"hello", process.stderr and process.stderr.read()
        assert process.wait(60) == 0
    assert (tmp_path / "ran").exists(), "the machine's own sitecustomize"


def test_other_processes_are_left_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": FOLDER}
    command = "import sys; print('socket' in sys.modules, len(sys.meta_path))"
    with_it = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True
    )
    plain = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert with_it.stdout == plain.stdout
    assert with_it.stderr == ""


def test_the_folder_is_added_once() -> None:
    environment = {"PYTHONPATH": "/mine"}
    for _ in range(2):
        connect_early(environment)
    assert environment == {"PYTHONPATH": f"{FOLDER}:/mine"}
