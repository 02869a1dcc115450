"""Quotas that are set by request hold clients back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    OpData,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.wire import Wire

TOPIC = "quotas"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("quotas")) as started:
        yield started


def set_quota(broker: BrokerProcess, client_id: str, key: str, value: float | None) -> None:
    entry = AlterClientQuotasRequestEntryData(
        [AlterClientQuotasRequestEntityData("client-id", client_id)],
        [OpData(key, value or 0.0, value is None)],
    )
    with Wire(broker.bootstrap, "admin") as wire:
        response = wire.ask(AlterClientQuotasRequest([entry], False), 1)
    assert isinstance(response, AlterClientQuotasResponse)
    assert [row.error_code for row in response.entries] == [0]


def produce_once(broker: BrokerProcess, client_id: str) -> int:
    """The throttle time of one produce request of about 20 kB."""
    batch = build_batch([(1_000, None, b"x" * 20_000, [])])
    data = [TopicProduceData(TOPIC, [PartitionProduceData(0, batch)])]
    with Wire(broker.bootstrap, client_id) as wire:
        response = wire.ask(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=data), 9)
    assert isinstance(response, ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == 0
    return response.throttle_time_ms


def test_a_producer_over_its_quota_is_throttled(broker: BrokerProcess) -> None:
    set_quota(broker, "held back", "producer_byte_rate", 1000.0)
    throttled: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "held back",
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    producer.produce(TOPIC, b"x" * 20_000)
    assert producer.flush(30) == 0
    while not throttled:  # the event is served after the delivery report
        producer.poll(1)
    assert max(throttled) > 0


def test_a_quota_counts_for_whom_it_names_until_it_is_taken_away(broker: BrokerProcess) -> None:
    set_quota(broker, "slow", "producer_byte_rate", 1000.0)
    assert produce_once(broker, "slow") > 0
    assert produce_once(broker, "fast") == 0
    set_quota(broker, "slow", "producer_byte_rate", None)
    assert produce_once(broker, "slow") == 0
