"""Three brokers and a ZooKeeper, each on a host of its own; a broker is Ottla or Apache Kafka.

A broker keeps its id, address and data when it is replaced with the other kind: that is a rolling
upgrade. Its data directory is a disk of its own, which can be filled and lose its power.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.compat.system.disks import Disk
from tests.compat.system.hosts import Hosts, run
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually
from tests.doubles.kafka_process import KafkaBrokerProcess
from tests.doubles.zookeeper_process import START_DEADLINE_S, ZooKeeperProcess

BROKER_IDS = (1, 2, 3)
CLIENTS, ZOOKEEPER = "clients", "zookeeper"
PORT = 9092
SESSION_TIMEOUT_MS = 9_000
RECOVERY_S = 180.0
# Each broker reads a changed setting from ZooKeeper, some milliseconds after the response.
_SETTING_S = 3.0
KINDS: dict[str, type[BrokerProcess]] = {"ottla": BrokerProcess, "kafka": KafkaBrokerProcess}

SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "replica.lag.time.max.ms": "5000",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "5",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "leader.imbalance.check.interval.seconds": "10",
    "inter.broker.protocol.version": "3.9",
}


def host(broker_id: int) -> str:
    """The name of a broker's host."""
    return f"broker-{broker_id}"


class HostedZooKeeper(ZooKeeperProcess):
    """A ZooKeeper on its host; the runner reaches it from outside."""

    def __init__(self, directory: Path, hosts: Hosts) -> None:
        self._hosts = hosts
        address = hosts.address(ZOOKEEPER)
        super().__init__(directory, {"clientPortAddress": address}, ())
        self.connect = f"{address}:{self.port}"

    def _command_line(self) -> list[str]:
        return [*self._hosts.on(ZOOKEEPER), *super()._command_line()]

    def _command(self, word: bytes) -> bytes:
        try:
            address = (self._hosts.address(ZOOKEEPER), self.port)
            with socket.create_connection(address, timeout=5) as connection:
                connection.sendall(word)
                return connection.recv(65536)
        except OSError:
            return b""


class Cluster:
    """The brokers by id, and what can happen to them."""

    def __init__(self, directory: Path, hosts: Hosts, zookeeper: ZooKeeperProcess) -> None:
        self.directory = directory
        self.hosts = hosts
        self.zookeeper = zookeeper
        self.brokers: dict[int, BrokerProcess] = {}
        self._stopped: list[int] = []
        self._ballast: list[Path] = []
        self.topics: dict[str, int] = {}
        #: The kind with which a broker of a kind is replaced, and the one replaced last.
        self.other_kind = {"ottla": "kafka", "kafka": "ottla"}
        self.replaced = BROKER_IDS[0]
        images = directory / "images"
        images.mkdir()
        run("mount", "-t", "tmpfs", "none", str(images))
        self.disks = {
            each: Disk(self._folder(each) / "data", images / host(each)) for each in BROKER_IDS
        }
        self.bootstrap = ",".join(f"{hosts.address(host(each))}:{PORT}" for each in BROKER_IDS)
        self._admin: AdminClient | None = None

    def _folder(self, broker_id: int) -> Path:
        return self.directory / host(broker_id)

    @property
    def admin(self) -> AdminClient:
        """One client for all questions of the runner."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def start(self, broker_id: int, kind: str) -> None:
        """Starts a broker, of this kind from now on, on the data that is there."""
        address = f"PLAINTEXT://{self.hosts.address(host(broker_id))}:{PORT}"
        broker = KINDS[kind](
            self._folder(broker_id),
            {
                **SETTINGS,
                "broker.id": str(broker_id),
                "zookeeper.connect": self.zookeeper.connect,
                "listeners": address,
                # A directory below the mount: the mount point is not the broker's to rename.
                "log.dirs": str(self.disks[broker_id].place / "logs"),
            },
        )
        broker.port = PORT
        broker.prefix = self.hosts.on(host(broker_id))
        self.brokers[broker_id] = broker
        broker.start()

    def controller(self) -> int:
        """The id of the controller, or of any broker if there is none."""
        found = self.admin.list_topics(timeout=60).controller_id
        return found if found in BROKER_IDS else BROKER_IDS[0]

    def create_topic(self, name: str, partitions: int) -> None:
        topic = NewTopic(name, partitions, 3, config={"retention.ms": "-1"})

        def is_created() -> bool:
            try:
                self.admin.create_topics([topic], operation_timeout=60)[name].result(90)
            except KafkaException as error:
                # The client does not try again when the controller has changed.
                return error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            return True

        eventually(is_created, f"{name} is not created", seconds=RECOVERY_S, pause_seconds=1.0)
        self.topics[name] = partitions

    def delete_topic(self, name: str) -> None:
        self.topics.pop(name, None)
        self.admin.delete_topics([name])[name].result(60)

    # -- troubles -------------------------------------------------------------------------------

    def signal(self, broker_id: int, number: signal.Signals) -> None:
        """SIGSTOP is taken back by `heal`."""
        os.kill(self.brokers[broker_id].pid, number)
        if number == signal.SIGSTOP:
            self._stopped.append(broker_id)

    def cut(self, broker_id: int, others: Sequence[str]) -> None:
        """Parts a broker from hosts."""
        self.hosts.cut(host(broker_id), [each for each in others if each != host(broker_id)])

    def fill_disk(self, broker_id: int) -> None:
        """Takes what is free on the broker's disk, and what becomes free in the next moments."""
        ballast = self.disks[broker_id].place / f"ballast-{len(self._ballast)}"
        self._ballast.append(ballast)
        with ballast.open("wb") as file:
            piece, size = 1 << 24, 0
            while piece:  # the broker takes room at the same time, so halves are tried
                try:
                    os.posix_fallocate(file.fileno(), size, piece)
                    size += piece
                except OSError:
                    piece >>= 1

    def kill(self, broker_ids: Sequence[int]) -> None:
        """kill -9 of these brokers at the same moment."""
        for broker_id in broker_ids:
            self.brokers[broker_id].send_signal(signal.SIGKILL)
        for broker_id in broker_ids:
            self.brokers[broker_id].kill()

    def sync_each_record(self, value: bool) -> None:
        """log.flush.interval.messages=1 of all brokers: a record is synced, then acknowledged.
        What was written before is synced, too."""
        kind = AlterConfigOpType.SET if value else AlterConfigOpType.DELETE
        for broker_id in BROKER_IDS:
            entry = ConfigEntry("log.flush.interval.messages", "1", incremental_operation=kind)
            resource = ConfigResource("broker", str(broker_id), incremental_configs=[entry])

            def is_set(resource: ConfigResource = resource) -> bool:
                try:
                    self.admin.incremental_alter_configs([resource])[resource].result(30)
                except (KafkaException, TimeoutError):
                    # After all brokers were down it can take minutes until this client has
                    # connections to each again. A new one has them at once.
                    self._admin = None
                    return False
                return True

            eventually(is_set, f"broker {broker_id} takes no setting", seconds=RECOVERY_S)
        if value:
            time.sleep(_SETTING_S)
            for disk in self.disks.values():
                disk.sync()

    def heal(self) -> None:
        """Everything runs and reaches everything; returns when all replicas are in sync."""
        self.hosts.heal()
        for ballast in self._ballast:
            ballast.unlink()
        self._ballast.clear()
        for broker_id in self._stopped:
            self.signal(broker_id, signal.SIGCONT)
        self._stopped.clear()
        for broker_id, broker in self.brokers.items():
            if broker.has_ended():
                broker.wait_for_end()
            if not broker.is_running:
                self.start(broker_id, kind_of(broker))
        self.wait_until_in_sync()

    def wait_until_in_sync(self) -> None:
        """Waits until all brokers are registered and each replica of the topics is in sync."""
        client = KazooClient(self.zookeeper.connect)
        client.start(timeout=RECOVERY_S)
        try:
            eventually(
                lambda: self._is_in_sync(client), "not all replicas are in sync", seconds=RECOVERY_S
            )
        finally:
            client.stop()
            client.close()

    def _is_in_sync(self, client: KazooClient) -> bool:
        """ZooKeeper is asked: a broker that was cut off has metadata of the time before it."""
        try:
            if len(client.get_children("/brokers/ids")) < len(BROKER_IDS):
                return False
            return all(
                len(client.get_children(f"/brokers/topics/{name}/partitions")) == count
                and all(
                    self._isr_size(client, name, each) == len(BROKER_IDS) for each in range(count)
                )
                for name, count in self.topics.items()
            )
        except NoNodeError:  # a topic that is being created
            return False

    def _isr_size(self, client: KazooClient, topic: str, partition: int) -> int:
        state, _ = client.get(f"/brokers/topics/{topic}/partitions/{partition}/state")
        return len(json.loads(state)["isr"])

    def close(self) -> None:
        self.hosts.heal()
        for broker in self.brokers.values():
            if broker.is_running:
                broker.kill()


def kind_of(broker: BrokerProcess) -> str:
    return next(name for name, kind in KINDS.items() if type(broker) is kind)


@contextmanager
def start_cluster(directory: Path, kind: str) -> Iterator[Cluster]:
    """Three brokers of one kind; everything ended when the block ends."""
    hosts = Hosts((*map(host, BROKER_IDS), ZOOKEEPER, CLIENTS))
    tree = directory / "zookeeper"
    tree.mkdir()
    # In memory, as the disks of the brokers: what other programs write does not stop it.
    run("mount", "-t", "tmpfs", "none", str(tree))
    zookeeper = HostedZooKeeper(tree, hosts)
    cluster = Cluster(directory, hosts, zookeeper)
    try:
        zookeeper.start()
        for broker_id in BROKER_IDS:
            cluster.start(broker_id, kind)
        deadline = time.monotonic() + START_DEADLINE_S
        while len(cluster.admin.list_topics(timeout=60).brokers) < len(BROKER_IDS):
            assert time.monotonic() < deadline, "the brokers do not see each other"
            time.sleep(0.1)
        yield cluster
    finally:
        cluster.close()
        zookeeper.stop()
