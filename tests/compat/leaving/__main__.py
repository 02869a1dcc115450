"""From one Ottla broker to Kafka 4.3, with the commands of docs/leaving.md and the real jars.

    python -m tests.compat.leaving

Ottla without ZooKeeper, `ottla zookeeper` on its directory, Apache Kafka 3.9.1 on both, a KRaft
controller that migrates, KRaft 3.9.1, Kafka 4.3.1. After each step clients see the same records
under both isolation levels, committed offsets, ACLs, SCRAM users, quotas and settings.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from ottla.cli.zookeeper_server import free_port
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.doubles.apache_kafka import (
    JVM_OPTIONS,
    REPOSITORY,
    JavaProcess,
    java_command,
    kafka_library,
)
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.kraft_kafka import kraft_library
from tests.doubles.wire import Wire

TOPICS = ("orders", "state", "transfers")
GROUP = "readers"
NODE, CONTROLLER_NODE = 1, 3000
PORT, CONTROLLER_PORT, ZOOKEEPER_PORT = free_port(), free_port(), free_port()
BOOTSTRAP = f"127.0.0.1:{PORT}"
MIGRATED = "Completed migration of metadata from ZooKeeper to KRaft"
# What Kafka must not log about records that Ottla has written.
COMPLAINTS = ("Size of assignment epochs", "Unknown record type", "Failed to deserialize")
_LISTENERS = f"listeners=PLAINTEXT://{BOOTSTRAP}"
_QUORUM = f"""\
controller.quorum.voters={CONTROLLER_NODE}@127.0.0.1:{CONTROLLER_PORT}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
"""
_ACLS = """\
allow.everyone.if.no.acl.found=true
super.users=User:ANONYMOUS
"""
_ZOOKEEPER_ACLS = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer\n" + _ACLS
_KRAFT_ACLS = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n" + _ACLS
)
_INTERNAL = """\
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class Road:
    """The directory of the broker, and the files of each step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.zookeeper = f"zookeeper.connect=127.0.0.1:{ZOOKEEPER_PORT}\n"

    def write(self, name: str, text: str) -> Path:
        path = self.folder / f"{name}.properties"
        path.write_text(text)
        return path

    def kafka_on_zookeeper(self) -> Path:
        """A broker of Kafka 3.9 that takes part in the migration."""
        return self.write(
            "kafka",
            f"broker.id={NODE}\n{_LISTENERS}\nlog.dirs={self.data}\n{self.zookeeper}"
            "inter.broker.protocol.version=3.9\nzookeeper.metadata.migration.enable=true\n"
            f"{_QUORUM}{_ZOOKEEPER_ACLS}{_INTERNAL}",
        )

    def kafka_on_kraft(self) -> Path:
        return self.write(
            "kraft",
            f"process.roles=broker\nnode.id={NODE}\n{_LISTENERS}\nlog.dirs={self.data}\n"
            f"{_QUORUM}{_KRAFT_ACLS}{_INTERNAL}",
        )

    def controller(self, *, migrates: bool) -> Path:
        migration = f"zookeeper.metadata.migration.enable=true\n{self.zookeeper}"
        return self.write(
            "controller-migrating" if migrates else "controller",
            f"process.roles=controller\nnode.id={CONTROLLER_NODE}\n"
            f"listeners=CONTROLLER://127.0.0.1:{CONTROLLER_PORT}\nlog.dirs={self.folder / 'ctl'}\n"
            f"{_QUORUM}{_KRAFT_ACLS}{migration if migrates else ''}",
        )


@contextmanager
def java(road: Road, name: str, properties: Path, *, is_4: bool = False) -> Iterator[JavaProcess]:
    """A broker or controller of Kafka 3.9.1, or of 4.3.1."""
    command = java_command("kafka.Kafka", str(properties))
    if is_4:
        logging = [*kafka_library().glob("*reload4j*.jar")]  # Kafka 4.3's jars have none
        path = ":".join(map(str, (f"{kraft_library()}/*", *logging)))
        levels = f"-Dlog4j.configuration=file:{kafka_library().parent / 'log4j-info.properties'}"
        command = ["java", *JVM_OPTIONS, levels, "-cp", path, "kafka.Kafka", str(properties)]
    process = JavaProcess(command, road.folder / f"{name}.log")
    try:
        yield process
    finally:
        process.stop()


@contextmanager
def zookeeper(road: Road) -> Iterator[None]:
    """`ottla zookeeper` on the directory of the broker."""
    command = [sys.executable, "-m", "ottla.cli.main", "zookeeper", "--data-dir", str(road.data)]
    process = subprocess.Popen([*command, "--port", str(ZOOKEEPER_PORT)], cwd=REPOSITORY)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def serves() -> bool:
    """Whether a broker answers, with a leader for each partition."""
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP, "log_level": 0})
    try:
        topics = admin.list_topics(timeout=2).topics
    except Exception:
        return False
    return all(row.leader == NODE for name in TOPICS for row in topics[name].partitions.values())


def load() -> None:
    """Records, transactions, offsets, ACLs, users, quotas and settings."""
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    topics = [
        NewTopic("orders", 6, 1, config={"retention.ms": "99999999999"}),
        NewTopic("state", 3, 1, config={"cleanup.policy": "compact"}),
        NewTopic("transfers", 2, 1),
    ]
    for future in admin.create_topics(topics).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "compression.type": "lz4"})
    for number in range(5_000):
        producer.produce("orders", str(number), key=str(number % 97), headers=[("h", b"x")])
    for number in range(1_000):
        producer.produce("state", str(number), key=str(number % 50))
    assert producer.flush(60) == 0
    for each in range(3):
        producer = Producer({"bootstrap.servers": BOOTSTRAP, "transactional.id": f"tid-{each}"})
        producer.init_transactions(60)
        for number in range(4):
            producer.begin_transaction()
            for value in range(20):
                producer.produce("transfers", f"{each}-{number}-{value}")
            if number % 2:
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)
    for protocol in ("classic", "consumer"):
        _read_some(protocol)
    _leave_a_member()
    binding = AclBinding(
        *(ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:alice", "*"),
        *(AclOperation.READ, AclPermissionType.ALLOW),
    )
    for future in admin.create_acls([binding]).values():
        future.result(60)
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    alice = UserScramCredentialUpsertion("alice", scram, b"secret")
    for future in admin.alter_user_scram_credentials([alice]).values():
        future.result(60)
    entry = ConfigEntry("log.cleaner.threads", "2", incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ConfigResource.Type.BROKER, str(NODE), incremental_configs=[entry])
    for future in admin.incremental_alter_configs([broker]).values():
        future.result(60)


def _read_some(protocol: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": f"{GROUP}-{protocol}",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    count = 0
    while count < 2_000:
        count += len(consumer.consume(500, 2))
    consumer.commit(asynchronous=False)
    consumer.close()


def _leave_a_member() -> None:
    """A member of the consumer protocol that is still in its group when Ottla stops."""
    request = ConsumerGroupHeartbeatRequest(
        *("abandoned", "member", 0),
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    with Wire(BOOTSTRAP) as wire:
        response: Any = wire.ask(request, 1)
    assert response.error_code == 0, response
    assert response.assignment.topic_partitions, response


def state() -> dict[str, Any]:
    """All that has to be the same after each step."""
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    found: dict[str, Any] = {"cluster": admin.list_topics(timeout=30).cluster_id}
    for name in TOPICS:
        for level in ("read_committed", "read_uncommitted"):
            found[f"{name} {level}"] = _records(admin, name, level)
    for protocol in ("classic", "consumer"):
        reader = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": f"{GROUP}-{protocol}"})
        rows = reader.committed([TopicPartition("orders", each) for each in range(6)], 30)
        found[f"offsets {protocol}"] = [(row.partition, row.offset) for row in rows]
        reader.close()
    every = AclBindingFilter(
        *(ResourceType.ANY, None, ResourcePatternType.ANY, None, None),
        *(AclOperation.ANY, AclPermissionType.ANY),
    )
    found["acls"] = sorted(map(str, admin.describe_acls(every).result(30)))
    users = admin.describe_user_scram_credentials(["alice"])
    found["users"] = [
        (info.mechanism.name, info.iterations)
        for info in users["alice"].result(30).scram_credential_infos
    ]
    for kind, name in ((ConfigResource.Type.TOPIC, "orders"), (ConfigResource.Type.BROKER, "1")):
        resource = ConfigResource(kind, name)
        entries = admin.describe_configs([resource])[resource].result(30)
        # Those that were set at run time.
        found[f"settings {name}"] = {
            each.name: each.value for each in entries.values() if each.source in (1, 2, 3)
        }
    return found


def _records(admin: AdminClient, topic: str, level: str) -> tuple[int, str]:
    reader = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": "checks",
            "isolation.level": level,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = list(admin.list_topics(topic, timeout=30).topics[topic].partitions)
    reader.assign([TopicPartition(topic, each, 0) for each in partitions])
    rows, ended, deadline = [], set(), time.monotonic() + 60
    while len(ended) < len(partitions):
        assert time.monotonic() < deadline, f"{topic} is not read to its end"
        for message in reader.consume(1000, 1):
            if message.error():
                ended.add(message.partition())
            else:
                key, value = message.key(), message.value()
                rows.append((message.partition(), message.offset(), key, value))
    reader.close()
    return len(rows), hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()[:12]


class Steps:
    """Compares the state after each step with the first one."""

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}
        self._began = time.monotonic()

    def check(self, name: str) -> None:
        eventually(serves, f"{name}: the broker does not serve", seconds=120)
        found = state()
        self._first = self._first or found
        different = {
            key: (self._first[key], found[key]) for key in found if found[key] != self._first[key]
        }
        assert not different, f"{name}: {json.dumps(different, default=str, indent=1)}"
        seconds = time.monotonic() - self._began
        print(f"{seconds:6.1f} s  {name}: {len(found)} facts are equal", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            walk(Road(folder), Steps())
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"== {log.name}", "\n".join(log.read_text().splitlines()[-25:]), sep="\n")
            raise


def walk(road: Road, steps: Steps) -> None:
    settings = {"broker.id": str(NODE), "log.dirs": str(road.data)}
    settings["listeners"] = f"PLAINTEXT://{BOOTSTRAP}"
    for line in (_ZOOKEEPER_ACLS + _INTERNAL).splitlines():
        key, _, value = line.partition("=")
        settings[key] = value
    ottla = BrokerProcess(road.folder / "ottla", settings)
    ottla.start()
    try:
        load()
        steps.check("Ottla")
        cluster_id = (
            AdminClient({"bootstrap.servers": BOOTSTRAP}).list_topics(timeout=30).cluster_id
        )
        checks = CommandLine(BOOTSTRAP)("migrate", "--to", "kafka-4").output
        assert "ottla zookeeper" in checks, checks
    finally:
        ottla.stop()
    controller = road.controller(migrates=True)
    command = java_command(
        "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(controller)
    )
    subprocess.run(command, check=True, capture_output=True)
    with zookeeper(road), java(road, "controller", controller) as migrating:
        with java(road, "kafka", road.kafka_on_zookeeper()):
            migrating.wait_for(MIGRATED)
            steps.check("Kafka 3.9.1 with ZooKeeper, migrated")
        with java(road, "kraft", road.kafka_on_kraft()):
            steps.check("Kafka 3.9.1 with KRaft")
    final = road.controller(migrates=False)
    with java(road, "controller-3.9", final), java(road, "kraft-alone", road.kafka_on_kraft()):
        steps.check("Kafka 3.9.1 with KRaft, without ZooKeeper")
    with (
        java(road, "controller-4.3", final, is_4=True),
        java(road, "kafka-4.3", road.kafka_on_kraft(), is_4=True) as newest,
    ):
        steps.check("Kafka 4.3.1")
        newest.wait_for(r"Finished loading of metadata from __consumer_offsets")
        output = newest.output()
    assert not [line for line in output.splitlines() if any(each in line for each in COMPLAINTS)]


if __name__ == "__main__":
    main()
