"""Kafka's Java producer 4.3 through changes of `transaction.version`, by Kafka's own tool."""

from __future__ import annotations

import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.transactions.records import read_value
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC
from tests.doubles.apache_kafka import JVM_OPTIONS, JavaProcess
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.kraft_kafka import kraft_library
from tests.doubles.raising_producer import TRANSACTION_VERSION, level_at
from tests.doubles.wire import Wire

RECORDS = 10_000
PER_S = 500
PARTITIONS = 3
DEADLINE_S = 180.0
UPGRADE, SAFE_DOWNGRADE = 1, 2


def java(main_class: str, *arguments: str) -> list[str]:
    return ["java", *JVM_OPTIONS, "-cp", f"{kraft_library()}/*", main_class, *arguments]


def features_tool(bootstrap: str, *arguments: str) -> str:
    command = java("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", bootstrap)
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def set_level(bootstrap: str, level: int) -> None:
    kind = UPGRADE if level > level_at(bootstrap)[0] else SAFE_DOWNGRADE
    update = FeatureUpdateKey(TRANSACTION_VERSION, level, upgrade_type=kind)
    with Wire(bootstrap) as wire:
        response: Any = wire.ask(UpdateFeaturesRequest(feature_updates=[update]), 1)
    assert [row.error_code for row in response.results] == [0], response.results[0].error_message


def read(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[Any]:
    """The messages of a topic up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found, ends = [], 0
    while ends < partitions:
        message = consumer.poll(60)
        assert message is not None, f"no end of {topic}"
        if message.error() is None:
            found.append(message)
        else:
            ends += 1
    consumer.close()
    return found


def test_upgrades_and_downgrades_under_load(tmp_path: Path) -> None:
    with start_broker(tmp_path, transaction_state_log_num_partitions=1) as broker:
        bootstrap = broker.bootstrap
        described = " ".join(features_tool(bootstrap, "describe").split())
        assert described.startswith(
            "Feature: transaction.version SupportedMinVersion: 0 SupportedMaxVersion: 2 "
            "FinalizedVersionLevel: 2 Epoch: "
        )
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(60)
        load = JavaProcess(
            java(
                "org.apache.kafka.tools.ProducerPerformance",
                *("--topic", "t", "--num-records", str(RECORDS), "--record-size", "100"),
                *("--throughput", str(PER_S), "--transactional-id", "x"),
                *("--transaction-duration-ms", "50"),
                *("--producer-props", f"bootstrap.servers={bootstrap}"),
            ),
            tmp_path / "load.log",
        )
        try:
            load.wait_for("records sent", DEADLINE_S)
            for level in (1, 2, 0, 2, 1, 2):
                time.sleep(1.0)  # some transactions between two changes
                set_level(bootstrap, level)
                eventually(lambda level=level: level_at(bootstrap)[0] == level)
            features_tool(bootstrap, "downgrade", "--feature", f"{TRANSACTION_VERSION}=1")
            load.process.wait(DEADLINE_S)
        finally:
            load.kill()
        assert load.process.returncode == 0, load.output()
        assert "Exception" not in load.output()
        assert len(read(bootstrap, "t", PARTITIONS, "read_committed")) == RECORDS
        states = read(bootstrap, TRANSACTION_STATE_TOPIC, 1, "read_uncommitted")
        used = [read_value("x", each.value()).client_version for each in states]
        changes = [now for before, now in pairwise(used) if before != now]
        # A downgrade closes its connection. An upgrade is noticed with the next one, as in Kafka.
        assert changes[:2] == [2, 0], changes
