"""Transaction version 2 in a cluster that Apache Kafka 3.9.1 joins, coordinates in, and leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC
from tests.doubles.apache_kafka import start_kafka, start_zookeeper
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually
from tests.doubles.raising_producer import RaisingProducer, level_at
from tests.doubles.wire import ConnectionClosed, Wire

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

KAFKA_ID, OUR_ID = 1, 2
COMMON: dict[str, object] = {
    "zookeeper_session_timeout_ms": 6000,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
}


def our_broker(directory: Path, zookeeper: str) -> BrokerProcess:
    settings = {name.replace("_", "."): str(value) for name, value in COMMON.items()}
    return BrokerProcess(
        directory, {"broker.id": str(OUR_ID), "zookeeper.connect": zookeeper, **settings}
    )


def committed(bootstrap: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found = consumer.consume(count, timeout=60)
    rest = consumer.consume(1, timeout=1)
    consumer.close()
    return [message.value() for message in [*found, *rest]]


def move_coordinator(bootstrap: str, broker_id: int, producer: RaisingProducer) -> None:
    before = producer.coordinator()
    rows = [ReassignablePartition(0, [broker_id])]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(TRANSACTION_STATE_TOPIC, rows)]
    )
    response = producer.ask(bootstrap, request, 0)
    assert response.error_code == 0, response.error_message
    eventually(lambda: producer.coordinator() != before, "the coordinator does not move")


def old_transaction(producer: RaisingProducer, value: bytes, *, is_committed: bool) -> None:
    """As a client of the older protocol."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic("t", [0])],
    )

    def add() -> bool:
        response: Any = producer.ask(producer.coordinator(), request, 3)
        (row,) = response.results_by_topic_v3_and_below[0].results_by_partition
        return row.partition_error_code == ErrorCode.NONE

    eventually(add, "the partition is not added")
    assert producer.produce(value, 11) == 0
    assert producer.end(committed=is_committed, version=3) == 0


def test_kafka_joins_coordinates_and_leaves(tmp_path: Path) -> None:
    with start_zookeeper(tmp_path / "zookeeper") as zookeeper:
        ours = our_broker(tmp_path / "ours", zookeeper)
        ours.start()
        try:
            admin = AdminClient({"bootstrap.servers": ours.bootstrap})
            admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
            _play(tmp_path / "kafka", zookeeper, ours)
        finally:
            if ours.is_running:
                ours.kill()


def _play(directory: Path, zookeeper: str, ours: BrokerProcess) -> None:
    bootstrap = ours.bootstrap
    level, first_epoch = level_at(bootstrap)
    assert level == 2
    producer = RaisingProducer(bootstrap, "x", "t")
    producer_id, _ = producer.init()
    assert producer.produce(b"a") == 0
    assert producer.end(committed=True) == 0
    assert (producer.producer_id, producer.epoch) == (producer_id, 1)
    assert producer.produce(b"open") == 0

    with Wire(bootstrap) as wire:
        wire.ask(EndTxnRequest("nobody", 1, 1, True), 5)
        with start_kafka(directory, zookeeper=zookeeper, broker_id=KAFKA_ID, **COMMON) as kafka:
            eventually(lambda: level_at(bootstrap)[0] == 0, "it is still on")
            assert first_epoch < (off := level_at(bootstrap)[1])
            assert level_at(kafka.bootstrap)[0] == 0
            assert level_at(kafka.bootstrap)[1] < off
            with pytest.raises((ConnectionClosed, OSError)):  # so that the client learns it
                wire.ask(EndTxnRequest("nobody", 1, 1, True), 5)
            assert "transaction.version is off: broker 1 does not" in ours.log_file.read_text()

            # What is open is ended as it began; then Kafka reads it in the log.
            assert producer.end(committed=True) == 0
            assert producer.produce(b"b") == 0
            move_coordinator(bootstrap, KAFKA_ID, producer)
            assert producer.coordinator() == kafka.bootstrap
            assert producer.end(committed=True, version=4) == 0  # the newest that Kafka has
            assert producer.epoch == 2
            assert producer.produce(b"c") == 0  # added to it at Kafka, with the same epoch
            assert producer.end(committed=False, version=4) == 0
            old_transaction(producer, b"d", is_committed=True)
            fenced = (producer.producer_id, producer.epoch)
            assert producer.init() == (producer_id, 3)
            fresh = producer.epoch
            producer.epoch = fenced[1]
            assert producer.produce(b"late") != 0
            producer.epoch = fresh
            old_transaction(producer, b"e", is_committed=False)
            move_coordinator(bootstrap, OUR_ID, producer)
            old_transaction(producer, b"f", is_committed=True)
            errors = [line for line in kafka.output().splitlines() if " ERROR " in line]
            assert errors == []

    eventually(lambda: level_at(bootstrap)[0] == 2, "it is still off")
    assert producer.produce(b"g") == 0
    assert producer.end(committed=True) == 0
    assert producer.epoch == fresh + 1
    assert committed(bootstrap, 6) == [b"a", b"open", b"b", b"d", b"f", b"g"]
