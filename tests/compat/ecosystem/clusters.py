"""One cluster for a program: of Ottla or of Apache Kafka, with the same settings.

    with start_nodes("kafka", directory, count=3) as cluster:
        cluster.bootstrap, cluster.nodes[0].kill(), cluster.nodes[0].start()

A single Ottla broker has the embedded tree; more of them, and Kafka's, have a ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from ottla.cli.zookeeper_server import free_port
from tests.doubles.apache_kafka import KAFKA_VERSION, ApacheKafka, start_kafka, start_zookeeper
from tests.doubles.broker_cluster import start_cluster
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually

OTTLA, KAFKA = "ottla", "kafka"
TITLES = {OTTLA: "Ottla", KAFKA: f"Apache Kafka {KAFKA_VERSION}"}

START_SECONDS = 120.0


class Node(Protocol):
    """One broker; its port stays the same over restarts."""

    @property
    def bootstrap(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> object: ...
    def kill(self) -> None: ...


class KafkaNode:
    """A broker of Apache Kafka that can be stopped, killed and started on the same data."""

    def __init__(self, directory: Path, zookeeper: str, settings: dict[str, object]) -> None:
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._directory = directory
        self._zookeeper = zookeeper
        self._settings = {**settings, "listeners": f"PLAINTEXT://{self.bootstrap}"}
        self._running = ExitStack()
        self._kafka: ApacheKafka | None = None

    def start(self) -> None:
        self._wait_until_unregistered()
        self._kafka = self._running.enter_context(
            start_kafka(self._directory, zookeeper=self._zookeeper, **self._settings)
        )

    def stop(self) -> None:
        self._running.close()

    def kill(self) -> None:
        assert self._kafka is not None, "the broker is not running"
        self._kafka.kill()
        self._running.close()

    def _wait_until_unregistered(self) -> None:
        """A broker of Kafka that starts before the session of its last process ended gives up."""
        client = KazooClient(self._zookeeper)
        client.start(timeout=START_SECONDS)
        try:
            eventually(
                lambda: not client.exists(f"/brokers/ids/{self._settings['broker_id']}"),
                "the session of the killed broker does not end",
            )
        finally:
            client.stop()
            client.close()


class Cluster:
    """Brokers that run; `kind` is `ottla` or `kafka`."""

    def __init__(self, kind: str, nodes: Sequence[Node]) -> None:
        self.kind = kind
        self.nodes = nodes

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)


def _settings(count: int, more: dict[str, object]) -> dict[str, object]:
    factor = min(3, count)
    return {
        # A machine that is busy with other things must not end sessions or shrink ISRs.
        "replica_lag_time_max_ms": 30_000,
        "zookeeper_session_timeout_ms": 10_000,
        "zookeeper_connection_timeout_ms": 60_000,
        "num_partitions": 1,
        "default_replication_factor": factor,
        "min_insync_replicas": min(2, count),
        "offsets_topic_num_partitions": 5,
        "offsets_topic_replication_factor": factor,
        "transaction_state_log_num_partitions": 5,
        "transaction_state_log_replication_factor": factor,
        "transaction_state_log_min_isr": min(2, count),
        "group_initial_rebalance_delay_ms": 0,
        **more,
    }


@contextmanager
def start_nodes(
    kind: str, directory: Path, count: int = 1, **settings: object
) -> Iterator[Cluster]:
    """A cluster that serves clients and knows all its brokers; always ended."""
    values = _settings(count, settings)
    with ExitStack() as stack:
        nodes: list[Node] = []
        if kind == OTTLA and count == 1:
            nodes.append(stack.enter_context(start_broker(directory, **values)))
        elif kind == OTTLA:
            several = stack.enter_context(start_cluster(directory, count, **values))
            nodes.extend(several.brokers.values())
        else:
            zookeeper = stack.enter_context(start_zookeeper(directory))
            for number in range(count):
                broker = KafkaNode(
                    directory / f"kafka-{number}",
                    zookeeper,
                    {**values, "broker_id": number, "controlled_shutdown_enable": count > 1},
                )
                stack.callback(broker.stop)
                broker.start()
                nodes.append(broker)
        cluster = Cluster(kind, nodes)
        _wait_for_metadata(cluster.bootstrap, count)
        yield cluster


def _wait_for_metadata(bootstrap: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def is_complete() -> bool:
        try:
            metadata = admin.list_topics(timeout=10)
        except KafkaException:  # slow, on a machine that is busy with other things
            return False
        return len(metadata.brokers) == count and metadata.controller_id >= 0

    eventually(is_complete, f"no {count} brokers with a controller", seconds=START_SECONDS)
