"""What happens in the Python processes of Spark before pyspark is imported."""

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

ROOT = Path(__file__).resolve().parents[3]
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


# The daemon and what its forked processes import, in Spark's zip, which says where it came from.
DAEMON_FILES = {
    "pyspark/__init__.py": "",
    "pyspark/sql/__init__.py": "",
    "pyspark/worker.py": "print('on the standard output')",
    "pyspark/daemon.py": """
import gc, sys
import pyspark
print(*sys.argv[1:], "pyspark.worker" in sys.modules, gc.get_freeze_count() > 1_000)
print(pyspark.__file__)
""",
    "pyarrow/__init__.py": "",
    "pyarrow/compute.py": "",
}


def run_daemon(
    work: Path, zip_path: str, folder: str | None, *, worker: str = "pyspark.worker"
) -> tuple[list[str], str]:
    """The lines of the daemon, and its standard error; with pyspark in the zip and the folder."""
    archive_path = work / zip_path
    archive_path.parent.mkdir(parents=True)
    with ZipFile(archive_path, "w") as archive:
        for name, text in DAEMON_FILES.items():
            archive.writestr(name, text)
            if folder is not None:
                path = work / folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{archive_path}:{FOLDER}"}
    command = [sys.executable, "-m", "pyspark.daemon", worker]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("zip_path", "folder"),
    [
        ("site/pyspark/python/lib/pyspark.zip", "site"),  # installed by pip
        ("home/python/lib/pyspark.zip", "home/python"),  # Spark's archive
        ("home/python/lib/pyspark.zip", None),  # no folder beside the zip
        ("mine/pyspark.zip", "mine"),  # not in a place of Spark's own
    ],
)
def test_pyspark_is_imported_from_the_folder_of_the_same_installation(
    tmp_path: Path, zip_path: str, folder: str | None
) -> None:
    lines, _ = run_daemon(tmp_path, zip_path, folder)
    has_folder = folder is not None and "lib" in zip_path
    place = tmp_path / (str(folder) if has_folder else zip_path)
    assert lines[1] == str(place / "pyspark" / "__init__.py")


def test_the_daemon_imports_once_what_its_processes_need(tmp_path: Path) -> None:
    lines, error = run_daemon(tmp_path, "home/python/lib/pyspark.zip", "home/python")
    assert lines[0] == "pyspark.worker True True"
    # Spark reads the port from the first bytes of the daemon's standard output.
    assert error == "on the standard output\n"


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ("pyspark.worker", "True True False"),
        ("pyspark.sql.worker.plan_data_source_read", "False False True"),
    ],
)
def test_the_daemon_imports_the_connector(worker: str, expected: str) -> None:
    program = """
import sys
names = ["read.task", "write.writing", "write.two_phase_commit"]
print(*("pyspark_ottla." + name in sys.modules for name in names))
"""
    environment = {**os.environ, "PYTHONPATH": f"{FOLDER}:{ROOT}"}
    # The words of the command line of a daemon, in a process that says what it has.
    command = [sys.executable, "-c", program, "pyspark.daemon", worker]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (expected + "\n", "")


def test_a_daemon_whose_imports_fail_starts(tmp_path: Path) -> None:
    lines, error = run_daemon(
        tmp_path, "home/python/lib/pyspark.zip", None, worker="pyspark.missing"
    )
    assert (lines[0], error) == ("pyspark.missing False False", "")


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
    assert environment["PYTHONPATH"] == f"{FOLDER}:/mine"
