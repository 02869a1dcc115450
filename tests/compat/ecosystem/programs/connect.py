"""Kafka Connect, distributed: file source (exactly once) and sink, states, offsets, kills."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tests.compat.ecosystem.clients import produce, read_topic, read_until, topic_settings
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.connect_worker import FAILED, PAUSED, RUNNING, STOPPED, Worker
from tests.compat.ecosystem.jars import kafka_addition
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.eventually import eventually

VERSION = "3.9.1"
LINES = 500
CHUNK = 10  # lines of an append: more than one transaction for a file
_FILE = "org.apache.kafka.connect.file.FileStream"


def _numbered(start: int, count: int) -> list[str]:
    return [f"line {number}" for number in range(start, start + count)]


def _append(path: Path, lines: Sequence[str]) -> None:
    for start in range(0, len(lines), CHUNK):
        with path.open("a") as sink:
            sink.writelines(f"{line}\n" for line in lines[start : start + CHUNK])
        time.sleep(0.05)


def _run(script: Script) -> None:
    libraries = kafka_addition(VERSION, "connect-file")
    with script.start_cluster() as cluster:
        workers = [
            Worker(
                script.directory / f"worker-{number}",
                libraries,
                cluster.bootstrap,
                {"exactly.once.source.support": "enabled"},
            )
            for number in range(2)
        ]
        try:
            _steps(script, cluster, workers)
        finally:
            for worker in workers:
                worker.kill()


def _steps(script: Script, cluster: Cluster, workers: list[Worker]) -> None:
    first, second = workers
    source, sink = script.directory / "source.txt", script.directory / "sink.txt"
    source.touch()

    def values() -> list[str]:
        return [record.value for record in read_topic(cluster.bootstrap, "lines")]

    def wait_for_lines(count: int) -> None:
        records = read_until(cluster.bootstrap, "lines", lambda found: len(found) >= count)
        assert [record.value for record in records] == _numbered(0, count), "lost, double or mixed"

    with script.check("two workers form a group; the internal topics are compacted"):
        first.launch()
        second.start()
        first.wait_until_ready()
        for name in ("config", "offset", "status"):
            settings = topic_settings(cluster.bootstrap, f"connect-{name}")
            assert settings["cleanup.policy"] == "compact", name
    with script.check("file source, exactly once: connector and task are RUNNING"):
        first.create(
            "source",
            connector_class=f"{_FILE}SourceConnector",
            tasks_max="1",
            topic="lines",
            file=str(source),
            exactly_once_support="required",
        )
        first.wait_for_states("source", RUNNING, RUNNING)
    with script.check("the lines of the file are in the topic, each once and in order"):
        _append(source, _numbered(0, LINES))
        wait_for_lines(LINES)
    with script.check("file sink: each line is in the file"):
        first.create(
            "sink",
            connector_class=f"{_FILE}SinkConnector",
            tasks_max="1",
            topics="lines",
            file=str(sink),
            consumer_override_auto_offset_reset="earliest",
        )
        first.wait_for_states("sink", RUNNING, RUNNING)
        _wait_for_file(sink, _numbered(0, LINES))
    with script.check(
        "a worker with its tasks is killed: exactly once, in order, on the other one"
    ):
        owner = _owner(workers, "source")
        other = second if owner is first else first
        _append(source, _numbered(LINES, LINES))
        read_until(cluster.bootstrap, "lines", lambda found: len(found) > LINES)
        owner.kill()
        _append(source, _numbered(2 * LINES, LINES))
        wait_for_lines(3 * LINES)
    with script.check("the sink has each line after the kill"):
        other.wait_for_states("sink", RUNNING, RUNNING)
        eventually(
            lambda: set(sink.read_text().splitlines()) == set(_numbered(0, 3 * LINES)),
            "lines are missing in the file of the sink",
            seconds=120,
        )
    with script.check("the worker starts again and joins; a clean stop moves the tasks to it"):
        owner.start()
        other.stop()
        owner.wait_for_states("source", RUNNING, RUNNING)
        owner.wait_for_states("sink", RUNNING, RUNNING)
        _append(source, _numbered(3 * LINES, 10))
        wait_for_lines(3 * LINES + 10)
    worker = owner
    with script.check("pause, resume, stop and restart of connector and tasks"):
        worker.request("PUT", "/connectors/source/pause")
        worker.wait_for_states("source", PAUSED, PAUSED)
        worker.request("PUT", "/connectors/source/resume")
        worker.wait_for_states("source", RUNNING, RUNNING)
        worker.request("POST", "/connectors/source/restart?includeTasks=true")
        worker.wait_for_states("source", RUNNING, RUNNING)
        worker.request("PUT", "/connectors/source/stop")
        worker.wait_for_states("source", STOPPED)
    with script.check("offsets of a source are read and reset: the file is read again"):
        offsets = worker.get("/connectors/source/offsets")["offsets"]
        assert offsets[0]["offset"]["position"] == source.stat().st_size, offsets
        worker.request("DELETE", "/connectors/source/offsets")
        assert worker.get("/connectors/source/offsets")["offsets"] == []
        worker.request("PUT", "/connectors/source/resume")
        read_until(cluster.bootstrap, "lines", lambda found: len(found) >= 6 * LINES + 20)
        assert values() == 2 * _numbered(0, 3 * LINES + 10)
    with script.check("offsets of a sink (its consumer group) are read and altered"):
        worker.request("PUT", "/connectors/sink/stop")
        worker.wait_for_states("sink", STOPPED)
        sink.unlink()
        offsets = worker.get("/connectors/sink/offsets")["offsets"]
        partition = {"kafka_topic": "lines", "kafka_partition": 0}
        assert offsets[0]["partition"] == partition, offsets
        last = read_topic(cluster.bootstrap, "lines")[-5:]
        changed = [{"partition": partition, "offset": {"kafka_offset": last[0].offset}}]
        worker.request("PATCH", "/connectors/sink/offsets", {"offsets": changed})
        worker.request("PUT", "/connectors/sink/resume")
        _wait_for_file(sink, [record.value for record in last])
    with script.check("a task that fails is FAILED, and RUNNING after a restart"):
        worker.create(
            "broken",
            connector_class=f"{_FILE}SinkConnector",
            tasks_max="1",
            topics="lines",
            file=str(script.directory / "missing" / "file.txt"),
        )
        worker.wait_for_states("broken", RUNNING, FAILED)
        (script.directory / "missing").mkdir()
        worker.request("POST", "/connectors/broken/tasks/0/restart")
        worker.wait_for_states("broken", RUNNING, RUNNING)
    with script.check("records that cannot be converted are in the dead letter queue"):
        _dead_letters(script, cluster, worker)
    with script.check("deleted connectors are gone after a restart of the worker"):
        for name in ("source", "sink", "broken", "strict"):
            worker.request("DELETE", f"/connectors/{name}")
        worker.stop()
        worker.start()
        assert worker.get("/connectors") == []


def _wait_for_file(path: Path, lines: Sequence[str]) -> None:
    def text() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    eventually(
        lambda: text() == list(lines),
        lambda: f"{path.name} has {len(text())} lines, not {len(lines)}",
        seconds=120,
    )


def _owner(workers: Sequence[Worker], connector: str) -> Worker:
    """The worker that runs the task."""
    address = workers[0].get(f"/connectors/{connector}/status")["tasks"][0]["worker_id"]
    return next(worker for worker in workers if worker.url.endswith(address))


def _dead_letters(script: Script, cluster: Cluster, worker: Worker) -> None:
    path = script.directory / "strict.txt"
    produce(cluster.bootstrap, "mixed", ['{"good": 1}', "not JSON", '{"good": 2}'])
    worker.create(
        "strict",
        connector_class=f"{_FILE}SinkConnector",
        tasks_max="1",
        topics="mixed",
        file=str(path),
        value_converter="org.apache.kafka.connect.json.JsonConverter",
        value_converter_schemas_enable="false",
        consumer_override_auto_offset_reset="earliest",
        errors_tolerance="all",
        errors_deadletterqueue_topic_name="dead",
        errors_deadletterqueue_topic_replication_factor="1",
    )
    _wait_for_file(path, ["{good=1}", "{good=2}"])
    records = read_until(cluster.bootstrap, "dead", lambda found: len(found) == 1)
    assert records[0].value == "not JSON", records


PROGRAM = Program(
    "connect",
    "Kafka Connect, distributed",
    VERSION,
    ("java", "mvn"),
    _run,
    ("Two workers, `FileStreamSource` with `exactly.once.support=required`, `FileStreamSink`.",),
)
