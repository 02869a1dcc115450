"""A cluster that is attacked: broker 1 leads a topic which broker 2 follows, on `ottla zookeeper`.

Clients without rights use the plain listener of broker 1; the brokers and the honest client use its
SASL listener.
"""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.zookeeper_server import free_port
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually
from tests.doubles.sasl_talk import PLAIN_LOGIN, addresses, sasl_listener
from tests.doubles.zookeeper_process import ZooKeeperProcess, start_ottla_zookeeper

TOPIC = "honest"
LEADER, FOLLOWER = 1, 2
SECONDS = 60.0
# A follower leaves the ISR and a session ends after less than Kafka's 30 s and 18 s, and after far
# longer than an honest client may wait.
SETTINGS = {
    "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
    "super_users": "User:anna",
    "inter_broker_listener_name": "CLIENTS",
    "sasl_mechanism_inter_broker_protocol": "PLAIN",
    "listener_name_clients_plain_sasl_jaas_config": (
        f'{PLAIN_LOGIN} username="anna" password="s3cret" user_anna="s3cret" user_bob="pass";'
    ),
    "offsets_topic_num_partitions": "1",
    "offsets_topic_replication_factor": "1",
    "replica_lag_time_max_ms": "10000",
    "zookeeper_session_timeout_ms": "6000",
}


class Session(NamedTuple):
    """A session of ZooKeeper and the client's end of its connection."""

    session_id: str
    client: str


class Observation(NamedTuple):
    """What an attack must not change."""

    sessions: frozenset[Session]
    leader: int
    isr: tuple[int, ...]
    isr_shrinks: int
    broker_epochs: str


class HostileCluster:
    """The parts, as long as they run."""

    def __init__(
        self, brokers: Mapping[int, BrokerProcess], urls: Mapping[int, str], zookeeper_port: int
    ) -> None:
        self.brokers = brokers
        #: Of the HTTP ports.
        self.urls = urls
        self._zookeeper_port = zookeeper_port
        self.open_port, self.sasl_port = (
            int(each.rpartition(":")[2]) for each in addresses(brokers[LEADER])
        )
        #: Of an honest client.
        self.config = {
            "bootstrap.servers": f"127.0.0.1:{self.sasl_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "anna",
            "sasl.password": "s3cret",
        }
        self._admin = AdminClient(self.config)

    def create_topic(self) -> None:
        """One partition, led by the broker that is attacked; acks=all needs the follower."""
        topic = NewTopic(
            TOPIC, 1, replica_assignment=[[LEADER, FOLLOWER]], config={"min.insync.replicas": "2"}
        )
        for future in self._admin.create_topics([topic]).values():
            future.result(SECONDS)
        eventually(lambda: self.observe().isr == (LEADER, FOLLOWER), "no follower", seconds=SECONDS)

    def observe(self) -> Observation:
        """Sessions, ISR and registrations now."""
        topics = self._admin.list_topics(TOPIC, SECONDS).topics
        partition = topics[TOPIC].partitions.get(0)
        return Observation(
            frozenset(self._sessions()),
            -1 if partition is None else partition.leader,
            () if partition is None else tuple(sorted(partition.isrs)),
            self.metric("ottla_isr_shrinks"),
            self._word(b"dump"),
        )

    def _sessions(self) -> Iterator[Session]:
        for line in self._word(b"cons").splitlines():
            found = re.search(r"/(\S+?)\[.*sid=(0x\w+)", line)
            if found is not None:
                yield Session(found[2], found[1])

    def _word(self, word: bytes) -> str:
        with socket.create_connection(("127.0.0.1", self._zookeeper_port), SECONDS) as connection:
            connection.sendall(word)
            response = b""
            while chunk := connection.recv(65536):
                response += chunk
        return response.decode()

    def metric(self, name: str) -> int:
        """A number of the broker that is attacked."""
        with urllib.request.urlopen(f"{self.urls[LEADER]}/metrics", timeout=SECONDS) as response:
            text = response.read().decode()
        found = re.search(rf"^{name}(?:_total)? (\S+)", text, re.MULTILINE)
        assert found is not None, name
        return int(float(found[1]))


@contextmanager
def hostile_cluster(directory: Path) -> Iterator[HostileCluster]:
    """Two brokers and a ZooKeeper in processes of their own; ended when the block ends."""
    with start_ottla_zookeeper(directory, tick_time_ms=500) as zookeeper:
        brokers: dict[int, BrokerProcess] = {}
        urls: dict[int, str] = {}
        try:
            for broker_id in (LEADER, FOLLOWER):
                brokers[broker_id], urls[broker_id] = _started(directory, broker_id, zookeeper)
            cluster = HostileCluster(brokers, urls, zookeeper.port)
            cluster.create_topic()
            yield cluster
        finally:
            for broker in brokers.values():
                if broker.is_running:
                    broker.kill()


def _started(
    directory: Path, broker_id: int, zookeeper: ZooKeeperProcess
) -> tuple[BrokerProcess, str]:
    http_port = free_port()
    settings = sasl_listener() | SETTINGS
    texts = {name.replace("_", "."): text for name, text in settings.items()}
    texts |= {
        "broker.id": str(broker_id),
        "zookeeper.connect": zookeeper.connect,
        "ottla.metrics.address": f"127.0.0.1:{http_port}",
    }
    broker = BrokerProcess(directory / f"broker-{broker_id}", texts)
    broker.start()
    return broker, f"http://127.0.0.1:{http_port}"
