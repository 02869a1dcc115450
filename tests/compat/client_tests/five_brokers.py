"""Five brokers with one ZooKeeper, whose clients reach them through Toxiproxy only."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from tests.compat.ecosystem.clusters import KAFKA, KafkaNode, Node
from tests.doubles.apache_kafka import start_zookeeper
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually

COUNT = 5
START_SECONDS = 300.0  # five JVMs, on a machine that may be busy


def _settings(number: int) -> dict[str, object]:
    """Those of Sarama's Compose file and server.properties; its proxy is advertised to clients."""
    listeners = f"PLAINTEXT://127.0.0.1:{19090 + number},CLIENTS://127.0.0.1:{39090 + number}"
    proxied = f"PLAINTEXT://127.0.0.1:{19090 + number},CLIENTS://localhost:{29090 + number}"
    return {
        "broker.id": number,
        "broker.rack": number,
        "listeners": listeners,
        "advertised.listeners": proxied,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "default.replication.factor": 2,
        "offsets.topic.replication.factor": 2,
        "offsets.topic.num.partitions": 50,
        "transaction.state.log.replication.factor": 2,
        "transaction.state.log.num.partitions": 50,
        # As its server.properties has it: a test commits while one of the two replicas is away.
        "transaction.state.log.min.isr": 1,
        "zookeeper.session.timeout.ms": 18_000,
        "zookeeper.connection.timeout.ms": 60_000,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "controlled.shutdown.enable": "true",
    }


class FiveBrokers:
    """The brokers by id, 1 to 5."""

    def __init__(self, zookeeper: str) -> None:
        self.nodes: dict[int, Node] = {}
        self._zookeeper = zookeeper
        self._admin = AdminClient({"bootstrap.servers": "127.0.0.1:19091", "log_level": 0})

    def wait_until_complete(self) -> None:
        """Waits until all brokers see each other."""
        eventually(self._is_complete, "not all brokers are there", seconds=START_SECONDS)

    def warm_up(self) -> None:
        """Creates and deletes a topic: the tests give brokers that have just started a minute."""
        made = self._admin.create_topics([NewTopic("warm-up", 64, 3)], operation_timeout=300)
        made["warm-up"].result(START_SECONDS)
        self.remove_topics()

    def remove_topics(self) -> None:
        """Deletes all topics but the internal ones; returns when a topic of the same name can be
        created.

        Each process of the tests deletes the topics of the last one and takes them for deleted at
        once. A broker of Kafka still has them for some seconds: it refuses to create them, and
        then they are gone.
        """
        known = self._admin.list_topics(timeout=60).topics
        names = [name for name in known if not name.startswith("__")]
        if names:
            deleted = self._admin.delete_topics(names, operation_timeout=300)
            for name in names:
                deleted[name].result(START_SECONDS)
        client = KazooClient(self._zookeeper)
        client.start(timeout=START_SECONDS)
        try:
            eventually(
                lambda: not {*client.get_children("/brokers/topics")}.intersection(names),
                "the topics are not deleted",
                seconds=START_SECONDS,
            )
        finally:
            client.stop()
            client.close()

    def _is_complete(self) -> bool:
        try:
            found = self._admin.list_topics(timeout=10)
        except KafkaException:
            return False
        return len(found.brokers) == COUNT and found.controller_id >= 0


@contextmanager
def five_brokers(kind: str, directory: Path, proxy: str) -> Iterator[FiveBrokers]:
    """The brokers, and the proxies `kafka1` to `kafka5` in the Toxiproxy at `proxy`."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(start_zookeeper(directory))
        brokers = FiveBrokers(zookeeper)
        for number in range(1, COUNT + 1):
            settings = _settings(number)
            place = directory / f"broker-{number}"
            if kind == KAFKA:
                node: Node = _Kafka(place, zookeeper, settings)
            else:
                texts = {name: str(value) for name, value in settings.items()}
                node = BrokerProcess(place, {"zookeeper.connect": zookeeper, **texts})
            brokers.nodes[number] = node
            stack.callback(_end, node)
            node.start()
            _add_proxy(proxy, number)
        brokers.wait_until_complete()
        brokers.warm_up()
        yield brokers


class _Kafka(KafkaNode):
    """With the listeners of its settings, not one at a free port."""

    def __init__(self, directory: Path, zookeeper: str, settings: dict[str, object]) -> None:
        names = {name.replace(".", "_"): value for name, value in settings.items()}
        super().__init__(directory, zookeeper, names)
        self._settings = names


def _end(node: Node) -> None:
    if not isinstance(node, BrokerProcess):
        node.stop()
    elif node.is_running:
        node.kill()


def _add_proxy(proxy: str, number: int) -> None:
    """Waits for Toxiproxy, too."""
    row = {
        "name": f"kafka{number}",
        "listen": f"127.0.0.1:{29090 + number}",
        "upstream": f"127.0.0.1:{39090 + number}",
        "enabled": True,
    }
    request = urllib.request.Request(
        f"http://{proxy}/proxies",
        json.dumps(row).encode(),
        {"Content-Type": "application/json", "User-Agent": "ottla"},
    )

    def is_added() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return bool(response.status == 201)
        except ConnectionError:
            return False
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionError):
                return False
            raise

    eventually(is_added, f"no proxy for broker {number}", seconds=60)
