"""One broker without ZooKeeper: `ottla zookeeper` on its directory, then the steps of Kafka."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from ottla.cli.zookeeper_server import free_port
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.compat.leaving.nodes import Nodes, documented
from tests.compat.leaving.state import Steps, load
from tests.compat.leaving.upgrade import MIGRATED, assert_no_complaints, finalize_features
from tests.doubles.apache_kafka import REPOSITORY
from tests.doubles.command_line import CommandLine
from tests.doubles.wire import Wire

NODE = 1


def walk(folder: Path) -> None:
    nodes = Nodes(folder, (NODE,))
    steps = Steps(nodes)
    ottla = nodes.ottla(NODE)
    ottla.start()
    try:
        load(nodes)
        _leave_a_member(nodes.bootstrap)
        steps.check("Ottla", has_new_groups=True)
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
        cluster_id = admin.list_topics(timeout=30).cluster_id
        checks = CommandLine(nodes.bootstrap)("migrate", "--to", "kafka-4").output
        assert "ottla zookeeper" in checks, checks
        assert "abandoned: use the consumer protocol" in checks, checks
    finally:
        ottla.stop()
    documented("ottla zookeeper --data-dir DATA --port 2181")
    port = free_port()
    nodes.zookeeper = f"127.0.0.1:{port}"
    controller = nodes.format_controller(cluster_id)
    with _zookeeper(nodes.data(NODE), port), nodes.running(controller) as migrating:
        with nodes.running(nodes.kafka_on_zookeeper(NODE)):
            migrating.wait_for(MIGRATED)
            steps.check("Kafka 3.9.1 with ZooKeeper, migrated")
        with nodes.running(nodes.kafka_on_kraft(NODE)):
            steps.check("Kafka 3.9.1 with KRaft")
    final, kraft = nodes.controller(migrates=False), nodes.kafka_on_kraft(NODE)
    with nodes.running(final), nodes.running(kraft):
        steps.check("Kafka 3.9.1 with KRaft, without ZooKeeper")
    with nodes.running(final, is_4=True), nodes.running(kraft, is_4=True) as newest:
        steps.serve("Kafka 4.3.1")
        finalize_features(nodes.bootstrap)
        steps.check("Kafka 4.3.1", has_new_groups=True)
        newest.wait_for(r"Finished loading of metadata from __consumer_offsets")
        assert_no_complaints([newest])


@contextmanager
def _zookeeper(data: Path, port: int) -> Iterator[None]:
    """`ottla zookeeper` on the directory of the broker."""
    command = [sys.executable, "-m", "ottla.cli.main", "zookeeper", "--data-dir", str(data)]
    process = subprocess.Popen([*command, "--port", str(port)], cwd=REPOSITORY)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _leave_a_member(bootstrap: str) -> None:
    """A member of the consumer protocol that is still in its group when Ottla stops."""
    request = ConsumerGroupHeartbeatRequest(
        *("abandoned", "member", 0),
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    with Wire(bootstrap) as wire:
        response: Any = wire.ask(request, 1)
    assert response.error_code == 0, response
    assert response.assignment.topic_partitions, response
