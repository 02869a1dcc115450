"""`make compat-spark-pages`: the commands of docs/spark/standalone.md and connect.md as they are.

A master and a worker, or a server of Spark Connect, on this machine; the archive is made and used.
Downloads what the commands install; minutes.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.page_commands import Commands, commands_of
from tests.spark.conftest import ROOT, java_home
from tests.spark.packages import CONNECT_NEEDS, is_open, new_environment
from tests.spark.shipping import link
from tests.spark.support import Sent, create_topic, write

PAGES = ROOT / "docs" / "spark"
JOB = """
import os, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
import pyspark_ottla
pyspark_ottla.register(spark)
frame = spark.read.format("ottla").option("kafka.bootstrap.servers", os.environ["BOOTSTRAP"])
rows = frame.option("subscribe", "lines").load().collect()
executors = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
print("rows", len(rows), "of", executors, flush=True)
"""
CONNECT_JOB = """
frame = spark.read.format("ottla").option("kafka.bootstrap.servers", os.environ["BOOTSTRAP"])
print("rows", frame.option("subscribe", "lines").load().count(), flush=True)
"""
# The ports of the pages.
MASTER, CONNECT = 7077, 15002


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path / "broker") as process:
        create_topic(process.bootstrap, "lines")
        write(process.bootstrap, "lines", [Sent(b"a"), Sent(b"b")])
        yield process


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty directory, and a `python3` and an `ottla` like those of an installation."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, command in (("python3", ""), ("ottla", "-m ottla.cli.main")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        program.chmod(0o755)
    place = tmp_path / "work"
    place.mkdir()
    return place


def variables(work: Path, broker: BrokerProcess, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{work.parent / 'bin'}:{os.environ['PATH']}",
        "JAVA_HOME": java_home(),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "BOOTSTRAP": broker.bootstrap,
        **more,
    }


@contextmanager
def playing(
    commands: list[Commands], work: Path, environment: dict[str, str], ports: list[int]
) -> Iterator[Iterator[str]]:
    """Runs one block after the other, each with its output; ends what runs in the background."""
    started: list[subprocess.Popen[bytes]] = []

    def outputs() -> Iterator[str]:
        for number, block in enumerate(commands):
            if block.in_background:
                with (work / f"background-{number}").open("wb") as log:
                    started.append(
                        subprocess.Popen(
                            ["bash", "-euc", block.text],
                            cwd=work,
                            env=environment,
                            stdout=log,
                            stderr=log,
                            start_new_session=True,
                        )
                    )
                if ports:
                    wait_for(ports.pop(0), started[-1], work / f"background-{number}")
                continue
            done = subprocess.run(
                ["bash", "-euc", block.text],
                cwd=work,
                env=environment,
                capture_output=True,
                text=True,
                timeout=900,
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr[-4000:]}"
            yield done.stdout

    try:
        yield outputs()
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 180
    while not is_open(port):
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.5)


def check_free(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_standalone(broker: BrokerProcess, work: Path) -> None:
    check_free(MASTER)
    (work / "job.py").write_text(JOB)
    environment = variables(work, broker, PYSPARK_PYTHON=sys.executable)
    commands = commands_of(PAGES / "standalone.md")
    assert [block.in_background for block in commands] == [True] * 2 + [False] * 5
    with playing(commands, work, environment, [MASTER]) as outputs:
        assert "rows 2 of" in next(outputs)  # spark-submit
        assert "rows 2 of" in next(outputs)  # ottla spark run
        next(outputs)  # the archive
        [site] = (work / "environment").glob("lib/python*/site-packages")
        import py4j

        for module in (pyspark, py4j):  # for the driver; the archive is what executors have
            link(module, site)
        found = re.search(r"rows 2 of \['(.*)'\]", next(outputs))
        assert found is not None
        assert found[1].endswith("/environment/bin/python")
        next(outputs)  # the doctor


def test_connect(broker: BrokerProcess, work: Path, tmp_path: Path) -> None:
    check_free(CONNECT)
    server = new_environment(sys.executable, tmp_path / "server", "pandas")
    client = new_environment(sys.executable, tmp_path / "client", *CONNECT_NEEDS)
    page = (PAGES / "connect.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n# connect_job.py\n(.*?)```", page, re.DOTALL)
    assert found is not None
    (work / "connect_job.py").write_text("import os\n" + found[1] + CONNECT_JOB)
    environment = variables(
        work,
        broker,
        PYSPARK_PYTHON=str(server),
        PYSPARK_DRIVER_PYTHON=str(server),
        CLIENT_PYTHON=str(client),
    )
    commands = commands_of(PAGES / "connect.md")
    with playing(commands, work, environment, [CONNECT]) as outputs:
        assert "rows 2" in next(outputs)
