"""Two of our brokers beside a controller of Apache Kafka 3.4, which has AlterPartition up to 2."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.doubles.acknowledged_records import AcknowledgedRecords
from tests.doubles.apache_kafka import start_kafka, start_zookeeper
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

VERSION = "3.4.1"
KAFKA_ID = 1
COMMON = {
    "zookeeper_session_timeout_ms": 6000,
    "inter_broker_protocol_version": "3.4",
    "offsets_topic_num_partitions": 1,
}


def test_killed_brokers_get_back_in_sync(tmp_path: Path) -> None:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(start_zookeeper(tmp_path / "zookeeper"))
        kafka = stack.enter_context(
            start_kafka(
                tmp_path / "kafka",
                zookeeper=zookeeper,
                version=VERSION,
                broker_id=KAFKA_ID,
                **COMMON,
            )
        )
        common = {name.replace("_", "."): str(value) for name, value in COMMON.items()}
        brokers: list[BrokerProcess] = []
        for broker_id in (2, 3):
            settings = {"broker.id": str(broker_id), "zookeeper.connect": zookeeper, **common}
            broker = BrokerProcess(tmp_path / f"broker-{broker_id}", settings)
            broker.start()
            stack.callback(broker.kill)
            brokers.append(broker)
        records = AcknowledgedRecords(
            ",".join([kafka.bootstrap, *(broker.bootstrap for broker in brokers)])
        )
        assert records.admin.list_topics(timeout=30).controller_id == KAFKA_ID
        records.create_topic()
        records.produce(500)
        for broker in brokers:
            broker.kill()
            records.produce(500)
            broker.start()
            eventually(records.all_in_sync, "the killed broker is not back in sync")
        records.assert_nothing_lost_or_doubled()
