"""What a restart completes: transactions that were committed, but have no markers yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker.testing.embedded import Broker
from ottla.broker.transactions.markers import MarkerSender

VALUES = [b"0", b"1", b"2"]


def test_a_start_writes_the_markers_of_committed_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With Kafka's number of partitions: the controller's LeaderAndIsr request takes several turns
    # of the event loop, and transactions are loaded before UpdateMetadata comes.
    broker = Broker(tmp_path, transaction_state_log_num_partitions=50)
    with monkeypatch.context() as patch:
        patch.setattr(MarkerSender, "start", lambda *_: None)  # killed before the markers
        with broker:
            broker.create_topic("t")
            producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx-a"})
            producer.init_transactions(30)
            producer.begin_transaction()
            for value in VALUES:
                producer.produce("t", value)
            producer.commit_transaction(30)
            broker.crash()
    with broker:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "g",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        messages = consumer.consume(len(VALUES), timeout=60)
        consumer.close()
    assert [message.value() for message in messages] == VALUES
