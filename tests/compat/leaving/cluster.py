"""Three brokers with ZooKeeper, replaced one after the other while clients produce and consume."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.compat.leaving.clients import Clients
from tests.compat.leaving.nodes import Nodes, documented
from tests.compat.leaving.state import SHARE_GROUP, Steps, load
from tests.compat.leaving.upgrade import MIGRATED, assert_no_complaints, finalize_features
from tests.doubles.apache_kafka import JavaProcess, start_zookeeper
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.command_line import CommandLine

BROKERS = (1, 2, 3)


class Cluster:
    """The running process of each broker, and of the controller."""

    def __init__(self, nodes: Nodes, steps: Steps, stack: ExitStack) -> None:
        self.nodes = nodes
        self.steps = steps
        self.brokers: dict[int, BrokerProcess | JavaProcess] = {}
        self.controller: JavaProcess | None = None
        stack.callback(self._stop)

    def _stop(self) -> None:
        for broker in self.brokers.values():
            if isinstance(broker, JavaProcess) or broker.is_running:
                broker.kill()
        if self.controller is not None:
            self.controller.kill()

    def start(self) -> None:
        for each in self.nodes.broker_ids:
            broker = self.nodes.ottla(each)
            self.brokers[each] = broker
            broker.start()

    def roll(self, name: str, file: Callable[[int], Path], *, is_4: bool = False) -> None:
        """Replace one broker after the other; the next one when all replicas are in sync."""
        for broker_id in self.nodes.broker_ids:
            self.brokers[broker_id].stop()
            self.brokers[broker_id] = self.nodes.kafka(file(broker_id), is_4=is_4)
            self.steps.serve(f"{name}, broker {broker_id}")
            self.steps.say(f"{name}: broker {broker_id} serves")

    def replace_controller(self, file: Path, *, is_4: bool = False) -> JavaProcess:
        if self.controller is not None:
            self.controller.stop()
        self.controller = self.nodes.kafka(file, is_4=is_4)
        return self.controller


def walk(folder: Path) -> None:
    nodes = Nodes(folder, BROKERS)
    with ExitStack() as stack:
        nodes.zookeeper = stack.enter_context(start_zookeeper(folder / "zookeeper"))
        steps = Steps(nodes)
        cluster = Cluster(nodes, steps, stack)
        cluster.start()
        load(nodes)
        steps.check("Ottla", has_new_groups=True)
        documented("ottla migrate -b ottla-1:9092 --to kafka-4")
        CommandLine(nodes.bootstrap).done("migrate", "--to", "kafka-4")
        clients = stack.enter_context(Clients(nodes))
        _to_kafka_39(cluster)
        _to_kraft(cluster)
        _to_kafka_4(cluster)
        steps.say(clients.finish())


def _to_kafka_39(cluster: Cluster) -> None:
    """The controller waits until no broker of Ottla is registered."""
    nodes, steps = cluster.nodes, cluster.steps
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    cluster_id = admin.list_topics(timeout=30).cluster_id
    controller = cluster.replace_controller(nodes.format_controller(cluster_id))
    cluster.roll("Kafka 3.9.1 with ZooKeeper", nodes.kafka_on_zookeeper)
    controller.wait_for(MIGRATED)
    assert "Still waiting for ZK brokers" in controller.output()
    steps.check("Kafka 3.9.1 with ZooKeeper, migrated")


def _to_kraft(cluster: Cluster) -> None:
    nodes, steps = cluster.nodes, cluster.steps
    cluster.roll("Kafka 3.9.1 with KRaft", nodes.kafka_on_kraft)
    steps.check("Kafka 3.9.1 with KRaft")
    cluster.replace_controller(nodes.controller(migrates=False))
    steps.check("Kafka 3.9.1 with KRaft, without ZooKeeper")


def _to_kafka_4(cluster: Cluster) -> None:
    nodes, steps = cluster.nodes, cluster.steps
    cluster.replace_controller(nodes.controller(migrates=False), is_4=True)
    cluster.roll("Kafka 4.3.1", nodes.kafka_on_kraft, is_4=True)
    finalize_features(nodes.bootstrap)
    # So that each of them loads groups from what Ottla has written.
    documented("ottla partitions elect-leaders -b ottla-1:9092")
    ottla = CommandLine(nodes.bootstrap)
    ottla.done("partitions", "elect-leaders")
    settings = ottla.done("configs", "describe", "group", SHARE_GROUP).output
    assert "share.auto.offset.reset" not in settings, "the page says that it stays behind"
    steps.check("Kafka 4.3.1", has_new_groups=True)
    newest = [each for each in cluster.brokers.values() if isinstance(each, JavaProcess)]
    for each in newest:
        each.wait_for(r"Finished loading of metadata from __consumer_offsets")
    assert_no_complaints(newest)
