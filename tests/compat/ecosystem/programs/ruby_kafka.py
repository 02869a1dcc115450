"""ruby-kafka, whose code for the protocol is its own: topics, producers, transactions, groups."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.compat.ecosystem.clients import create_topics, read_topic
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.apache_kafka import REPOSITORY

VERSION, CHECKSUMS = "1.5.1", "0.7.0"
STEP_SECONDS = 180.0
_SOURCES = REPOSITORY / ".cache" / f"ruby-kafka-{VERSION}"
_CLIENT = Path(__file__).with_name("ruby_client.rb")


def _command(cluster: Cluster, *words: object) -> list[str]:
    folders = [str(_SOURCES / name / "lib") for name in ("ruby-kafka", "digest-crc")]
    options = [word for folder in folders for word in ("-I", folder)]
    return ["ruby", "-W0", *options, str(_CLIENT), cluster.bootstrap, *map(str, words)]


def _step(cluster: Cluster, *words: object) -> list[Any]:
    """What a step of the client printed, a value a line."""
    done = subprocess.run(
        _command(cluster, *words), capture_output=True, text=True, timeout=STEP_SECONDS
    )
    assert done.returncode == 0, done.stderr[:500]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _values(cluster: Cluster, topic: str) -> list[int]:
    return sorted(int(each.value) for each in read_topic(cluster.bootstrap, topic))


def _consumed(cluster: Cluster, topic: str, group: str, count: int) -> list[int]:
    rows = _step(cluster, "consume", topic, group, count)
    for partition in {row[0] for row in rows}:
        offsets = [row[1] for row in rows if row[0] == partition]
        assert offsets == sorted(offsets), "out of order"
    assert all(row[2] == f"key-{row[3]}" and row[4] == row[3] for row in rows), "keys or headers"
    return sorted(int(row[3]) for row in rows)


def _run(script: Script) -> None:
    if not (_SOURCES / "digest-crc" / "lib").exists():
        pytest.skip(
            f"no registry here has gems: put lib of ruby-kafka v{VERSION} and of digest-crc "
            f"v{CHECKSUMS} into {_SOURCES.relative_to(REPOSITORY)}/ruby-kafka and /digest-crc"
        )
    with script.start_cluster(transaction_state_log_num_partitions=1) as cluster:
        _load_coordinator(cluster)
        _steps(script, cluster)


def _load_coordinator(cluster: Cluster) -> None:
    """The client gives up when the coordinator of its first transaction is still loading, which a
    new one of Kafka is for a moment."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "first"})
    producer.init_transactions(STEP_SECONDS)


def _steps(script: Script, cluster: Cluster) -> None:
    with script.check("a topic is created, gets partitions and settings, is described, deleted"):
        (found,) = _step(cluster, "admin")
        assert found == {
            "partitions": 3,
            "settings": {"max.message.bytes": "2000000"},
            "brokers": 1,
        }, found
    create_topics(cluster.bootstrap, ["numbers", "transactions", "killed"], partitions=3)
    with script.check("idempotent producer, acks=all, without and with gzip: each record once"):
        _step(cluster, "produce", "numbers", 0, 100, "none")
        _step(cluster, "produce", "numbers", 100, 200, "gzip")
        assert _values(cluster, "numbers") == list(range(200))
    with script.check("a group reads each record once, in order, with keys and headers"):
        assert _consumed(cluster, "numbers", "readers", 200) == list(range(200))
    with script.check("the next member continues; the group is listed and described"):
        _step(cluster, "produce", "numbers", 200, 240, "none")
        assert _consumed(cluster, "numbers", "readers", 40) == list(range(200, 240))
        (found,) = _step(cluster, "group", "readers")
        assert found["state"] == "Empty", found
        assert "readers" in found["groups"], found
        assert sum(found["offsets"]["numbers"].values()) == 240, found
    with script.check("transactions: committed records are read, aborted ones are not"):
        _step(cluster, "transactions")
        assert _values(cluster, "transactions") == [*range(20), *range(40, 60)]
    with script.check("the broker is killed and starts again: each record once"):
        process = subprocess.Popen(
            _command(cluster, "produce", "killed", 0, 1000, "none", 200),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == '"waiting"\n'
            cluster.nodes[0].kill()
            # It writes to a broker that is not there.
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            cluster.nodes[0].start()
            output, errors = process.communicate(timeout=STEP_SECONDS)
        finally:
            process.kill()
            process.wait()
        assert output == '"delivered"\n', errors[:500]
        assert _values(cluster, "killed") == list(range(1000))


PROGRAM = Program(
    "ruby_kafka",
    "ruby-kafka",
    VERSION,
    ("ruby",),
    _run,
    (
        f"Ruby of Debian, with lib of a checkout of its repository and of digest-crc {CHECKSUMS}: "
        "no registry that is used here has gems.",
        "It does not retry after COORDINATOR_LOAD_IN_PROGRESS and CONCURRENT_TRANSACTIONS: the "
        "script avoids both, which Kafka returned.",
    ),
)
