"""Kafka Connect, standalone: file source and sink, with offsets in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.compat.ecosystem.clients import read_until
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.jars import java, kafka_addition
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.apache_kafka import JavaProcess
from tests.doubles.eventually import eventually

VERSION = "3.9.1"
COUNT = 100
START_SECONDS = 600.0
_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
_FILE = "org.apache.kafka.connect.file.FileStream"


def _properties(path: Path, values: Mapping[str, object]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return str(path)


def _run(script: Script) -> None:
    with script.start_cluster() as cluster:
        command = _command(script.directory, cluster)
        worker = JavaProcess(command, script.directory / "worker.log")
        try:
            with script.check("a line of the source file is a record and a line of the sink file"):
                worker.wait_for("Kafka Connect started", START_SECONDS)
                _write(script.directory, 0)
                _wait_for_lines(script.directory, cluster, COUNT)
            with script.check("after a clean stop and a start, both continue where they stopped"):
                worker.stop()
                _write(script.directory, COUNT)
                worker = JavaProcess(command, script.directory / "worker.log")
                _wait_for_lines(script.directory, cluster, 2 * COUNT)
        finally:
            worker.kill()


def _command(directory: Path, cluster: Cluster) -> list[str]:
    (directory / "source.txt").touch()
    common = {"tasks.max": 1}
    files = [
        _properties(
            directory / "worker.properties",
            {
                "bootstrap.servers": cluster.bootstrap,
                "key.converter": _CONVERTER,
                "value.converter": _CONVERTER,
                "offset.storage.file.filename": directory / "offsets",
                "offset.flush.interval.ms": 500,
                "listeners": "http://127.0.0.1:0",
                "plugin.discovery": "service_load",
            },
        ),
        _properties(
            directory / "source.properties",
            {
                **common,
                "name": "source",
                "connector.class": f"{_FILE}SourceConnector",
                "file": directory / "source.txt",
                "topic": "lines",
            },
        ),
        _properties(
            directory / "sink.properties",
            {
                **common,
                "name": "sink",
                "connector.class": f"{_FILE}SinkConnector",
                "file": directory / "sink.txt",
                "topics": "lines",
            },
        ),
    ]
    main_class = "org.apache.kafka.connect.cli.ConnectStandalone"
    return java(kafka_addition(VERSION, "connect-file"), directory, main_class, *files)


def _lines(start: int, count: int) -> list[str]:
    return [f"line {number}" for number in range(start, start + count)]


def _write(directory: Path, start: int) -> None:
    with (directory / "source.txt").open("a") as file:
        file.writelines(f"{line}\n" for line in _lines(start, COUNT))


def _wait_for_lines(directory: Path, cluster: Cluster, count: int) -> None:
    records = read_until(cluster.bootstrap, "lines", lambda found: len(found) >= count)
    assert [record.value for record in records] == _lines(0, count)
    sink = directory / "sink.txt"
    eventually(
        lambda: sink.exists() and sink.read_text().splitlines() == _lines(0, count),
        "the file of the sink has other lines",
        seconds=120,
    )


PROGRAM = Program("connect_standalone", "Kafka Connect, standalone", VERSION, ("java", "mvn"), _run)
