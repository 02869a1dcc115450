"""A broker of Apache Kafka 3.9.1 joins a cluster that has used share groups (KIP-932).

    python -m tests.compat.share.mixed

Share groups and their settings are refused while it is registered. It leads the internal topics
with the records of share groups, coordinates a group of consumers, and logs no error but one for
each setting of a group that was changed in the 15 minutes before.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import alter_partition_reassignments as moving
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.doubles.apache_kafka import start_kafka, start_zookeeper
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually
from tests.doubles.share_workers import ShareWorkers, produce, values_of, warm
from tests.doubles.wire import Wire

KAFKA_ID = 1
OUR_IDS = (2, 3)
TOPIC, GROUP = "work", "workers"
INTERNAL = ("__consumer_offsets", "__share_group_state")
PARTITIONS = 3
COMMON: dict[str, object] = {
    "zookeeper_session_timeout_ms": 6000,
    "inter_broker_protocol_version": "3.9",
    "offsets_topic_num_partitions": PARTITIONS,
    "offsets_topic_replication_factor": 2,
}
OURS: dict[str, object] = {
    "group_coordinator_rebalance_protocols": "classic,consumer,share",
    "share_coordinator_state_topic_num_partitions": PARTITIONS,
    "share_coordinator_state_topic_replication_factor": 2,
    "share_coordinator_state_topic_min_isr": 1,
}
# Of a change of a group's settings, which ZooKeeper keeps for 15 minutes.
NOTIFICATION = 'error processing change notification {"version":2,"entity_path":"groups/'
MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ"


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        zookeeper = stack.enter_context(start_zookeeper(directory / "zookeeper"))
        ours = [broker(directory, zookeeper, each) for each in OUR_IDS]
        for each in ours:
            stack.callback(each.kill)
            each.start()
        bootstrap = ",".join(each.bootstrap for each in ours)
        use_share_groups(bootstrap)
        assert set_group(ours[0].bootstrap) == ErrorCode.NONE
        kafka = stack.enter_context(
            start_kafka(directory / "kafka", zookeeper=zookeeper, broker_id=KAFKA_ID, **COMMON)
        )
        eventually(lambda: is_refused(bootstrap.split(",")), "share groups are not refused")
        for each in ours:
            assert set_group(each.bootstrap) == ErrorCode.UNSUPPORTED_VERSION
        print("share groups and their settings are refused while Kafka is registered")
        move_to_kafka(ours, bootstrap)
        read_with_a_group(kafka.bootstrap)
        print("Kafka leads the internal topics, and coordinates a group of consumers")
        lines = [line for line in kafka.output().splitlines() if " ERROR " in line]
        assert [line for line in lines if NOTIFICATION not in line] == [], lines
        print(f"Kafka has logged {len(lines)} errors, of notifications that it does not know")


def broker(directory: Path, zookeeper: str, broker_id: int) -> BrokerProcess:
    settings = {"broker_id": broker_id, "zookeeper_connect": zookeeper, **COMMON, **OURS}
    texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
    return BrokerProcess(directory / f"broker-{broker_id}", texts)


def use_share_groups(bootstrap: str) -> None:
    """Leaves records of share groups in both internal topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 2)])[TOPIC].result(60)
    with ShareWorkers(bootstrap, TOPIC, GROUP, 2) as workers:

        def begin() -> bool:
            warm(bootstrap, TOPIC, PARTITIONS)
            return workers.history.has_begun(PARTITIONS)

        eventually(begin, lambda: workers.errors[-10:], pause_seconds=0.5)
        values = values_of(60)
        produce(bootstrap, TOPIC, values)
        eventually(lambda: not workers.history.unfinished(values), lambda: workers.errors[-10:])
    assert workers.history.problems(values) == []


def set_group(bootstrap: str) -> int:
    """Leaves a znode below /config/groups; returns the error code."""
    setting = AlterableConfig("share.auto.offset.reset", 0, "earliest")
    with Wire(bootstrap) as wire:
        resource = AlterConfigsResource(32, GROUP, [setting])
        response: Any = wire.ask(IncrementalAlterConfigsRequest([resource]), 1)
    code: int = response.responses[0].error_code
    return code


def is_refused(addresses: list[str]) -> bool:
    """By the coordinator; the other broker returns NOT_COORDINATOR."""
    request = ShareGroupHeartbeatRequest(GROUP, MEMBER, 0, subscribed_topic_names=[TOPIC])
    codes = set()
    for address in addresses:
        with Wire(address) as wire:
            response: Any = wire.ask(request, 1)
            codes.add(response.error_code)
    return ErrorCode.UNSUPPORTED_VERSION in codes


def move_to_kafka(ours: list[BrokerProcess], bootstrap: str) -> None:
    """Kafka becomes the only replica, and so the leader, of all internal partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    controller = admin.list_topics(timeout=60).controller_id
    (leader,) = (each for each, number in zip(ours, OUR_IDS, strict=True) if number == controller)
    rows = [moving.ReassignablePartition(index, [KAFKA_ID]) for index in range(PARTITIONS)]
    topics = [moving.ReassignableTopic(name, rows) for name in INTERNAL]
    request = moving.AlterPartitionReassignmentsRequest(timeout_ms=60_000, topics=topics)
    with Wire(leader.bootstrap) as wire:
        response: Any = wire.ask(request, 0)
    assert response.error_code == 0, response

    def leaders() -> set[int]:
        found = admin.list_topics(timeout=60).topics
        return {row.leader for name in INTERNAL for row in found[name].partitions.values()}

    eventually(lambda: leaders() == {KAFKA_ID}, leaders)


def read_with_a_group(bootstrap: str) -> None:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "readers",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    try:
        assert len(consumer.consume(60, 60)) == 60
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
