"""Stream processors in Python, which all count the records of a topic by key."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from tests.compat.ecosystem.clients import Record, create_topics, read_until
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.environments import environment
from tests.compat.ecosystem.model import Program, Script

KEYS = ("ant", "bee", "cow")
COUNT = 100  # records of each key in one step
STEP_SECONDS = 300.0  # on a machine that may be busy
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """A program that reads `words` and writes the count of each key to `counts`."""

    name: str
    requirements: tuple[str, ...]
    #: Whether each count comes once, also when the process is killed; if not, it may come again.
    exactly_once: bool
    #: Whether its state is in a topic, so that it can lose its directory.
    has_changelog: bool


class _Process:
    def __init__(self, job: Job, script: Script, bootstrap: str) -> None:
        python = environment(f"ecosystem-{job.name}", *job.requirements)
        self.state = script.directory / "state"
        self._log = script.directory / "job.log"
        program = Path(__file__).with_name(f"{job.name}_job.py")
        self._command = [str(python), str(program), bootstrap, str(self.state)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(self._command, stdout=sink, stderr=sink)

    def keep_running(self) -> None:
        """Starts it again when it has ended by itself, as a service manager does."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    def kill(self) -> None:
        self.end(signal.SIGKILL)


def _send(cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for number in range(COUNT * len(KEYS)):
        producer.produce("words", key=KEYS[number % len(KEYS)], value=str(number))
    assert producer.flush(STEP_SECONDS) == 0, "records were not acknowledged"


def _wait(cluster: Cluster, job: Job, process: _Process, last: int) -> None:
    """Until the last count of each key is there; then all before it are, in order."""

    def counts(records: list[Record], key: str) -> list[str]:
        found = [record.value for record in records if record.key == key]
        return found if job.exactly_once else list(dict.fromkeys(found))

    def is_complete(records: list[Record]) -> bool:
        process.keep_running()
        return all(str(last) in counts(records, key) for key in KEYS)

    records = read_until(cluster.bootstrap, "counts", is_complete, STEP_SECONDS)
    wanted = [str(number) for number in range(1, last + 1)]
    for key in KEYS:
        assert counts(records, key) == wanted, f"{key}: lost, double or out of order"


def _run(job: Job) -> Callable[[Script], None]:
    def run(script: Script) -> None:
        with script.start_cluster() as cluster:
            create_topics(cluster.bootstrap, ["words", "counts"], partitions=2)
            process = _Process(job, script, cluster.bootstrap)
            try:
                _steps(script, cluster, job, process)
            finally:
                process.kill()

    return run


def _steps(script: Script, cluster: Cluster, job: Job, process: _Process) -> None:
    with script.check("records are counted by key, none lost and in order"):
        process.start()
        _send(cluster)
        _wait(cluster, job, process, COUNT)
    with script.check("after a clean stop and a start it counts on"):
        process.end(signal.SIGTERM)
        _send(cluster)
        process.start()
        _wait(cluster, job, process, 2 * COUNT)
    with script.check("the broker is killed and starts again: it counts on"):
        _send(cluster)
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        _send(cluster)
        _wait(cluster, job, process, 4 * COUNT)
    if job.has_changelog:
        with script.check("killed and started without its directory: the topic has its state"):
            _send(cluster)
            process.kill()
            shutil.rmtree(process.state, ignore_errors=True)
            process.start()
            _wait(cluster, job, process, 5 * COUNT)


def _program(job: Job, title: str, note: str) -> Program:
    version = job.requirements[0].partition("==")[2]
    notes = (note, "It is started again when it ends by itself.")
    return Program(job.name, title, version, (), _run(job), notes)


QUIXSTREAMS = _program(
    Job("quixstreams", ("quixstreams==3.28.1",), exactly_once=True, has_changelog=True),
    "Quix Streams",
    "On librdkafka, with `processing_guarantee=exactly-once`: each count is there once.",
)
FAUST = _program(
    Job("faust", ("faust-streaming==0.15.3",), exactly_once=False, has_changelog=False),
    "faust-streaming",
    "On aiokafka, at least once: a count may be there again. Its table is restored from a "
    "changelog topic at each start. Its producer is not idempotent: in two runs on Kafka, counts "
    "were missing or out of order after the broker was killed.",
)
BYTEWAX = _program(
    Job(
        "bytewax",
        ("bytewax==0.21.1", "confluent-kafka==2.16.1"),
        exactly_once=False,
        has_changelog=False,
    ),
    "Bytewax",
    "On librdkafka, at least once. Offsets and state are in its recovery store, not in topics.",
)
