"""A broker of Apache Kafka 3.9.1 joins and leaves a cluster that uses the consumer protocol.

While it is registered no broker offers the consumer protocol and share groups, and the group
drains. Its committed offsets are those of before on every coordinator, Kafka's too.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import alter_partition_reassignments as moving
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.doubles.apache_kafka import ApacheKafka, start_kafka, start_zookeeper
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

KAFKA_ID = 1
OUR_IDS = (2, 3)
TOPIC, GROUP = "work", "readers"
OFFSETS = "__consumer_offsets"
COMMON: dict[str, object] = {
    "zookeeper_session_timeout_ms": 6000,
    "inter_broker_protocol_version": "3.9",
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 2,
}
HEARTBEAT, SHARE_HEARTBEAT, SHARE_STATE = 68, 76, 84
OFFERED = {HEARTBEAT: 1, SHARE_HEARTBEAT: 1, SHARE_STATE: 0}
NOT_OFFERED = {HEARTBEAT: 0, SHARE_STATE: 0}


def broker(directory: Path, zookeeper: str, broker_id: int) -> BrokerProcess:
    settings = {"broker_id": broker_id, "zookeeper_connect": zookeeper, **COMMON}
    texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
    return BrokerProcess(directory / f"broker-{broker_id}", texts)


def listed(address: str) -> dict[int, int]:
    """The newest version of the requests of group protocols that a broker lists."""
    with Wire(address) as wire:
        response: Any = wire.ask(ApiVersionsRequest("test", "1"), 3)
    rows = {row.api_key: row.max_version for row in response.api_keys}
    return {key: rows[key] for key in OFFERED if key in rows}


def consumer(bootstrap: str, protocol: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "group.protocol": protocol,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def produce(bootstrap: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        producer.produce(TOPIC, str(value).encode(), partition=0)
    assert producer.flush(60) == 0


def read(reader: Consumer, count: int) -> list[int]:
    """The next records, committed."""
    reader.subscribe([TOPIC])
    found: list[int] = []

    def enough() -> bool:
        for message in reader.consume(count - len(found), 1):
            assert message.error() is None, message.error()
            found.append(int(message.value() or b""))
        return len(found) == count

    eventually(enough, lambda: found)
    reader.commit(asynchronous=False)
    return found


def move_offsets_to(ours: list[BrokerProcess], bootstrap: str, replicas: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    controller = admin.list_topics(timeout=60).controller_id
    (leader,) = (each for each, number in zip(ours, OUR_IDS, strict=True) if number == controller)
    rows = [moving.ReassignablePartition(0, replicas)]
    topics = [moving.ReassignableTopic(OFFSETS, rows)]
    request = moving.AlterPartitionReassignmentsRequest(timeout_ms=60_000, topics=topics)
    with Wire(leader.bootstrap) as wire:
        response: Any = wire.ask(request, 0)
    assert response.error_code == 0, response

    def is_led_there() -> bool:
        return admin.list_topics(timeout=60).topics[OFFSETS].partitions[0].leader == replicas[0]

    eventually(is_led_there, "the coordinator did not move")


def assert_is_refused(address: str) -> None:
    """A member of the consumer protocol gets an error that names the broker, and may leave."""
    joining = ConsumerGroupHeartbeatRequest(
        GROUP, "m", 0, rebalance_timeout_ms=10_000, subscribed_topic_names=[TOPIC]
    )
    joining.topic_partitions = []
    with Wire(address) as wire:
        for version in (0, 1):
            response: Any = wire.ask(joining, version)
            assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert response.error_message.startswith("Broker 1 of the cluster does not serve")
        response = wire.ask(ConsumerGroupHeartbeatRequest(GROUP, "m", -1), 1)
        assert response.error_code != ErrorCode.UNSUPPORTED_VERSION


def test_a_broker_of_kafka_joins_and_leaves(tmp_path: Path) -> None:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(start_zookeeper(tmp_path / "zookeeper"))
        ours = [broker(tmp_path, zookeeper, each) for each in OUR_IDS]
        for each in ours:
            stack.callback(each.kill)
            each.start()
        bootstrap = ",".join(each.bootstrap for each in ours)
        for each in ours:
            eventually(lambda each=each: listed(each.bootstrap) == OFFERED, "not offered")  # type: ignore[misc]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 2)])[TOPIC].result(60)
        produce(bootstrap, range(10))
        first = consumer(bootstrap, "consumer")
        _begin_at_the_start(first)
        assert read(first, 10) == list(range(10))

        kafka: ApacheKafka = stack.enter_context(
            start_kafka(tmp_path / "kafka", zookeeper=zookeeper, broker_id=KAFKA_ID, **COMMON)
        )
        for each in ours:
            eventually(lambda each=each: listed(each.bootstrap) == NOT_OFFERED, "still offered")  # type: ignore[misc]
        for each in ours:
            assert_is_refused(each.bootstrap)
        logs = "".join(each.log() for each in ours)
        assert "Groups of the consumer protocol are refused: broker 1 does not serve them" in logs
        first.close()
        produce(bootstrap, range(10, 20))
        classic = consumer(bootstrap, "classic")
        assert read(classic, 10) == list(range(10, 20))
        classic.close()

        move_offsets_to(ours, bootstrap, [KAFKA_ID])
        produce(bootstrap, range(20, 30))
        at_kafka = consumer(kafka.bootstrap, "classic")
        assert read(at_kafka, 10) == list(range(20, 30))
        at_kafka.close()

        move_offsets_to(ours, bootstrap, list(OUR_IDS))
        kafka.stop()
        for each in ours:
            eventually(lambda each=each: listed(each.bootstrap) == OFFERED, "not offered again")  # type: ignore[misc]
        produce(bootstrap, range(30, 40))
        again = consumer(bootstrap, "consumer")
        assert read(again, 10) == list(range(30, 40))
        again.close()


def _begin_at_the_start(reader: Consumer) -> None:
    """A committed offset of 0, so that no reader of the group needs a reset."""
    reader.commit(offsets=[TopicPartition(TOPIC, 0, 0)], asynchronous=False)
