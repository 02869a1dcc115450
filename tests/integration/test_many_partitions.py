"""Clients of a broker with more partitions than most requests may have elements."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker.requests.request_parts import MAX_UNDIVIDED_ELEMENTS
from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from ottla.testing import Broker

PARTITIONS = MAX_UNDIVIDED_ELEMENTS + 500
WRITTEN = (0, 2_500, PARTITIONS - 1)
SECONDS = 120.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def test_a_consumer_of_thousands_of_partitions(broker: Broker) -> None:
    broker.create_topic("t", PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in WRITTEN:
        producer.produce("t", value=str(partition), partition=partition)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": str(uuid.uuid4())})
    try:
        consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
        found: set[int] = set()
        deadline = time.monotonic() + SECONDS
        while len(found) < len(WRITTEN) and time.monotonic() < deadline:
            for message in consumer.consume(100, 1.0):
                assert message.error() is None, message.error()
                found.add(int(message.value() or b""))
        assert found == set(WRITTEN)
    finally:
        consumer.close()


def test_one_produce_request_to_thousands_of_partitions(broker: Broker) -> None:
    """As Kafka's producer sends it after a long `linger.ms`."""
    broker.create_topic("produced", PARTITIONS)
    rows = [
        PartitionProduceData(index, build_batch([(0, None, b"%d" % index, [])]))
        for index in range(PARTITIONS)
    ]
    request = ProduceRequest(None, -1, 60_000, [TopicProduceData("produced", rows)])
    with BlockingClient(broker.bootstrap, request_timeout_ms=60_000) as client:
        response = client.call(request)
        assert isinstance(response, ProduceResponse)
        (topic,) = response.responses
        assert [row.index for row in topic.partition_responses] == list(range(PARTITIONS))
        assert {(row.error_code, row.base_offset) for row in topic.partition_responses} == {(0, 0)}
        latest = [ListOffsetsPartition(index, -1, -1) for index in range(PARTITIONS)]
        ends = client.call(ListOffsetsRequest(-1, 0, [ListOffsetsTopic("produced", latest)]))
        assert isinstance(ends, ListOffsetsResponse)
        assert [row.offset for row in ends.topics[0].partitions] == [1] * PARTITIONS
