"""`make compat-spark-package`: the zip of the connector in more ways than `make test` has time for.

With `addPyFile`, through Spark Connect, and on Python 3.10 where there is one. Downloads pyarrow,
numpy and what Spark Connect needs into environments of their own; minutes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import py4j
import pyspark
import pytest

from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import is_listening
from tests.doubles.standalone_spark import standalone_cluster
from tests.spark.compose_profile import job_command
from tests.spark.conftest import ROOT
from tests.spark.crashing_writes import committed_values
from tests.spark.shipping import (
    CODECS,
    HERE,
    RECORDS,
    bare_python,
    check_found,
    check_written,
    environment_of,
    link,
    prepare_topics,
    submit,
    write_zip,
)
from tests.spark.support import Sent, create_topic, write

TRANSFORM = HERE / "shipped_transform.py"
# Spark gives the Python process of a source ten seconds to start, which a busy machine can miss.
RESTARTS_MAX = 4
CONNECT_NEEDS = ("pandas", "grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


def python_3_10() -> str | None:
    """A Python 3.10 that works: the one that OTTLA_PYTHON_3_10 names, or one on the path."""
    for name in (os.environ.get("OTTLA_PYTHON_3_10"), "python3.10"):
        try:
            done = subprocess.run(
                [name or "", "-c", "import sys; print(sys.version_info[:2])"],
                capture_output=True,
                text=True,
            )
        except OSError:
            continue
        if done.stdout.strip() == "(3, 10)":
            return name
    return None


def new_environment(python: str, place: Path, *packages: str) -> Path:
    """A Python with this process's pyspark, and with what pip installs for that Python."""
    subprocess.run([python, "-m", "venv", str(place)], check=True)
    executable = place / "bin" / "python"
    command = [str(executable), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*command, "pyarrow", "numpy", *packages], check=True)
    [site] = place.glob("lib/python*/site-packages")
    link(pyspark, site)
    link(py4j, site)
    return executable


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path / "broker") as process:
        prepare_topics(process.bootstrap)
        yield process


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_zip(tmp_path / "pyspark_ottla.zip")


def test_add_py_file(broker: BrokerProcess, archive: Path, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "environment")
    arguments = [broker.bootstrap, "", str(archive), str(TRANSFORM)]
    check_found(submit(python, tmp_path, [], arguments), archive)
    check_written(broker.bootstrap)


def test_python_3_10(broker: BrokerProcess, archive: Path, tmp_path: Path) -> None:
    base = python_3_10()
    if base is None:
        pytest.skip("there is no Python 3.10; OTTLA_PYTHON_3_10 may name one")
    python = new_environment(base, tmp_path / "environment")
    files = ["--py-files", f"{archive},{TRANSFORM}"]
    found = submit(python, tmp_path, files, [broker.bootstrap])
    assert found["python"] == [3, 10]
    check_found(found, archive)
    check_written(broker.bootstrap)


def test_spark_connect(broker: BrokerProcess, archive: Path, tmp_path: Path) -> None:
    """The client adds the zip to its session; the server's Python has never had it."""
    base = python_3_10() or sys.executable
    client = new_environment(base, tmp_path / "client", *CONNECT_NEEDS)
    # Spark runs the function of foreachBatch as a client, on the server.
    server = new_environment(base, tmp_path / "server", *CONNECT_NEEDS)
    with connect_server(server, tmp_path) as remote:
        done = subprocess.run(
            [
                str(client),
                str(HERE / "shipped_job.py"),
                broker.bootstrap,
                remote,
                str(archive),
                str(TRANSFORM),
            ],
            cwd=tmp_path,
            env=environment_of(client, tmp_path),
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    once = found.pop("exactly once")
    assert once == dict.fromkeys(("once-sink", "once-foreach"), RECORDS * len(CODECS))
    check_found(found, archive)
    check_written(broker.bootstrap)


@contextmanager
def connect_server(python: Path, work: Path) -> Iterator[str]:
    """A server of Spark Connect in that Python's environment; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = environment_of(python, work)
    command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", "local[2]"]
    command += ["--class", SERVER, "--conf", f"spark.connect.grpc.binding.port={port}"]
    command += ["--conf", "spark.ui.enabled=false", "spark-internal"]
    with (work / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=work, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 120
            while not is_listening(port):
                assert process.poll() is None, (work / "server.log").read_text()[-3000:]
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.5)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def test_the_job_of_the_compose_profile(
    broker: BrokerProcess, archive: Path, tmp_path: Path
) -> None:
    """On a standalone cluster, with the command of the file; executors get the zip only."""
    python = bare_python(tmp_path / "environment")
    for topic in ("lines", "counts"):
        create_topic(broker.bootstrap, topic, 2)
    write(broker.bootstrap, "lines", [Sent(b"one two two", partition=n % 2) for n in range(50)])
    environment = environment_of(python, tmp_path)
    with standalone_cluster(tmp_path, environment) as master:
        command = job_command(
            spark_submit=f"{environment['SPARK_HOME']}/bin/spark-submit",
            master=master,
            package=str(archive),
            driver="spark.driver.host=127.0.0.1",
            job=str(ROOT / "examples" / "word_count_stream.py"),
            bootstrap=broker.bootstrap,
            checkpoint=str(tmp_path / "checkpoint"),
        )
        for _ in range(RESTARTS_MAX):  # as the file starts it again, with the same checkpoint
            done = subprocess.run(
                [*command, "--available-now"],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
            )
            if "Timed out while waiting for the Python worker to connect back" not in done.stderr:
                break
    assert done.returncode == 0, done.stderr[-3000:]
    counts: dict[str, int] = {}
    for value in committed_values(broker.bootstrap, "counts", partitions=2).elements():
        row = json.loads(value)
        counts[row["word"]] = row["count"]
    assert counts == {"one": 50, "two": 100}
