"""Telegraf: lines of a file to a topic, and a topic to a file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tests.compat.ecosystem.clients import create_topics, read_until
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.environments import run_command
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.apache_kafka import REPOSITORY
from tests.doubles.eventually import eventually

MODULE, VERSION = "github.com/influxdata/telegraf/cmd/telegraf", "1.37.2"
# Only the plug-ins that are used: all of them take an hour to compile.
TAGS = (
    "custom,inputs.kafka_consumer,inputs.tail,outputs.kafka,outputs.file,"
    "parsers.influx,serializers.influx"
)
BUILD_SECONDS = 1800.0
STEP_SECONDS = 180.0
COUNT = 200

_AGENT = """
[agent]
  interval = "1s"
  flush_interval = "1s"
  omit_hostname = true
"""
_WRITER = (
    _AGENT
    + """
[[inputs.tail]]
  files = ["{directory}/lines.txt"]
  initial_read_offset = "beginning"
  watch_method = "poll"
  path_tag = ""
  data_format = "influx"
[[outputs.kafka]]
  brokers = ["{bootstrap}"]
  topic = "metrics"
  routing_key = "one"
  required_acks = -1
  idempotent_writes = true
  compression_codec = 3
  data_format = "influx"
"""
)
_READER = (
    _AGENT
    + """
[[inputs.kafka_consumer]]
  brokers = ["{bootstrap}"]
  topics = ["metrics"]
  consumer_group = "telegraf"
  offset = "oldest"
  data_format = "influx"
[[outputs.file]]
  files = ["{directory}/read.txt"]
  data_format = "influx"
"""
)


def _program() -> Path:
    place = REPOSITORY / ".cache" / f"telegraf-{VERSION}"
    program = place / "telegraf"
    if not program.exists():
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["go", "install", "-tags", TAGS, f"{MODULE}@v{VERSION}"],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            env={**os.environ, "GOBIN": str(place)},
        )
        if done.returncode:
            pytest.skip(f"Telegraf could not be built: {done.stderr[-300:]}")
    run_command([str(program), "version"], 60)
    return program


@contextmanager
def _started(script: Script, cluster: Cluster, name: str, text: str) -> Iterator[None]:
    """One Telegraf; stopped by SIGTERM, when it commits what it has written."""
    path = script.directory / f"{name}.conf"
    path.write_text(text.format(directory=script.directory, bootstrap=cluster.bootstrap))
    with (script.directory / f"{name}.log").open("ab") as sink:
        process = subprocess.Popen(
            [str(_program()), "--config", str(path)], stdout=sink, stderr=sink
        )
    try:
        yield
        assert process.poll() is None, f"{name} ended"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _append(script: Script, start: int) -> None:
    now_ns = time.time_ns()  # the records get these timestamps, which retention compares
    with (script.directory / "lines.txt").open("a") as sink:
        for number in range(start, start + COUNT):
            sink.write(f"measured value={number}i {now_ns + number}\n")


def _numbers(texts: list[str]) -> list[int]:
    lines = [line for text in texts for line in text.splitlines() if line]
    return [int(line.split("value=")[1].split("i")[0]) for line in lines]


def _wait_for_file(script: Script, count: int) -> None:
    path = script.directory / "read.txt"

    def found() -> list[int]:
        return _numbers([path.read_text()]) if path.exists() else []

    eventually(
        lambda: len(found()) >= count,
        lambda: f"{len(found())} of {count} lines in the file",
        seconds=STEP_SECONDS,
        pause_seconds=0.5,
    )
    assert sorted(found()) == list(range(count)), "lost or double"


def _wait_for_member(cluster: Cluster) -> None:
    """Until the reader has its partitions."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def is_member() -> bool:
        found = admin.describe_consumer_groups(["telegraf"])["telegraf"].result(STEP_SECONDS)
        return found.state == ConsumerGroupState.STABLE and len(found.members) == 1

    eventually(is_member, "the input is not a member of its group", seconds=STEP_SECONDS)


def _run(script: Script) -> None:
    with script.start_cluster() as cluster:
        create_topics(cluster.bootstrap, ["metrics"])
        with script.check("output: each line of a file is in the topic once"):
            _append(script, 0)
            with _started(script, cluster, "writer", _WRITER):
                records = read_until(
                    cluster.bootstrap,
                    "metrics",
                    lambda found: len(_numbers([each.value for each in found])) >= COUNT,
                    STEP_SECONDS,
                )
            numbers = _numbers([each.value for each in records])
            assert sorted(numbers) == list(range(COUNT)), "lost or double"
        with (
            script.check("input: the records are in a file"),
            _started(script, cluster, "reader", _READER),
        ):
            _wait_for_file(script, COUNT)
        with script.check("stopped and started: its group continues where it stopped"):
            (script.directory / "lines.txt").unlink()
            _append(script, COUNT)
            with (
                _started(script, cluster, "writer", _WRITER),
                _started(script, cluster, "reader", _READER),
            ):
                _wait_for_file(script, 2 * COUNT)
        with script.check("the broker is killed and starts again: nothing is lost"):
            (script.directory / "lines.txt").unlink()
            _append(script, 2 * COUNT)
            with _started(script, cluster, "reader", _READER):
                _wait_for_member(cluster)
                cluster.nodes[0].kill()
                cluster.nodes[0].start()
                with _started(script, cluster, "writer", _WRITER):
                    _wait_for_file(script, 3 * COUNT)


PROGRAM = Program(
    "telegraf",
    "Telegraf",
    VERSION,
    ("go",),
    _run,
    (
        "Its plug-ins `outputs.kafka` and `inputs.kafka_consumer`, which use Sarama. Unless "
        "`version` is set, the input fetches as a client of Kafka 0.10.2: the broker converts the "
        "records, and rejects zstd with UNSUPPORTED_COMPRESSION_TYPE.",
    ),
)
