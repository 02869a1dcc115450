"""One damaged file in each partition: Ottla serves what Apache Kafka 3.9.1 serves, and more.

Kafka writes the partitions and stops cleanly. Both start on copies with the same damages. A leader
epoch checkpoint is not among them: Kafka ends at the start if a number of it is damaged.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.protocol.errors import ErrorCode
from tests.damage.fetching import NOT_PARSED, Served, fetch_offsets
from tests.doubles.apache_kafka import start_kafka, start_zookeeper
from tests.doubles.broker_process import start_broker
from tests.doubles.kafka_traffic import wait_until_gone

pytestmark = pytest.mark.kafka

RECORDS = 120
FIRST = "00000000000000000000"


def put(path: Path, at: int, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    at %= len(data)
    data[at : at + len(content)] = content
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def negative(path: Path) -> None:
    put(path, -4, struct.pack(">i", -5))


# By topic: the file and what happens to it. Those of a `.log` lose records.
DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "negative-position": (f"{FIRST}.index", negative),
    "position-in-a-batch": (f"{FIRST}.index", lambda path: put(path, 4, struct.pack(">i", 37))),
    "zeros-in-index": (f"{FIRST}.index", lambda path: put(path, 8, bytes(16))),
    "index-cut": (f"{FIRST}.index", lambda path: cut(path, 13)),
    "index-empty": (f"{FIRST}.index", lambda path: cut(path, 0)),
    "index-removed": (f"{FIRST}.index", Path.unlink),
    "negative-time": (f"{FIRST}.timeindex", lambda path: put(path, -12, b"\xff" * 4)),
    "time-index-removed": (f"{FIRST}.timeindex", Path.unlink),
    "log-header": (f"{FIRST}.log", lambda path: put(path, 520, bytes(120))),
    "log-cut": (f"{FIRST}.log", lambda path: cut(path, 700)),
}
# Both lose some of their records.
WITH_LOG = ("log-header", "log-cut")


def damage(data: Path) -> None:
    for topic, (name, action) in DAMAGES.items():
        action(data / f"{topic}-0" / name)


def served_by(bootstrap: str) -> dict[str, Served]:
    return {topic: fetch_offsets(bootstrap, topic, RECORDS) for topic in DAMAGES}


def test_what_is_served(tmp_path: Path) -> None:
    directory = tmp_path / "kafka"
    with start_zookeeper(tmp_path) as zookeeper:
        with start_kafka(directory, zookeeper=zookeeper) as kafka:
            for topic in DAMAGES:
                settings = ("segment.bytes=2000", "index.interval.bytes=150")
                options = [text for each in settings for text in ("--config", each)]
                kafka.topics("--create", "--topic", topic, "--partitions", "1", *options)
            producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
            for number in range(RECORDS):
                for topic in DAMAGES:
                    producer.produce(topic, b"value-%d" % number, partition=0)
                producer.flush()
            del producer  # it would look for the stopped broker
            kafka.stop()
        wait_until_gone(zookeeper)
        intact = tmp_path / "intact"
        shutil.move(directory / "data", intact)
        shutil.copytree(intact, directory / "data")
        damage(directory / "data")
        with start_kafka(directory, zookeeper=zookeeper) as kafka:
            by_kafka = served_by(kafka.bootstrap)
            kafka.stop()
        wait_until_gone(zookeeper)
        damage(intact)
        with start_broker(
            tmp_path / "ottla", log_dirs=intact, zookeeper_connect=zookeeper, broker_id=0
        ) as broker:
            by_ottla = served_by(broker.bootstrap)
            assert broker.stop() == 0
            log = broker.log()
    assert "Traceback" not in log
    assert "is offline" not in log
    everything = {number: b"value-%d" % number for number in range(RECORDS)}
    for topic, kafkas in by_kafka.items():
        print(topic, "Kafka:", _summary(kafkas), "Ottla:", _summary(by_ottla[topic]))
    for topic, kafkas in by_kafka.items():
        ours = by_ottla[topic]
        assert ours.values.items() >= kafkas.values.items(), topic
        if topic not in WITH_LOG:
            assert ours.values == everything, topic
        # Of a segment that was cut short, Kafka silently goes on with the next one.
        assert set(ours.errors.values()) <= {ErrorCode.CORRUPT_MESSAGE, NOT_PARSED}, topic


def _summary(served: Served) -> str:
    codes = sorted(set(served.errors.values()))
    missing = [n for n in range(RECORDS) if n not in served.values]
    span = f", not {missing[0]} to {missing[-1]}" if missing else ""
    return f"{len(served.values)} records{span}, errors {codes}"
