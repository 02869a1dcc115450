"""One Spark session and one broker for all Spark tests of a run.

Starting Spark takes seconds, and so does the first job; a session a test would be minutes. Topics
have names of their own instead. Nothing is written outside pytest's temporary directory.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.spark_kafka_jars import connector_jars

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)


def java_home() -> str:
    """A Java that is there; `make test` has brought one in before."""
    found = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "java.py"), "--routes", "present"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if found.returncode != 0:
        pytest.skip(f"Spark needs Java; `python tools/java.py` brings one in: {found.stderr}")
    return found.stdout.strip()


def spark_environment(work: Path) -> dict[str, str]:
    """What a process with Spark in it needs to find this Python and to stay within `work`."""
    return {
        "JAVA_HOME": java_home(),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(work),
        "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
    }


def build_session(work: Path) -> SparkSession:
    """A small session: two cores, no user interface, Java tuned for a quick start."""
    java = f"-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={work}"
    jars = connector_jars()
    builder: SparkSession.Builder = SparkSession.builder
    session = (
        builder.master("local[2]")
        .appName("ottla tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "768m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.jars", "" if isinstance(jars, str) else ",".join(map(str, jars)))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    work = tmp_path_factory.mktemp("spark")
    before = dict(os.environ)
    os.environ.update(spark_environment(work))
    session = build_session(work)
    try:
        yield session
    finally:
        session.stop()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    settings = {
        "group_initial_rebalance_delay_ms": "0",
        "log_cleaner_backoff_ms": "100",  # compaction soon after it becomes due
    }
    with start_broker(directory, **settings) as process:
        yield process


@pytest.fixture(scope="session")
def new_topic() -> Callable[[str], str]:
    numbers = itertools.count()
    return lambda stem: f"{stem}-{next(numbers)}"
