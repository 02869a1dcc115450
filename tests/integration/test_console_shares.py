"""The page of a share group (KIP-932) in the console, with a share consumer behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from ottla.broker.testing.embedded import Broker
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.doubles.console_client import ConsoleClient
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire

TOPIC = "jobs"
GROUP = "workers"
RECORDS = 10
GROUP_RESOURCE = 32


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(
        ottla_console_enable=True,
        ottla_metrics_address="127.0.0.1:0",
        group_coordinator_rebalance_protocols="classic,consumer,share",
    ) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap})
        for number in range(RECORDS):
            producer.produce(TOPIC, f"job-{number}", partition=0)
        assert producer.flush(60) == 0
        setting = AlterableConfig("share.auto.offset.reset", 0, "earliest")
        resource = AlterConfigsResource(GROUP_RESOURCE, GROUP, [setting])
        with Wire(running.bootstrap) as wire:
            wire.ask(IncrementalAlterConfigsRequest([resource]), 1)
        yield running


def test_records_in_flight_and_a_reset(broker: Broker) -> None:
    page = ConsoleClient(broker.server.metrics_port)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": GROUP,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    messages = eventually(lambda: [each for each in consumer.poll(0.5) if each.error() is None])
    assert len(messages) == RECORDS
    found = page.get(f"group?name={GROUP}")
    assert (found["type"], found["state"], found["members"]) == ("share", "Stable", 1)
    share = found["share"]
    assert (share["in_flight"], share["locked"], share["delivered"]) == (RECORDS, RECORDS, RECORDS)
    assert share["oldest_lock_ms"] >= 0
    (row,) = share["rows"]
    assert (row["topic"], row["partition"], row["start_offset"]) == (TOPIC, 0, 0)
    assert (row["members"], row["most_deliveries"]) == (1, 1)

    for message in messages:
        is_first = message.offset() == 0
        kind = AcknowledgeType.ACCEPT if is_first else AcknowledgeType.RELEASE
        consumer.acknowledge(message, kind)
    consumer.commit_sync(60)
    # The counts end with the last member.
    assert page.get(f"group?name={GROUP}")["share"]["acknowledged"]["accept"] == 1
    consumer.close()
    assert page.get(f"group?name={GROUP}")["share"]["locked"] == 0

    assert GROUP in {row["group"] for row in page.get("groups")["groups"]}
    eventually(lambda: page.get(f"group?name={GROUP}")["members"] == 0, "the member stays")
    plan = page.act("group/plan", group=GROUP, topic=TOPIC, to="offset", amount=7)
    assert [each["after"] for each in plan["rows"]] == [7]
    done = page.act("group/reset", group=GROUP, rows=plan["rows"])
    assert done["done"] == f"1 offset of group {GROUP} is reset."
    rows = page.get(f"group?name={GROUP}")["offsets"]
    assert [(each["offset"], each["lag"]) for each in rows] == [(7, 3)]
    page.act("group/delete", group=GROUP, confirm=GROUP)
    assert page.send("GET", f"group?name={GROUP}")[0] == 404
