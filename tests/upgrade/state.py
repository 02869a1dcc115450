"""What a broker of one state of the project writes, and what a broker of another finds.

`write` and `check` drive a broker that runs from a given tree of sources, by librdkafka and by the
commands of that tree: nothing here is imported from it. The data are those of a broker without
ZooKeeper: logs in several formats, a compacted topic, transactions, committed offsets, settings,
quotas, ACLs and users in the embedded tree.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

START_SECONDS = 120.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 20
GROUP = "billing"
_SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.segment.bytes": "4096",
    "log.index.size.max.bytes": "4096",
}


class Running:
    """A broker that serves clients: its address, and the commands of its tree."""

    def __init__(self, tree: Path, bootstrap: str) -> None:
        self._tree = tree
        self.bootstrap = bootstrap

    def ottla(self, line: str, text: str = "") -> str:
        """Runs a command of this tree; returns its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", "ottla.cli.main", *line.split(), "-b", self.bootstrap],
            cwd=self._tree,
            env=_environment(self._tree),
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def json(self, line: str) -> Any:
        """The JSON that a command prints."""
        return json.loads(self.ottla(f"{line} --json"))


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree)}


@contextmanager
def broker(tree: Path, data: Path) -> Iterator[Running]:
    """A broker from the sources in `tree` on a data directory; it is stopped cleanly."""
    settings = {**_SETTINGS, "log.dirs": str(data), "listeners": "PLAINTEXT://127.0.0.1:0"}
    words = [word for name, value in settings.items() for word in ("--override", f"{name}={value}")]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "ottla.cli.main", "start", *words],
            cwd=tree,
            env=_environment(tree),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        killer = threading.Timer(START_SECONDS, process.kill)
        killer.start()
        try:
            address = _address(process, log)
            killer.cancel()
            yield Running(tree, address)
        finally:
            killer.cancel()
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            if process.stdout is not None:
                process.stdout.close()
        log.seek(0)
        lines = log.read().decode()
        assert code == 0, lines
        assert "Traceback" not in lines, lines
        assert "set aside" not in lines, lines


def _address(process: subprocess.Popen[str], log: Any) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"PLAINTEXT://(127\.0\.0\.1:\d+)", line)
        if found is not None:
            return found.group(1)
    log.seek(0)
    raise AssertionError(f"the broker did not start: {log.read().decode()}")


def write(running: Running) -> None:
    """Everything that `check` looks for."""
    running.ottla(
        "topics create plain --partitions 3 -c retention.ms=-1 -c max.message.bytes=99999"
    )
    running.ottla("topics create compacted --partitions 1 -c cleanup.policy=compact")
    running.ottla("topics create transactions --partitions 1 -c retention.ms=-1")
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": running.bootstrap, "compression.type": codec})
        for number in range(RECORDS):
            value = f"{codec}-{number}".ljust(200, ".")
            producer.produce(
                "plain", value, f"{number}", partition=number % 3, headers={"h": codec}
            )
        assert producer.flush(30) == 0
    producer = Producer({"bootstrap.servers": running.bootstrap})
    for number in range(RECORDS):
        producer.produce("compacted", f"{number}", f"key-{number % 4}")
    assert producer.flush(30) == 0
    transact(running, "before")
    consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition("plain", 1, 7)], asynchronous=False)
    consumer.close()
    running.ottla("quotas alter --user alice --set producer_byte_rate=1048576")
    running.ottla("acls add --allow User:alice --operation read --topic plain")
    running.ottla("users add alice", "secret\n")
    running.ottla("configs set cluster log.cleaner.threads=2")


def transact(running: Running, word: str) -> None:
    """A committed and an aborted transaction of the same transactional id."""
    settings = {"bootstrap.servers": running.bootstrap, "transactional.id": "payments"}
    producer = Producer(settings)
    producer.init_transactions(30)
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("transactions", f"{word}-{ends.__name__}")
        assert producer.flush(30) == 0
        ends(30)


def check(running: Running, words: list[str]) -> None:
    """Fails for the first thing that is not there; `words` are those of all `transact` calls."""
    plain = read(running, "plain")
    expected = sorted(f"{codec}-{number}" for codec in CODECS for number in range(RECORDS))
    assert sorted(value.rstrip(".") for value in plain) == expected
    latest = dict(read_keys(running, "compacted"))
    assert latest == {f"key-{number % 4}": f"{number}" for number in range(RECORDS)}
    assert read(running, "transactions") == [f"{word}-commit_transaction" for word in words]
    found = running.json(f"groups describe {GROUP}")
    assert [(r["topic"], r["partition"], r["committed"]) for r in found["partitions"]] == [
        ("plain", 1, 7)
    ]
    settings = {row["name"]: row["value"] for row in running.json("configs describe topic plain")}
    assert settings == {"retention.ms": "-1", "max.message.bytes": "99999"}
    assert "log.cleaner.threads" in running.ottla("configs describe cluster")
    [quota] = running.json("quotas describe")
    assert (quota["user"], quota["limit"]) == ("alice", 1048576)
    [acl] = running.json("acls list")
    assert (acl["principal"], acl["operation"], acl["name"]) == ("User:alice", "read", "plain")
    assert "alice" in running.ottla("users list")
    assert running.ottla("partitions under-replicated")


def read_keys(running: Running, topic: str) -> list[tuple[str, str]]:
    """Keys and values of all committed records of a topic, in the order of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": running.bootstrap,
            "group.id": f"reader-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: list[tuple[str, str]] = []
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None, f"{topic} does not end"
        if message.error():
            ended.add(message.partition())
        else:
            found.append(((message.key() or b"").decode(), message.value().decode()))
    consumer.close()
    return found


def read(running: Running, topic: str) -> list[str]:
    """The values of all committed records of a topic."""
    return [value for _, value in read_keys(running, topic)]
