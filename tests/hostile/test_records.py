"""A producer cannot stop the consumers of a partition with records that no client can read."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from ottla.broker.testing.embedded import Broker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import assemble_batch, build_batch
from ottla.protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, codec_name, compress
from tests.doubles.wire import Wire

TIME = 1_700_000_000_000
SECONDS = 60.0


def batch(codec: int, payload: bytes, count: int) -> bytes:
    return assemble_batch(
        payload,
        base_offset=0,
        last_offset_delta=count - 1,
        base_timestamp=TIME,
        max_timestamp=TIME,
        record_count=count,
        attributes=codec,
    )


def produce(wire: Wire, records: bytes) -> int:
    data = [TopicProduceData("topic", [PartitionProduceData(0, records)])]
    response = wire.ask(ProduceRequest(None, 1, 30_000, data), 9)
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD], ids=codec_name)
def test_consumers_read_on(codec: int) -> None:
    good = [build_batch([(TIME, None, value, [])], codec=codec) for value in (b"one", b"two")]
    content = bytes(build_batch([(TIME, None, b"three", [])])[61:])
    # Longer than is checked on the event loop: a worker thread finds it.
    many = bytes(build_batch([(TIME, None, b"v", [])] * 20_000)[61:])
    poison = [
        batch(codec, b"garbage that is no stream", 1),
        batch(codec, compress(codec, content), 3),
        batch(codec, compress(codec, b"\xff" * 30), 1),
        batch(codec, compress(codec, many + b"more"), 20_000),
    ]
    with Broker() as broker:
        broker.create_topic("topic")
        with Wire(broker.bootstrap) as wire:
            assert produce(wire, good[0]) == ErrorCode.NONE
            for each in poison:
                assert produce(wire, each) == ErrorCode.INVALID_RECORD
            assert produce(wire, good[1]) == ErrorCode.NONE
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
            }
        )
        try:
            consumer.subscribe(["topic"])
            found = consumer.consume(2, SECONDS)
            assert [message.value() for message in found] == [b"one", b"two"]
        finally:
            consumer.close()
