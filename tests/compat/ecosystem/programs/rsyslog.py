"""rsyslog: lines of a file to a topic (omkafka), and a topic to a file (imkafka)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compat.ecosystem.clients import create_topics, read_until
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.environments import run_command
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.apache_kafka import REPOSITORY
from tests.doubles.eventually import eventually

VERSION = "8.2302.0"
STEP_SECONDS = 180.0
COUNT = 200
_PACKAGES = "rsyslog rsyslog-kafka libestr0 libfastjson4 liblognorm5 librdkafka1"

_HEAD = 'global(workDirectory="{directory}")\n'
# The queue keeps what the broker has not acknowledged; errors that pass are retried.
_WRITER = (
    _HEAD
    + """module(load="imfile" mode="polling" pollingInterval="1")
module(load="omkafka")
template(name="value" type="string" string="%msg%")
input(type="imfile" file="{directory}/lines.txt" tag="lines" ruleset="out" freshStartTail="off")
ruleset(name="out") {{
  action(type="omkafka" broker=["{bootstrap}"] topic="lines" template="value"
         errorFile="{directory}/errors" resubmitOnFailure="on" keepFailedMessages="on"
         failedMsgFile="{directory}/failed"
         confParam=["acks=all", "enable.idempotence=true", "compression.codec=lz4"]
         action.resumeRetryCount="-1" queue.type="LinkedList")
}}
"""
)
_READER = (
    _HEAD
    + """module(load="imkafka")
template(name="value" type="string" string="%rawmsg%\\n")
input(type="imkafka" broker=["{bootstrap}"] topic="lines" consumergroup="rsyslog" ruleset="in"
      confParam=["auto.offset.reset=earliest"])
ruleset(name="in") {{
  action(type="omfile" file="{directory}/read.txt" template="value")
}}
"""
)


def _place() -> Path:
    return REPOSITORY / ".cache" / f"rsyslog-{VERSION}"


def _libraries() -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(_place() / "usr" / "lib" / f"{os.uname().machine}-linux-gnu")}


def _program() -> Path:
    """The program of Debian's packages, unpacked and not installed."""
    place = _place()
    program = place / "usr" / "sbin" / "rsyslogd"
    if not program.exists():
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            f"apt-get download {_PACKAGES} && for each in *.deb; do dpkg -x $each .; done",
            shell=True,
            cwd=place,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"the packages of rsyslog could not be downloaded: {done.stderr[-300:]}")
    version = run_command([str(program), "-v"], 60, _libraries())
    assert VERSION in version, version
    return program


@contextmanager
def _started(script: Script, cluster: Cluster, name: str, text: str) -> Iterator[None]:
    """One rsyslogd in a directory of its own, where it keeps how far it has read its file."""
    place = script.directory / name
    place.mkdir(exist_ok=True)
    path = place / "rsyslog.conf"
    path.write_text(text.format(directory=place, bootstrap=cluster.bootstrap))
    program = _program()
    modules = next(_place().glob("usr/lib/*/rsyslog"))
    command = [str(program), "-n", "-i", "NONE", "-M", str(modules), "-f", str(path)]
    with (place / "rsyslog.log").open("ab") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=sink, env={**os.environ, **_libraries()}
        )
    try:
        yield
        assert process.poll() is None, f"{name} ended"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _append(script: Script, start: int) -> None:
    place = script.directory / "writer"
    place.mkdir(exist_ok=True)
    with (place / "lines.txt").open("a") as sink:
        for number in range(start, start + COUNT):
            sink.write(f"line {number}\n")


def _numbers(texts: list[str]) -> list[int]:
    return [int(line.split()[1]) for text in texts for line in text.splitlines() if line]


def _wait_for_records(cluster: Cluster, count: int) -> None:
    records = read_until(
        cluster.bootstrap, "lines", lambda found: len(found) >= count, STEP_SECONDS
    )
    assert _numbers([each.value for each in records]) == list(range(count)), "lost or double"


def _wait_for_file(script: Script, count: int) -> None:
    path = script.directory / "reader" / "read.txt"

    def found() -> list[int]:
        return _numbers([path.read_text()]) if path.exists() else []

    eventually(
        lambda: len(found()) >= count,
        lambda: f"{len(found())} of {count} lines in the file",
        seconds=STEP_SECONDS,
        pause_seconds=0.5,
    )
    assert found() == list(range(count)), "lost, double or out of order"


def _run(script: Script) -> None:
    with script.start_cluster() as cluster:
        create_topics(cluster.bootstrap, ["lines"])
        with script.check("omkafka: each line of a file is in the topic, once and in order"):
            _append(script, 0)
            with _started(script, cluster, "writer", _WRITER):
                _wait_for_records(cluster, COUNT)
        with (
            script.check("imkafka: the records are in a file, in order"),
            _started(script, cluster, "reader", _READER),
        ):
            _wait_for_file(script, COUNT)
        with script.check("stopped and started: both continue where they stopped"):
            _append(script, COUNT)
            with (
                _started(script, cluster, "writer", _WRITER),
                _started(script, cluster, "reader", _READER),
            ):
                _wait_for_file(script, 2 * COUNT)
        with (
            script.check("the broker is killed and starts again: each line once and in order"),
            _started(script, cluster, "writer", _WRITER),
            _started(script, cluster, "reader", _READER),
        ):
            cluster.nodes[0].kill()
            _append(script, 2 * COUNT)
            cluster.nodes[0].start()
            _wait_for_file(script, 3 * COUNT)


PROGRAM = Program(
    "rsyslog",
    "rsyslog",
    VERSION,
    ("apt-get", "dpkg"),
    _run,
    ("Its modules `omkafka` and `imkafka`, which use librdkafka, from Debian's packages.",),
)
