"""Apache Flink (PyFlink): Kafka source and exactly-once sink with checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compat.ecosystem.clients import create_topics, produce, read_topic, read_until
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.environments import environment
from tests.compat.ecosystem.jars import library
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.eventually import eventually
from tests.doubles.maven import ALONE

VERSION, CONNECTOR = "2.3.0", "5.0.0-2.2"
COUNT = 500
JOB_SECONDS = 900.0  # it starts a cluster of its own, on a machine that may be busy
_JOB = Path(__file__).with_name("flink_job.py")


def _run(script: Script) -> None:
    python = environment("ecosystem-flink", f"apache-flink=={VERSION}")
    row = ("org.apache.flink", "flink-sql-connector-kafka", CONNECTOR, ALONE)
    jar = next(library(f"flink-connector-{CONNECTOR}", [row]).glob("*.jar"))
    with script.start_cluster() as cluster:
        checkpoints = script.directory / "checkpoints"
        command = [str(python), str(_JOB), str(jar), cluster.bootstrap, str(checkpoints)]
        with (script.directory / "job.log").open("wb") as sink:
            create_topics(cluster.bootstrap, ["numbers", "doubled"])
            # PyFlink starts a JVM: both are ended as one group of processes.
            job = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
        try:
            _steps(script, cluster, job)
        finally:
            os.killpg(job.pid, 9)
            job.wait()


def _send(cluster: Cluster, start: int) -> None:
    values = [json.dumps({"number": number}) for number in range(start, start + COUNT)]
    produce(cluster.bootstrap, "numbers", values)


def _wait_for(cluster: Cluster, count: int) -> None:
    records = read_until(
        cluster.bootstrap, "doubled", lambda found: len(found) >= count, JOB_SECONDS
    )
    numbers = [json.loads(record.value)["number"] for record in records]
    assert numbers == [2 * number for number in range(count)], "lost, double or mixed"


def _steps(script: Script, cluster: Cluster, job: subprocess.Popen[bytes]) -> None:
    with script.check("source and exactly-once sink: each record once and in order"):
        _send(cluster, 0)
        _wait_for(cluster, COUNT)
        assert job.poll() is None, "the job ended"
    with script.check("the offsets of the source are committed at a checkpoint"):
        _wait_for_commit(cluster)
    with script.check("the broker is killed and starts again: each record once and in order"):
        _send(cluster, COUNT)
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        _send(cluster, 2 * COUNT)
        _wait_for(cluster, 3 * COUNT)
        assert job.poll() is None, "the job ended"


def _wait_for_commit(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    request = [ConsumerGroupTopicPartitions("flink", [TopicPartition("numbers", 0)])]
    end = read_topic(cluster.bootstrap, "numbers")[-1].offset + 1
    eventually(
        lambda: (
            admin.list_consumer_group_offsets(request)["flink"]
            .result(60)
            .topic_partitions[0]
            .offset
            == end
        ),
        "the group has no offset of the end",
        seconds=JOB_SECONDS,
        pause_seconds=0.5,
    )


PROGRAM = Program(
    "flink",
    "Apache Flink",
    f"{VERSION}, connector {CONNECTOR}",
    ("java", "mvn"),
    _run,
    ("A PyFlink job in one process, with a checkpoint each second.",),
)
