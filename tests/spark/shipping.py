"""Jobs in a Python without Ottla, without this tree and without the native codecs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import py4j
import pyarrow
import pyspark
from confluent_kafka import Consumer

from tests.spark.conftest import ROOT, spark_environment
from tests.spark.support import Sent, create_topic, producer, send

HERE = Path(__file__).parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 2000  # in each partition: batches of several kilobytes
WRITTEN = 3000  # by the job, in each codec


def write_zip(path: Path) -> Path:
    """The zip as the command writes it."""
    command = [sys.executable, "-m", "ottla.cli.main", "spark", "package", "--output", str(path)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return path


def bare_python(environment: Path) -> Path:
    """A Python with pyspark, pyarrow and numpy, those of this process, and nothing else."""
    venv.create(environment, with_pip=False, symlinks=True)
    [site] = environment.glob("lib/python*/site-packages")
    for module in (pyspark, py4j, pyarrow, numpy):
        link(module, site)
    return environment / "bin" / "python"


def link(module: ModuleType, site: Path) -> None:
    """Makes a package of this process importable from another environment's directory."""
    found = Path(str(module.__file__)).parent
    (site / found.name).symlink_to(found)
    libraries = found.with_name(f"{found.name}.libs")
    if libraries.exists():
        (site / libraries.name).symlink_to(libraries)


def environment_of(python: Path, work: Path) -> dict[str, str]:
    """The variables of a process with that Python's Spark in it."""
    [home] = python.parents[1].glob("lib/python*/site-packages/pyspark")
    environment = {**os.environ, **spark_environment(work), "SPARK_HOME": str(home)}
    del environment["PYTHONPATH"]
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = str(python)
    return environment


def prepare_topics(bootstrap: str) -> None:
    """The topic `shipped`, with a partition in each codec, and those that the job writes."""
    create_topic(bootstrap, "shipped", len(CODECS))
    written = ("streamed", "texts", "once-sink", "once-foreach")
    for topic in (*written, *(f"by-{codec}" for codec in CODECS)):
        create_topic(bootstrap, topic)
    for partition, codec in enumerate(CODECS):
        client = producer(bootstrap, compression_type=codec)
        values = (b"%s %d" % (codec.encode(), number % 7) for number in range(RECORDS))
        send(client, "shipped", [Sent(value, partition=partition) for value in values])


def submit(
    python: Path, work: Path, options: list[str], arguments: list[str], seconds: int = 300
) -> dict[str, Any]:
    """What the job found, run by spark-submit of that Python's pyspark."""
    environment = environment_of(python, work)
    java = f"-XX:-UsePerfData -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={work}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.driver.extraJavaOptions": java,
    }
    command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", "local[2]"]
    command += ["--driver-memory", "768m", *options]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    done = subprocess.run(
        [*command, str(HERE / "shipped_job.py"), *arguments],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def check_found(found: dict[str, Any], archive: Path) -> None:
    """Every step of the job gave what was written, and nothing came from elsewhere than the zip."""
    assert found["batch"] == dict.fromkeys(CODECS, RECORDS)
    assert found["transform"] == sorted(
        f"{codec.upper()} {n}" for codec in CODECS for n in range(7)
    )
    assert found["stream"] == found["stream with transform"] == RECORDS * len(CODECS)
    assert found["lag"] == [0] * len(CODECS)
    assert all(archive.name in file for file in found["files"])
    assert found["present"] == []


def check_written(bootstrap: str) -> None:
    """A standard client reads what the job wrote, and verifies the checksums."""
    for codec in CODECS:
        values = consume(bootstrap, f"by-{codec}", WRITTEN)
        assert values == [b"a value %d" % number for number in range(WRITTEN)], codec
    total = RECORDS * len(CODECS)
    streamed = sorted(consume(bootstrap, "streamed", total))
    assert sorted(consume(bootstrap, "texts", total)) == [value.upper() for value in streamed]


def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "shipping", "check.crcs": True}
    client = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    client.subscribe([topic])
    values: list[bytes | None] = []
    try:
        while len(values) < count:
            messages = client.consume(count - len(values), timeout=30)
            assert messages, f"only {len(values)} records in {topic}"
            assert not any(message.error() for message in messages)
            values += [message.value() for message in messages]
    finally:
        client.close()
    return values
