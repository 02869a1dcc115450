"""Settings of share groups (KIP-932) on a broker that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confluent_kafka import Producer, ShareConsumer

from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire

TOPIC, GROUP = "jobs", "workers"
GROUP_RESOURCE = 32
SETTING = "share.auto.offset.reset"
RECORDS = 10


def test_a_setting_survives_a_kill_and_a_new_group_begins_at_the_first_record(
    tmp_path: Path,
) -> None:
    with start_broker(
        tmp_path, group_coordinator_rebalance_protocols="classic,consumer,share"
    ) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(RECORDS):
            producer.produce(TOPIC, f"job-{number}", partition=0)
        assert producer.flush(60) == 0
        resource = AlterConfigsResource(
            GROUP_RESOURCE, GROUP, [AlterableConfig(SETTING, 0, "earliest")]
        )
        with Wire(broker.bootstrap) as wire:
            altered: Any = wire.ask(IncrementalAlterConfigsRequest([resource]), 1)
        assert altered.responses[0].error_code == 0
        broker.kill()
        broker.start()

        request = DescribeConfigsRequest(
            [DescribeConfigsResource(GROUP_RESOURCE, GROUP, [SETTING])]
        )
        with Wire(broker.bootstrap) as wire:
            found: Any = wire.ask(request, 4)
        assert [row.value for row in found.results[0].configs] == ["earliest"]
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": GROUP, "log_level": 0}
        consumer = ShareConsumer(settings)
        consumer.subscribe([TOPIC])
        values: list[str] = []

        def has_all() -> bool:
            messages = consumer.poll(0.5)
            values.extend(each.value().decode() for each in messages if each.error() is None)
            return len(values) >= RECORDS

        eventually(has_all, lambda: values)
        consumer.close()
        assert values == [f"job-{number}" for number in range(RECORDS)]
