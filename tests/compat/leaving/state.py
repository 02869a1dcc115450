"""What a cluster has before it leaves Ottla, and has to have after each step."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.compat.leaving.nodes import Nodes
from tests.doubles.apache_kafka import START_DEADLINE_S
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually

TOPICS = ("orders", "state", "transfers")
GROUP = "readers"
SHARE_GROUP = "sharers"
# Of a topic, a broker and all brokers.
_SET_AT_RUN_TIME = (1, 2, 3)
# Kafka 4.1 and later sets it for the cluster with eligible.leader.replicas.version (KIP-966).
_SET_BY_KAFKA_4 = "min.insync.replicas"
# Set at run time, at this broker only.
BROKER_ID = 1


def load(nodes: Nodes) -> None:
    """Records, transactions, offsets, share groups, ACLs, users, quotas and settings."""
    bootstrap = nodes.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic("orders", 6, nodes.replicas, config={"retention.ms": "99999999999"}),
        NewTopic("state", 3, nodes.replicas, config={"cleanup.policy": "compact"}),
        NewTopic("transfers", 2, nodes.replicas),
    ]
    for future in admin.create_topics(topics).values():
        future.result(60)
    _produce(bootstrap)
    for protocol in ("classic", "consumer"):
        _read_some(bootstrap, protocol)
    _share_some(bootstrap)
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
    ottla = CommandLine(bootstrap)
    ottla.done("configs", "set", "broker", str(BROKER_ID), "log.cleaner.threads=2")
    ottla.done("configs", "set", "cluster", "log.cleaner.backoff.ms=14000")
    for entity, rate in (
        (("--client", "loader"), "producer_byte_rate=1048576"),
        (("--user", "alice", "--client-default"), "consumer_byte_rate=2097152"),
        (("--user-default",), "request_percentage=150"),
        (("--ip", "192.0.2.1"), "connection_creation_rate=20"),
    ):
        ottla.done("quotas", "alter", *entity, "--set", rate)


def _produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    for number in range(5_000):
        producer.produce("orders", str(number), key=str(number % 97), headers=[("h", b"x")])
    for number in range(1_000):
        producer.produce("state", str(number), key=str(number % 50))
    assert producer.flush(60) == 0
    for each in range(3):
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tid-{each}"})
        producer.init_transactions(60)
        for number in range(4):
            producer.begin_transaction()
            for value in range(20):
                producer.produce("transfers", f"{each}-{number}-{value}")
            if number % 2:
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)


def _read_some(bootstrap: str, protocol: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
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


def _share_some(bootstrap: str) -> None:
    """Acknowledge records of a share group that begins at the start."""
    CommandLine(bootstrap).done(
        "configs", "set", "group", SHARE_GROUP, "share.auto.offset.reset=earliest"
    )
    consumer: Any = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": SHARE_GROUP,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe(["transfers"])
    acknowledged: list[bool] = []

    def acknowledge() -> bool:
        messages = [each for each in consumer.poll(1) if each.error() is None]
        for message in messages:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        if messages:
            acknowledged.extend(each is None for each in consumer.commit_sync(30).values())
        return len(acknowledged) >= 2 and all(acknowledged)

    eventually(acknowledge, lambda: acknowledged)
    consumer.close()


def serves(nodes: Nodes) -> bool:
    """Whether each broker knows a leader and all replicas in sync of every partition."""
    return all(_is_complete(nodes, port) for port in nodes.ports.values())


def _is_complete(nodes: Nodes, port: int) -> bool:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    try:
        topics = admin.list_topics(timeout=2).topics
    except Exception:
        return False
    rows = [row for topic in topics.values() for row in topic.partitions.values()]
    return all(name in topics for name in TOPICS) and all(
        row.leader in nodes.broker_ids and len(row.isrs) == nodes.replicas for row in rows
    )


def state(nodes: Nodes, *, has_new_groups: bool) -> dict[str, Any]:
    """The facts by name; `has_new_groups` if the brokers serve the groups of Kafka 4."""
    bootstrap = nodes.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found: dict[str, Any] = {"cluster": admin.list_topics(timeout=30).cluster_id}
    for name in TOPICS:
        for level in ("read_committed", "read_uncommitted"):
            found[f"{name} {level}"] = _records(admin, bootstrap, name, level)
    for protocol in ("classic", "consumer"):
        reader = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{GROUP}-{protocol}"})
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
    kinds = ConfigResource.Type
    for kind, name in ((kinds.TOPIC, "orders"), (kinds.BROKER, str(BROKER_ID))):
        resource = ConfigResource(kind, name)
        entries = admin.describe_configs([resource])[resource].result(30)
        found[f"settings {name}"] = {
            each.name: each.value
            for each in entries.values()
            if each.source in _SET_AT_RUN_TIME and each.name != _SET_BY_KAFKA_4
        }
    ottla = CommandLine(bootstrap)
    found["quotas"] = sorted(map(str, ottla.done("quotas", "describe", "--json").value))
    if has_new_groups:
        found["share offsets"] = ottla.done("share-groups", "offsets", SHARE_GROUP, "--json").value
        groups = ottla.done("groups", "list", "--json").value
        found["groups"] = sorted(
            (row["group"], row["type"])
            for row in groups
            if row["group"].startswith((GROUP, SHARE_GROUP))
        )
    return found


def _records(admin: AdminClient, bootstrap: str, topic: str, level: str) -> tuple[int, str]:
    rows = read_all(admin, bootstrap, topic, level)
    return len(rows), hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()[:12]


def read_all(
    admin: AdminClient, bootstrap: str, topic: str, level: str = "read_committed"
) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """All records of a topic: partition, offset, key and value."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
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
    return rows


class Steps:
    """Compares the state after each step with the first one."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._first: dict[str, Any] = {}
        self._began = time.monotonic()

    def serve(self, name: str) -> None:
        """Wait until the cluster serves with all replicas in sync."""
        eventually(
            lambda: serves(self._nodes),
            f"{name}: the cluster does not serve",
            seconds=START_DEADLINE_S,
        )

    def check(self, name: str, *, has_new_groups: bool = False) -> None:
        """Fail with all differences if a fact is not that of the first check."""
        self.serve(name)
        found = state(self._nodes, has_new_groups=has_new_groups)
        self._first = self._first or found
        different = {
            key: (self._first[key], found[key]) for key in found if found[key] != self._first[key]
        }
        assert not different, f"{name}: {json.dumps(different, default=str, indent=1)}"
        self.say(f"{name}: {len(found)} facts are equal")

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)
